"""Runs of a scenario for `agreement`: live, with all processes of a gateway, and simulated."""

import asyncio
import contextlib
import json
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from msgspec import structs

from epp.lab import simulation
from epp.lab.envoy import Mode
from epp.lab.load import LoadPlan, Report, run
from epp.lab.results import Distribution, Summary, joined_records, server_accounts, summarise
from epp.lab.results.distribution import value_of
from epp.lab.scenarios import Scenario, load_scenario
from epp.lab.simulation import Contender, Simulation, quiet_logs
from epp.lab.traffic import TrafficRequest, Workload
from tools.bench import gateways, processes
from tools.bench.agreement import Agreement, LiveReading, Reading, Round
from tools.bench.cpu_time import CpuReading

FOLDER = Path(__file__).parent / "scenarios"
SCENARIOS = ("shared-prefix", "straggler", "heterogeneous")
CONTENDERS = (
    Contender.of_policy("reference-weighted"),  # what epp serve does without a configuration
    Contender("reference-affinity", Path(simulation.__file__).with_name("reference-affinity.yaml")),
    Contender("random", FOLDER / "random.yaml"),
)
SIMULATED_RUNS = 8
"""For each live run."""
MAX_DELAY_SECONDS = 0.005
"""What a live request takes to its server, about."""
_MODEL = "tiny"
_SCRAPE_SECONDS = 0.05
"""As `epp serve` does by default."""
_SETTLE_SECONDS = 0.5
"""Until all servers have been scraped."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running `epp fleet`."""

    pid: int
    endpoints: Sequence[str]
    """Addresses."""
    endpoints_file: Path
    """Their names, too: with the same order of names as in a simulation, the same random numbers
    choose the same servers."""
    control: str
    """URL of the control port."""


async def measure(seeds: Sequence[int], progress: Callable[[str], None]) -> list[Agreement]:
    """Run all scenarios and policies.

    Args:
        seeds: Seeds of the traffic, one for each round.
        progress: Gets a line for each live run.
    """
    quiet_logs()
    found: dict[tuple[str, str], list[Round]] = {}
    for seed in seeds:
        for name in SCENARIOS:
            path = FOLDER / f"{name}.yaml"
            scenario = load_scenario(path)
            # All together use less than one core; simulations would delay them.
            readings = await asyncio.gather(
                *(live(path, scenario, contender, seed) for contender in CONTENDERS)
            )
            for contender, reading in zip(CONTENDERS, readings, strict=True):
                # A virtual loop cannot run inside a running one.
                simulated = await asyncio.to_thread(simulate, scenario, contender, seed)
                done = Round(live=reading, simulated=simulated)
                found.setdefault((name, contender.name), []).append(done)
                progress(
                    f"{name}, {contender.name}, seed {seed}: p90 {reading.ttft_p90_ms:.0f} ms,"
                    f" {done.ratio:.2f} times the simulated one"
                )
    return [
        Agreement(scenario=scenario, policy=policy, rounds=rounds)
        for (scenario, policy), rounds in found.items()
    ]


def simulate(scenario: Scenario, contender: Contender, seed: int) -> list[Reading]:
    """Run on the virtual clock, several times with slightly later arrivals."""
    readings = []
    for delays in range(SIMULATED_RUNS):
        outcome = Simulation(
            engines=scenario.engines,
            traffic=delayed(scenario.workload(seed), delays),
            make_router=lambda servers, loop: contender.make_router(
                servers, loop, seed=seed, mode=Mode.LEAN, scrape_interval_seconds=_SCRAPE_SECONDS
            ),
            faults=scenario.faults,
            seed=seed,
        ).run()
        summary = summarise(outcome.records)
        readings.append(
            Reading(
                ttft_p50_ms=_ms(summary, "p50"),
                ttft_p90_ms=_ms(summary, "p90"),
                hit_rate=summary.hit_rate or 0.0,
            )
        )
    return readings


def delayed(workload: Workload, seed: int) -> Workload:
    """Return the workload with requests that come up to `MAX_DELAY_SECONDS` later."""

    def conversations() -> Iterator[list[TrafficRequest]]:
        rng = Random(seed)
        latest = 0.0
        for first, *others in workload.conversations():
            arrives_at = (first.arrives_at or 0.0) + rng.uniform(0, MAX_DELAY_SECONDS)
            latest = max(latest, arrives_at)
            yield [
                structs.replace(first, arrives_at=latest),
                *(
                    structs.replace(
                        other, think_seconds=other.think_seconds + rng.uniform(0, MAX_DELAY_SECONDS)
                    )
                    for other in others
                ),
            ]

    return replace(workload, conversations=conversations)


async def live(path: Path, scenario: Scenario, contender: Contender, seed: int) -> LiveReading:
    """Run with `epp fleet`, `epp serve`, Envoy and the load generator of this process."""
    options = ["--allow-experimental-plugins", "--seed", str(seed)]
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-bench-")))
        if contender.config is not None:
            options += ["--config-file", str(contender.config)]
        fleet = await stack.enter_async_context(_fleet(path, folder))
        options += ["--endpoints-file", str(fleet.endpoints_file)]
        epp = await stack.enter_async_context(processes.epp((), *options))
        envoy = await stack.enter_async_context(gateways.gateway(Mode.LEAN, fleet.endpoints, epp))
        plan = LoadPlan(
            url=await gateways.url_of(envoy),
            model=_MODEL,
            workload=scenario.workload(seed),
            ignore_eos=True,
            seed=seed,
        )
        await asyncio.sleep(_SETTLE_SECONDS)
        pids = {"fleet": fleet.pid, "EPP": epp.pid, "Envoy": envoy.pid}
        before = {name: CpuReading.of(pid) for name, pid in pids.items()}
        report = await run(plan)
        shares = {name: CpuReading.of(pid).share_since(before[name]) for name, pid in pids.items()}
        stats = json.loads(await _page(f"{fleet.control}/lab/stats"))
        served = await _page(f"{fleet.control}/lab/requests")
    accounts = server_accounts(served.splitlines(), "/lab/requests")
    outside = Distribution.of_seconds(
        record.ttft_seconds - (server.first_token_at - server.arrived_at)
        for record in joined_records(report.records, servers=accounts)
        if record.ttft_seconds is not None
        and (server := record.server) is not None
        and server.first_token_at is not None
        and server.arrived_at is not None
    )
    return LiveReading(
        ttft_p50_ms=_ms(report, "p50"),
        ttft_p90_ms=_ms(report, "p90"),
        hit_rate=report.hit_rate or 0.0,
        outside_p50_ms=value_of(outside, "p50") or 0.0,
        outside_p90_ms=value_of(outside, "p90") or 0.0,
        lag_p99_ms=stats["lag_p99_seconds"] * 1000,
        cpu_shares=shares,
        why_invalid=why_invalid(report, stats),
    )


def why_invalid(report: Report, stats: dict[str, Any]) -> str:
    reasons = [
        f"the fleet was the bottleneck: {stats['bottleneck']}" if stats["bottleneck"] else "",
        report.generator.bottleneck,
        f"{report.failed} of {report.sent} requests failed" if report.failed else "",
    ]
    return "; ".join(filter(None, reasons))


@contextlib.asynccontextmanager
async def _fleet(scenario: Path, folder: Path) -> AsyncIterator[Fleet]:
    """Run the servers of a scenario."""
    file = folder / "endpoints.json"
    options = ("--scenario", scenario, "--control-port", "0", "--write-endpoints", file)
    command = ("-m", "epp", "fleet", *map(str, options))
    async with processes.process(*command, stdout=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        async with asyncio.timeout(processes.START_SECONDS):
            line = (await process.stdout.readline()).decode()
        if not line.startswith("control: "):
            raise RuntimeError(f"epp fleet --scenario {scenario} has not started: {line!r}")
        entries = json.loads(file.read_text())["endpoints"]
        yield Fleet(
            process.pid,
            [f"{entry['address']}:{entry['port']}" for entry in entries],
            file,
            line.removeprefix("control: ").partition("/lab/")[0],
        )


async def _page(url: str) -> bytes:
    def read() -> bytes:
        with urllib.request.urlopen(url, timeout=10) as page:
            content: bytes = page.read()
        return content

    return await asyncio.to_thread(read)


def _ms(summary: Summary, name: str) -> float:
    """Return a percentile of the TTFT; infinite if no request got a token."""
    value = value_of(summary.ttft_ms, name)
    return float("inf") if value is None else value

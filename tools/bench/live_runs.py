"""Live runs of a scenario: all processes of a gateway in front of a fake fleet, on this machine."""

import asyncio
import contextlib
import json
import os
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epp.lab import simulation
from epp.lab.envoy import EnvoyProcess, Mode
from epp.lab.load import LoadPlan, Report, run
from epp.lab.results import Distribution, Record, joined_records, server_accounts
from epp.lab.results.distribution import value_of
from epp.lab.scenarios import LabScenario, load_scenario
from epp.lab.simulation import Contender
from tools.bench import gateways, processes
from tools.bench.agreement import LiveReading, Reading
from tools.bench.cpu_time import CpuReading

REFERENCE_WEIGHTED = Contender.of_policy("reference-weighted")
"""What epp serve does without a configuration."""
REFERENCE_AFFINITY = Contender(
    "reference-affinity", Path(simulation.__file__).with_name("reference-affinity.yaml")
)
ROUND_ROBIN = Contender.of_policy("round-robin")
"""Live, Envoy's own round robin without an endpoint picker."""
MODEL = "tiny"
"""What requests name."""
_SETTLE_SECONDS = 0.5
"""Until all servers have been scraped."""


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario, and its file for other processes."""

    path: Path
    scenario: LabScenario

    @classmethod
    def of_file(cls, path: Path) -> "Case":
        """Read a file.

        Raises:
            ScenarioError: It cannot be read, or a field is invalid.
        """
        return cls(path, load_scenario(path))


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

    async def stats(self) -> dict[str, Any]:
        """Return the page `/lab/stats`."""
        page: dict[str, Any] = json.loads(await _page(f"{self.control}/lab/stats"))
        return page

    async def requests(self) -> bytes:
        """Return the page `/lab/requests`: JSON lines of the requests that have ended."""
        return await _page(f"{self.control}/lab/requests")


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway in front of its fleet."""

    url: str
    fleet: Fleet
    pids: Mapping[str, int]
    """Processes by name."""


async def live(case: Case, contender: Contender, seed: int) -> LiveReading:
    """Run with `epp fleet`, `epp serve`, Envoy and the load generator of this process.

    Args:
        case: The scenario; requests of its warm-up are sent, and not counted.
        contender: A file of the endpoint picker's configuration, or one of those above.
        seed: Of the traffic and of the endpoint picker.

    Raises:
        ValueError: The contender is another policy, which only a simulation has.
        RuntimeError: A process has not started.
    """
    scenario = case.scenario
    async with running(case, contender, seed) as gateway:
        plan = LoadPlan(
            url=gateway.url,
            model=MODEL,
            workload=scenario.workload(seed),
            ignore_eos=True,
            seed=seed,
            timeout_seconds=scenario.timeout_seconds,
        )
        before = {name: CpuReading.of(pid) for name, pid in gateway.pids.items()}
        report = await run(plan)
        shares = {
            name: CpuReading.of(pid).share_since(before[name]) for name, pid in gateway.pids.items()
        }
        stats = await gateway.fleet.stats()
        served = await gateway.fleet.requests()
    outside = _outside(report.records, served)
    reading = Reading.of(report.records, scenario.warm_up_seconds)
    return LiveReading(
        ttft_p50_ms=reading.ttft_p50_ms,
        ttft_p90_ms=reading.ttft_p90_ms,
        hit_rate=reading.hit_rate,
        outside_p50_ms=value_of(outside, "p50") or 0.0,
        outside_p90_ms=value_of(outside, "p90") or 0.0,
        lag_p99_ms=stats["lag_p99_seconds"] * 1000,
        late_p99_ms=value_of(report.schedule_delay_ms, "p99") or 0.0,
        load_average=os.getloadavg()[0],
        cpu_shares={**shares, "generator": report.generator.cpu_share},
        why_invalid=why_invalid(report, stats),
    )


def why_invalid(report: Report, stats: Mapping[str, Any]) -> str:
    """Return why a run shows the machine and not the gateway; "" if it does not.

    Args:
        report: Of the load generator.
        stats: Page `/lab/stats` of the fleet.
    """
    reasons = [
        f"the fleet was the bottleneck: {stats['bottleneck']}" if stats["bottleneck"] else "",
        report.generator.bottleneck,
        f"{report.failed} of {report.sent} requests failed" if report.failed else "",
    ]
    return "; ".join(filter(None, reasons))


@contextlib.asynccontextmanager
async def running(case: Case, contender: Contender, seed: int) -> AsyncIterator[Gateway]:
    """Run `epp fleet`, `epp serve` and Envoy until the block ends; all servers have been scraped.

    Args:
        case: The scenario, of which the fleet takes its servers and faults.
        contender: A file of the endpoint picker's configuration, or one of those above.
        seed: Of the endpoint picker.

    Raises:
        ValueError: The contender is another policy, which only a simulation has.
        RuntimeError: A process has not started.
    """
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-bench-")))
        fleet = await stack.enter_async_context(_fleet(case.path, folder))
        pids = {"fleet": fleet.pid}
        envoy = await _envoy(stack, fleet, contender, seed, pids)
        url = await gateways.url_of(envoy)
        await asyncio.sleep(_SETTLE_SECONDS)
        yield Gateway(url, fleet, pids)


async def _envoy(
    stack: contextlib.AsyncExitStack,
    fleet: Fleet,
    contender: Contender,
    seed: int,
    pids: dict[str, int],
) -> EnvoyProcess:
    """Start Envoy, and behind it the endpoint picker if the contender is one; note their pids."""
    if contender == ROUND_ROBIN:
        alone = EnvoyProcess(gateways.without_ext_proc(fleet.endpoints, Mode.LEAN))
        envoy = await stack.enter_async_context(alone)
    elif contender.config is not None or contender == REFERENCE_WEIGHTED:
        options = [
            *("--allow-experimental-plugins", "--seed", str(seed)),
            *("--endpoints-file", str(fleet.endpoints_file)),
        ]
        if contender.config is not None:
            options += ["--config-file", str(contender.config)]
        epp = await stack.enter_async_context(processes.epp((), *options))
        pids["EPP"] = epp.pid
        envoy = await stack.enter_async_context(gateways.gateway(Mode.LEAN, fleet.endpoints, epp))
    else:
        raise ValueError(f"policy {contender.name!r} exists in simulations only")
    pids["Envoy"] = envoy.pid
    return envoy


def _outside(records: Sequence[Record], served: bytes) -> Distribution | None:
    """Return the part of the TTFT that was not spent in the model server."""
    accounts: Mapping[str, Any] = server_accounts(served.splitlines(), "/lab/requests")
    return Distribution.of_seconds(
        record.ttft_seconds - (server.first_token_at - server.arrived_at)
        for record in joined_records(records, servers=accounts)
        if record.ttft_seconds is not None
        and (server := record.server) is not None
        and server.first_token_at is not None
        and server.arrived_at is not None
    )


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
        entries = json.loads(await asyncio.to_thread(file.read_text))["endpoints"]
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

"""Runs of a scenario for `agreement`: live, with all processes of a gateway, and simulated."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from msgspec import structs

from epp.lab.envoy import Mode
from epp.lab.scenarios import LabScenario
from epp.lab.simulation import Contender, Simulation, quiet_logs
from epp.lab.traffic import TrafficRequest, Workload
from tools.bench.agreement import Agreement, Reading, Round
from tools.bench.live_runs import REFERENCE_AFFINITY, REFERENCE_WEIGHTED, Case, live

FOLDER = Path(__file__).parent / "scenarios"
SCENARIOS = ("shared-prefix", "straggler", "heterogeneous")
CONTENDERS = (
    REFERENCE_WEIGHTED,
    REFERENCE_AFFINITY,
    Contender("random", FOLDER / "random.yaml"),
)
SIMULATED_RUNS = 8
"""For each live run."""
MAX_DELAY_SECONDS = 0.005
"""What a live request takes to its server, about."""
_SCRAPE_SECONDS = 0.05
"""As `epp serve` does by default."""


async def measure(
    seeds: Sequence[int], progress: Callable[[str], None], simulated_runs: int = SIMULATED_RUNS
) -> list[Agreement]:
    """Run all scenarios and policies.

    Args:
        seeds: Seeds of the traffic, one for each round.
        progress: Gets a line for each live run.
        simulated_runs: For each live run.
    """
    quiet_logs()
    found: dict[tuple[str, str], list[Round]] = {}
    cases = [Case.of_file(FOLDER / f"{name}.yaml") for name in SCENARIOS]
    for seed in seeds:
        for case in cases:
            async for contender, done in rounds(case, CONTENDERS, seed, simulated_runs):
                found.setdefault((case.scenario.name, contender.name), []).append(done)
                progress(progress_line(case, contender, seed, done))
    return [
        Agreement(scenario=scenario, policy=policy, rounds=each)
        for (scenario, policy), each in found.items()
    ]


async def rounds(
    case: Case, contenders: Sequence[Contender], seed: int, simulated_runs: int
) -> AsyncIterator[tuple[Contender, Round]]:
    """Yield one round of each contender; all run live at once.

    Args:
        case: The scenario.
        contenders: What to compare.
        seed: Of the traffic.
        simulated_runs: For each live run.
    """
    # All together use about one core; simulations would delay them.
    readings = await asyncio.gather(*(live(case, contender, seed) for contender in contenders))
    for contender, reading in zip(contenders, readings, strict=True):
        # A virtual loop cannot run inside a running one.
        simulated = await asyncio.to_thread(
            simulate, case.scenario, contender, seed, simulated_runs
        )
        yield contender, Round(live=reading, simulated=simulated)


def progress_line(case: Case, contender: Contender, seed: int, done: Round) -> str:
    """Return what a round has found, and why its live run does not count."""
    line = (
        f"{case.scenario.name}, {contender.name}, seed {seed}: p90 {done.live.ttft_p90_ms:.0f} ms,"
        f" {done.ratio:.2f} times the simulated one"
    )
    return f"{line}; not valid: {done.live.why_invalid}" if done.live.why_invalid else line


def simulate(scenario: LabScenario, contender: Contender, seed: int, runs: int) -> list[Reading]:
    """Run on the virtual clock, `runs` times with slightly later arrivals."""
    readings = []
    for delays in range(runs):
        outcome = Simulation(
            engines=scenario.engines,
            traffic=delayed(scenario.workload(seed), delays),
            make_router=lambda servers, loop: contender.make_router(
                servers, loop, seed=seed, mode=Mode.LEAN, scrape_interval_seconds=_SCRAPE_SECONDS
            ),
            faults=scenario.faults,
            seed=seed,
            timeout_seconds=scenario.timeout_seconds,
        ).run()
        readings.append(Reading.of(outcome.records, scenario.warm_up_seconds))
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

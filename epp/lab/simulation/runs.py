"""Runs of a scenario: every contender with every seed, in several processes."""

import multiprocessing
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import structlog

from epp.lab.envoy import Mode
from epp.lab.results import Record, Summary, summarise
from epp.lab.scenarios import LabScenario
from epp.lab.simulation.contenders import Contender
from epp.lab.simulation.replicas import ONE_REPLICA, ReplicaPlan
from epp.lab.simulation.simulation import Simulation, SimulationResult

_ERROR = 40
"""Lowest level at which the endpoint picker's messages are logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings that all runs of a comparison share."""

    scenario: LabScenario
    mode: Mode = Mode.LEAN
    """Which parts of a response the gateway sends to the endpoint picker."""
    scrape_interval_seconds: float = 0.05
    """As ``--refresh-metrics-interval``."""
    hedging_budget_percent: int = 0
    """As ``--hedging-budget``; 0 for a gateway without hedging."""
    objects: Sequence[Path] = ()
    """Files or folders of objectives and rewrites, as ``--objects``."""
    replicas: ReplicaPlan = ONE_REPLICA
    """How many replicas of the endpoint picker decide."""
    has_oracle: bool = False
    """Record the best choice for each request, given the real state of the servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """One finished run."""

    contender: Contender
    seed: int
    summary: Summary
    """Of the requests after the warm-up."""
    virtual_seconds: float
    """Length on the virtual clock."""
    cpu_seconds: float
    """CPU time that it took."""
    records: Sequence[Record]
    """All requests, those of the warm-up included."""


def simulate(settings: RunSettings, contender: Contender, seed: int) -> SimulationResult:
    """Run a scenario with one contender and one seed.

    Raises:
        ConfigError: The configuration is invalid.
        ObjectFileError: A file of objects is invalid.
        TrafficError: The traffic is invalid.
        VirtualLoopError: A plugin needs a socket.
    """
    scenario = settings.scenario
    return Simulation(
        engines=scenario.engines,
        labels=scenario.labels,
        traffic=scenario.workload(seed),
        make_router=lambda servers, loop: contender.make_router(
            servers,
            loop,
            seed=seed,
            mode=settings.mode,
            scrape_interval_seconds=settings.scrape_interval_seconds,
            hedging_budget_percent=settings.hedging_budget_percent,
            objects=settings.objects,
            replicas=settings.replicas,
        ),
        faults=scenario.faults,
        seed=seed,
        has_oracle=settings.has_oracle,
        make_servers=contender.make_servers,
        network_delay_seconds=scenario.network_delay_seconds,
        timeout_seconds=scenario.timeout_seconds,
    ).run()


def run(settings: RunSettings, contender: Contender, seed: int) -> FinishedRun:
    """Run once and summarise; see :func:`simulate`."""
    outcome = simulate(settings, contender, seed)
    scenario = settings.scenario
    counted = [each for each in outcome.records if each.started_at >= scenario.warm_up_seconds]
    return FinishedRun(
        contender=contender,
        seed=seed,
        summary=summarise(
            counted,
            scenario.slo,
            elapsed_seconds=max(0.0, outcome.virtual_seconds - scenario.warm_up_seconds),
            workers=[f"worker-{index}" for index in range(len(scenario.engines))],
        ),
        virtual_seconds=outcome.virtual_seconds,
        cpu_seconds=outcome.cpu_seconds,
        records=outcome.records,
    )


def run_all(
    settings: RunSettings,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    *,
    jobs: int,
    finished: Callable[[FinishedRun], None],
) -> list[FinishedRun]:
    """Run every contender with every seed.

    Args:
        settings: The scenario.
        contenders: The contenders to compare.
        seeds: Seeds; runs of the same seed have the same traffic.
        jobs: Number of processes; 1 for this one.
        finished: Called after each run.

    Returns:
        The runs, ordered by contender and seed.
    """
    tasks = [(contender, seed) for seed in seeds for contender in contenders]
    runs: dict[tuple[str, int], FinishedRun] = {}

    def note(done: FinishedRun) -> None:
        runs[done.contender.name, done.seed] = done
        finished(done)

    if jobs <= 1 or len(tasks) == 1:
        for contender, seed in tasks:
            note(run(settings, contender, seed))
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(jobs, len(tasks)), context, initializer=quiet_logs) as pool:
            try:
                waiting = [pool.submit(run, settings, *task) for task in tasks]
                for future in as_completed(waiting):
                    note(future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [runs[contender.name, seed] for contender in contenders for seed in seeds]


def summaries(runs: Iterable[FinishedRun]) -> Mapping[str, Mapping[int, Summary]]:
    """Return the summaries by contender and seed, as a comparison takes them."""
    table: dict[str, dict[int, Summary]] = {}
    for each in runs:
        table.setdefault(each.contender.name, {})[each.seed] = each.summary
    return table


def quiet_logs() -> None:
    """Log only errors of the endpoint picker, on standard error."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(_ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )

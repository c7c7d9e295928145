"""Run a load plan and report the results."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from epp.lab.load.conversations import ConversationDriver
from epp.lab.load.generator import CpuUsage
from epp.lab.load.plan import LoadPlan
from epp.lab.load.prompts import Prompts, arrival_offsets
from epp.lab.load.report import Report
from epp.lab.load.request_sender import HttpRequestSender
from epp.lab.load.schedule import RequestSender, RunState, closed_loop, open_loop
from epp.lab.load.workload_source import WorkloadSource

PROGRESS_INTERVAL_SECONDS = 0.2
"""Interval between calls of the progress function."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run."""

    elapsed_seconds: float
    """Time since the start."""
    sent: int
    """Requests sent."""
    finished: int
    """Finished requests, failed ones included."""
    failed: int
    """Finished requests with an error."""
    in_flight: int
    """Requests sent and not finished."""
    missed: int = 0
    """Finished requests that missed the plan's objectives."""
    has_ended: bool = False
    """Whether the run has ended, or has been cancelled."""


async def run(
    plan: LoadPlan,
    *,
    progress: Callable[[Progress], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    rng: Random | None = None,
    sender: RequestSender | None = None,
) -> Report:
    """Run `plan` and return a report; failed requests do not end the run.

    Cancellation (Ctrl-C) ends the run at once: `run` does not raise CancelledError, but returns a
    report of the finished requests that is marked `interrupted`.

    Args:
        plan: The settings of the run.
        progress: Called every `PROGRESS_INTERVAL_SECONDS` and at the end.
        clock: Monotonic time in seconds; not the loop's time, which uvloop rounds to milliseconds.
        rng: Source of all randomness; by default seeded with the plan's seed.
        sender: Sends a request and records the response; by default over HTTP.
    """
    rng = rng or Random(plan.seed)  # noqa: S311 - reproducible load, not secrets
    arrivals_rng = Random(rng.getrandbits(64))  # noqa: S311
    workload_source = WorkloadSource(plan)
    source = workload_source if plan.workload else Prompts(plan, rng)
    http = HttpRequestSender(plan, source, clock=clock) if sender is None else None
    chosen = sender or http
    assert chosen is not None  # noqa: S101 - one of the two was made
    ledger = RunState(started_at=clock(), slo=plan.slo if plan.slo.is_set else None)
    loop: Callable[[], Coroutine[None, None, None]]
    if plan.workload is not None:
        loop = ConversationDriver(
            plan.workload,
            workload_source,
            chosen,
            ledger,
            clock=clock,
            duration_seconds=plan.duration_seconds,
        ).run
    elif plan.concurrency is not None:
        loop = partial(closed_loop, plan, chosen, ledger, clock)
    else:
        loop = partial(open_loop, arrival_offsets(plan, arrivals_rng), chosen, ledger, clock)
    interrupted = False
    usage = CpuUsage(clock)
    try:
        await _drive(loop, ledger, clock, progress)
    except asyncio.CancelledError:
        interrupted = True
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
    finally:
        elapsed_seconds = clock() - ledger.started_at
        cpu_share, waiting_share = usage.shares()
        if http is not None:
            await http.aclose()
    if progress is not None:
        progress(replace(_snapshot(ledger, clock), has_ended=True))
    return Report.from_records(
        plan,
        ledger.records,
        sent=ledger.sent,
        elapsed_seconds=elapsed_seconds,
        peak_in_flight=ledger.peak_in_flight,
        interrupted=interrupted,
        cpu_share=cpu_share,
        waiting_share=waiting_share,
    )


async def _drive(
    loop: Callable[[], Coroutine[None, None, None]],
    ledger: RunState,
    clock: Callable[[], float],
    progress: Callable[[Progress], None] | None,
) -> None:
    async with asyncio.TaskGroup() as group:
        ticker = None
        if progress is not None:
            ticker = group.create_task(_tick(ledger, clock, progress), name="load-progress")
        await loop()
        if ticker is not None:
            ticker.cancel()


async def _tick(
    ledger: RunState, clock: Callable[[], float], progress: Callable[[Progress], None]
) -> None:
    while True:
        progress(_snapshot(ledger, clock))
        await asyncio.sleep(PROGRESS_INTERVAL_SECONDS)


def _snapshot(ledger: RunState, clock: Callable[[], float]) -> Progress:
    return Progress(
        elapsed_seconds=clock() - ledger.started_at,
        sent=ledger.sent,
        finished=len(ledger.records),
        failed=ledger.failed,
        in_flight=ledger.in_flight,
        missed=ledger.missed,
    )

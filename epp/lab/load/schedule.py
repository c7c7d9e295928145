"""When requests are sent: by a closed loop of clients, or at scheduled times in an open loop.

Both loops call a `RequestSender` for each request and keep the returned records in a `RunState`. A
sender reports failures in its record; an exception from a sender is a bug and ends the run.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from epp.lab.load.plan import LoadPlan
from epp.lab.results.record import ErrorKind, Record
from epp.lab.results.slo import Slo

UNCONNECTED_PAUSE_SECONDS = 0.1
"""Delay before a closed-loop client sends again after a failure to connect."""

UNCONNECTED = frozenset({ErrorKind.REFUSED, ErrorKind.CONNECT})
"""Errors without a connection."""


class RequestSender(Protocol):
    """Sends a request and records the response."""

    async def __call__(self, index: int, scheduled_at: float, run_started_at: float) -> Record:
        """Send request `index`, due `scheduled_at` seconds after `run_started_at`."""


@dataclass(slots=True, eq=False)
class RunState:
    """The state of a run."""

    started_at: float
    """Clock time of the start in seconds."""
    records: list[Record] = field(default_factory=list)
    """Finished requests in the order of completion."""
    sent: int = 0
    """Requests sent."""
    failed: int = 0
    """Finished requests with an error."""
    left_early: int = 0
    """Finished requests that the client aborted on purpose (`abort_share`)."""
    peak_in_flight: int = 0
    """Maximum number of requests in flight."""
    slo: Slo | None = None
    """Objectives that `missed` counts; None for none."""
    missed: int = 0
    """Finished requests that missed an objective."""

    @property
    def in_flight(self) -> int:
        """Requests sent and not finished."""
        return self.sent - len(self.records)

    def begin(self) -> int:
        """Count a request as sent and return its index."""
        index = self.sent
        self.sent += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        return index

    def finish(self, record: Record) -> None:
        """Add the record of a finished request."""
        self.records.append(record)
        self.failed += record.error is not None
        self.left_early += record.left_early
        if self.slo is not None:
            self.missed += not (record.left_early or self.slo.is_met(record))


async def closed_loop(
    plan: LoadPlan, sender: RequestSender, ledger: RunState, clock: Callable[[], float]
) -> None:
    """Run `concurrency` clients; each sends its next request when the previous one is finished."""

    def may_send() -> bool:
        if plan.requests is not None:
            return ledger.sent < plan.requests
        assert plan.duration_seconds is not None  # noqa: S101 - the plan has one of the two
        return clock() - ledger.started_at < plan.duration_seconds

    async def client() -> None:
        while may_send():
            due = clock() - ledger.started_at
            record = await sender(ledger.begin(), due, ledger.started_at)
            ledger.finish(record)
            if record.error in UNCONNECTED:
                # A refused connection fails at once; without a pause other tasks would starve.
                await asyncio.sleep(UNCONNECTED_PAUSE_SECONDS)

    clients = min(plan.concurrency or 1, plan.requests or plan.concurrency or 1)
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(), name=f"load-client-{number}")


async def open_loop(
    offsets: Iterator[float], sender: RequestSender, ledger: RunState, clock: Callable[[], float]
) -> None:
    """Send a request at each offset (seconds after the start), each in its own task.

    Slow responses do not delay later requests. If the generator itself is too slow, the difference
    of `Record.started_at` and `Record.scheduled_at` grows.
    """

    async def send(index: int, offset: float) -> None:
        ledger.finish(await sender(index, offset, ledger.started_at))

    async with asyncio.TaskGroup() as group:
        for offset in offsets:
            delay = ledger.started_at + offset - clock()
            # Sleep even when late: the event loop must run to read responses.
            await asyncio.sleep(max(0.0, delay))
            index = ledger.begin()
            group.create_task(send(index, offset), name=f"load-request-{index}")

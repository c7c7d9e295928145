"""When requests are sent: by a closed loop of clients, or at scheduled times in an open loop.

Both loops call a `RequestSender` for each request and keep the returned records in a `Ledger`. A
sender reports failures in its record; an exception from a sender is a bug and ends the run.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from epp.lab.load.plan import LoadPlan
from epp.lab.load.record import ErrorKind, Record

UNCONNECTED_PAUSE_SECONDS = 0.1
"""Time until a client of a closed loop tries again after it could not connect."""

_UNCONNECTED = frozenset({ErrorKind.REFUSED, ErrorKind.CONNECT})


class RequestSender(Protocol):
    """Sends a request and records the response."""

    async def __call__(self, index: int, scheduled_at: float, run_started_at: float) -> Record:
        """Send request `index`, due `scheduled_at` seconds after `run_started_at`."""


@dataclass(slots=True, eq=False)
class Ledger:
    """What has happened so far."""

    started_at: float
    """Clock time of the start in seconds."""
    records: list[Record] = field(default_factory=list)
    """Finished requests in the order of their end."""
    sent: int = 0
    """Requests begun."""
    failed: int = 0
    """Finished requests with an error."""
    left_early: int = 0
    """Finished requests whose client left on purpose."""
    peak_in_flight: int = 0
    """Most requests in flight at one time."""

    @property
    def in_flight(self) -> int:
        """Requests begun and not finished."""
        return self.sent - len(self.records)

    def begin(self) -> int:
        """Number of the next request, which counts as sent."""
        index = self.sent
        self.sent += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        return index

    def finish(self, record: Record) -> None:
        """Keeps the record of a finished request."""
        self.records.append(record)
        self.failed += record.error is not None
        self.left_early += record.left_early


async def closed_loop(
    plan: LoadPlan, sender: RequestSender, ledger: Ledger, clock: Callable[[], float]
) -> None:
    """`concurrency` clients, each sending its next request when its last one has ended."""

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
            if record.error in _UNCONNECTED:
                # That may have taken no time: trying again at once would leave none to others.
                await asyncio.sleep(UNCONNECTED_PAUSE_SECONDS)

    clients = min(plan.concurrency or 1, plan.requests or plan.concurrency or 1)
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(), name=f"load-client-{number}")


async def open_loop(
    offsets: Iterator[float], sender: RequestSender, ledger: Ledger, clock: Callable[[], float]
) -> None:
    """One request per offset (seconds after the start), each in a task of its own.

    A slow answer delays no later request. What does is this process being too slow; that shows as
    the difference of `Record.started_at` and `Record.scheduled_at`.
    """

    async def send(index: int, offset: float) -> None:
        ledger.finish(await sender(index, offset, ledger.started_at))

    async with asyncio.TaskGroup() as group:
        for offset in offsets:
            delay = ledger.started_at + offset - clock()
            # Behind schedule it still yields, or answers would not be read.
            await asyncio.sleep(max(0.0, delay))
            index = ledger.begin()
            group.create_task(send(index, offset), name=f"load-request-{index}")

"""A closed loop of callers around flow control; each sends its next request at once.

As in the Go EPP's benchmark, a slot is released as soon as its request has been dispatched, so that
the benchmark measures flow control and not the model servers.
"""

import asyncio
import gc
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Protocol

from epp.flow_control import SaturationDetector
from epp.scheduling import Endpoint

Went = Callable[[object], None]
"""Called when a request goes to an endpoint, with the handle that ends it."""

_ZIPF = 1.1
_SIZES = (100, 9_000)
"""Bytes of a body, from and to."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One load."""

    limit: int
    """Maximum requests in flight; 0 for no limit."""
    bands: int
    flows: int
    """0 for one of its own for every request."""
    callers: int


@dataclass(frozen=True, slots=True)
class Readings:
    """Results of one run of a cell."""

    per_second: float
    """Dispatches in a second of CPU time."""
    latencies: Sequence[float]
    """Seconds from a slot that is given back to the dispatch of the next that waits, in order."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be sent."""

    priority: int
    flow: str
    body_bytes: int


def asks(cell: Cell, count: int, seed: int) -> list[Ask]:
    """Return ``count`` requests: flows by Zipf's law, priorities and sizes evenly."""
    rng = random.Random(seed)
    flows: Sequence[int] = range(count)
    if cell.flows:
        weights = list(accumulate((n + 1) ** -_ZIPF for n in range(cell.flows)))
        flows = rng.choices(range(cell.flows), cum_weights=weights, k=count)
    return [Ask(rng.randrange(cell.bands), f"flow-{flow}", rng.randint(*_SIZES)) for flow in flows]


class Egress(SaturationDetector):
    """A detector that is full at a number of requests in flight."""

    type: ClassVar[str] = "bench-egress"

    def __init__(self, limit: int) -> None:
        self.name = self.type
        self.limit = limit
        self.in_flight = 0

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        return self.in_flight / self.limit if self.limit else 0.0


class Gate(Protocol):
    """Entry point for requests."""

    def prepare(self, asked: Sequence[Ask]) -> None:
        """Make the requests, which takes time that does not count."""

    def send(self, number: int, went: Went) -> None:
        """Send the request of that number."""

    def end(self, handle: object) -> None:
        """End the request whose handle ``went`` has received."""

    def give_up(self) -> None:
        """Let nothing wait any more."""


class Callers:
    """A number of callers at one gate.

    Args:
        gate: Where their requests go in.
        egress: Gets the number of requests in flight.
        cell: The load.
    """

    def __init__(self, gate: Gate, egress: Egress, cell: Cell) -> None:
        self._gate = gate
        self._egress = egress
        self._cell = cell
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._is_over = self._is_sending = False
        self._first = self._last = self._went_count = self._number = 0
        self._freed: deque[float] = deque()
        self._latencies: list[float] = []
        self._began = self._ended = 0.0

    async def run(self, dispatches: int, *, uncounted: int = 0, seed: int = 0) -> Readings:
        """Return what ``dispatches`` came to; what waits in the end is given up.

        Args:
            dispatches: How many count.
            uncounted: How many there are before them, besides those that begin.
            seed: Of the choices.

        Raises:
            RuntimeError: A request was turned away.
        """
        at_once = min(self._cell.limit or self._cell.callers, self._cell.callers)
        self._first = at_once + uncounted
        self._last = self._first + dispatches
        self._gate.prepare(asks(self._cell, self._last + self._cell.callers, seed))
        gc.collect()
        gc.freeze()  # what is sent was made beforehand, and is not to be looked at all the time
        try:
            for _ in range(self._cell.callers):
                self._send()
            if not uncounted:
                self._began = time.process_time()
            await self._done
        finally:
            gc.unfreeze()
            self._is_over = True
            self._gate.give_up()
        return Readings(dispatches / (self._ended - self._began), sorted(self._latencies))

    def _send(self) -> None:
        number, self._number = self._number, self._number + 1
        self._is_sending = True
        self._gate.send(number, self._went)
        self._is_sending = False

    def _went(self, handle: object) -> None:
        if self._is_over:
            return
        if isinstance(handle, Exception):
            self._done.set_exception(RuntimeError(f"a request was not dispatched: {handle}"))
            self._is_over = True
            return
        self._egress.in_flight += 1
        count = self._went_count = self._went_count + 1
        if self._freed:
            freed_at = self._freed.popleft()
            if not self._is_sending and self._first < count <= self._last:
                self._latencies.append(time.perf_counter() - freed_at)
        if count == self._first:
            self._began = time.process_time()
        elif count == self._last:
            self._ended = time.process_time()
            self._done.set_result(None)
            self._is_over = True
        self._loop.call_soon(self._end, handle)

    def _end(self, handle: object) -> None:
        self._egress.in_flight -= 1
        self._freed.append(time.perf_counter())
        self._gate.end(handle)
        if not self._is_over:
            self._send()

"""Schedules reading: when sockets are read, and when connections handle what they have read.

A read of 256 KiB can complete thousands of requests whose bodies have arrived before; deciding them
all at once would block the event loop for seconds. So a connection handles what it has read for a
few milliseconds, then pauses reading and continues in a later iteration of the loop. Each iteration
continues with the connection that has used the least time, so that a connection with little to
handle does not wait behind one with a lot.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Flag, auto
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Final, Protocol

TURN_SECONDS: Final = 0.005
"""How long a connection may handle events before others do."""


class PauseReason(Flag):
    """Why a socket is not read."""

    OUTPUT = auto()
    """The peer does not read the control frames that it makes the server write."""
    TURN = auto()
    """Other sockets are read first."""
    BACKLOG = auto()
    """Bytes that were read have not been handled yet."""


class ReadPauses:
    """Pauses the reading of a socket until the last reason has ended."""

    def __init__(self, transport: asyncio.ReadTransport) -> None:
        self._transport = transport
        self.reasons = PauseReason(0)

    def begin(self, reason: PauseReason) -> None:
        """Pause reading."""
        if not self.reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self.reasons |= reason

    def end(self, reason: PauseReason) -> None:
        """Resume reading, if this was the only reason."""
        if reason in self.reasons:
            self.reasons &= ~reason
            if not self.reasons and not self._transport.is_closing():
                self._transport.resume_reading()


class Reader(Protocol):
    """A connection that may have read more than it could handle at once."""

    virtual_seconds: float
    """Virtual time at which it is served next; 0.0 at first."""

    def handle_more(self) -> bool:
        """Handle more, for :data:`TURN_SECONDS` at most; return whether some is left."""


class ReadBacklog:
    """Queue of connections that have read more than they could handle at once.

    It is a start-time fair queue (Goyal, Vin, Cheng, 1996): each connection has a virtual time that
    advances with the time it uses, and the one with the lowest is served next. A connection that
    returns begins at the virtual time of the one being served, so that it cannot save up turns.

    Args:
        clock: Monotonic seconds, with which connections limit their time. It must advance during a
            callback of the loop, which uvloop's own clock does not.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.waiting: list[tuple[float, int, Reader]] = []
        """A heap by virtual time, then by the time of arrival."""
        self._arrivals = count()
        self._now = 0.0
        self._is_scheduled = False

    def __len__(self) -> int:
        """Return the number of waiting connections."""
        return len(self.waiting)

    def precedes(self, reader: Reader) -> bool:
        """Return whether a waiting connection must be served before ``reader``."""
        waiting = self.waiting
        return bool(waiting) and waiting[0][0] <= max(reader.virtual_seconds, self._now)

    def add(self, reader: Reader, loop: asyncio.AbstractEventLoop) -> None:
        """Resume ``reader`` in later iterations of ``loop``, until nothing is left."""
        self._push(reader)
        self._schedule(loop)

    @contextmanager
    def charged(self, reader: Reader) -> Iterator[None]:
        """Count the time that ``reader`` uses inside."""
        began = self.clock()
        try:
            yield
        finally:
            used = self.clock() - began
            reader.virtual_seconds = max(reader.virtual_seconds, self._now) + used

    def _push(self, reader: Reader) -> None:
        reader.virtual_seconds = max(reader.virtual_seconds, self._now)
        heappush(self.waiting, (reader.virtual_seconds, next(self._arrivals), reader))

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.waiting and not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._resume, loop)

    def _resume(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        self._now, _, reader = heappop(self.waiting)
        try:
            with self.charged(reader):
                has_more = reader.handle_more()
            if has_more:
                self._push(reader)
        finally:
            self._schedule(loop)

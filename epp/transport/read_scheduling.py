"""Schedules reading: when sockets are read, and when connections handle what they have read.

A read of 256 KiB can complete thousands of requests whose bodies have arrived before; deciding them
all at once would block the event loop for seconds. So a connection handles what it has read for a
few milliseconds, then pauses reading and continues in a later iteration of the loop. Each iteration
continues with one connection, the longest-waiting one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Flag, auto
from time import monotonic


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


class ReadBacklog:
    """Queue of connections that have read more than they could handle at once.

    Args:
        clock: Monotonic seconds, with which connections limit their time. It must advance during a
            callback of the loop, which uvloop's own clock does not.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._waiting: deque[Callable[[], bool]] = deque()
        self._is_scheduled = False

    def __len__(self) -> int:
        """Return the number of waiting connections."""
        return len(self._waiting)

    def add(self, resume: Callable[[], bool], loop: asyncio.AbstractEventLoop) -> None:
        """Call ``resume`` in later iterations of ``loop``, until it returns False."""
        self._waiting.append(resume)
        self._schedule(loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._resume_next, loop)

    def _resume_next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        resume = self._waiting.popleft()
        try:
            if resume():
                self._waiting.append(resume)
        finally:
            self._schedule(loop)

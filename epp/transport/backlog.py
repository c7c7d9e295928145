"""Connections that have read more than one turn of the event loop has time for.

A read of 256 KiB can complete thousands of requests, whose bodies came before: deciding them all at
once would hold up everything else for seconds. So a connection handles what it has read for a few
milliseconds, is not read meanwhile, and goes on in a later turn. One connection goes on in each
turn, the one that has waited longest.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic


class Backlog:
    """Lets connections go on, one in each turn of the loop.

    Args:
        clock: Monotonic seconds, for how long a connection has gone on. It advances while a
            callback of the loop runs, which uvloop's own clock does not.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._waiting: deque[Callable[[], bool]] = deque()
        self._is_scheduled = False

    def __len__(self) -> int:
        """Return how many connections wait."""
        return len(self._waiting)

    def add(self, go_on: Callable[[], bool], loop: asyncio.AbstractEventLoop) -> None:
        """Call ``go_on`` in turns of ``loop`` to come, until it returns false."""
        self._waiting.append(go_on)
        self._schedule(loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        go_on = self._waiting.popleft()
        try:
            if go_on():
                self._waiting.append(go_on)
        finally:
            self._schedule(loop)

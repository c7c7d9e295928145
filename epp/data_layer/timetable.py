"""Starts many recurring actions with one timer.

With a timer for each of a hundred idle endpoints, the process wakes up for each of their scrapes,
and finds cold caches each time: a scrape then costs twice what it does among others. So an action
may allow to be started a little earlier, together with others. At most a few are started in one
step of the event loop, because requests wait meanwhile.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final

MAX_STARTS: Final = 16
"""Actions started in one step of the event loop. With 8, a thousand idle endpoints cost a fifth
more; 16 scrapes and their pages delay a request by a millisecond at most."""
RESOLUTION_SECONDS: Final = 0.001
"""Resolution of uvloop's timers, which may fire that much too early."""


class Timetable:
    """Actions and when they are due.

    Args:
        clock: Monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, float]] = []
        """When an action is due, its ticket, and how much earlier it may be started."""
        self._actions: dict[int, Callable[[], None]] = {}
        """By ticket; those that were removed are still in the heap."""
        self._tickets = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def add(self, at: float, action: Callable[[], None], *, slack_seconds: float = 0.0) -> int:
        """Start ``action`` once; return a ticket to remove it with.

        Args:
            at: When it is due, by the clock.
            action: What to start; it must neither wait nor raise.
            slack_seconds: How much earlier it may be started.
        """
        ticket = next(self._tickets)
        self._actions[ticket] = action
        heappush(self._heap, (at, ticket, slack_seconds))
        if at < self._timer_at:
            self._set_timer(at)
        return ticket

    def remove(self, ticket: int) -> None:
        """Remove an action that has not been started."""
        del self._actions[ticket]

    def clear(self) -> None:
        """Remove all actions."""
        self._actions.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = inf

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        seconds = max(0.0, at - self._clock())
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start_due)

    def _start_due(self) -> None:
        self._timer, self._timer_at = None, -inf  # actions that are added set no timer meanwhile
        heap, actions = self._heap, self._actions
        now = self._clock() + RESOLUTION_SECONDS
        started = 0
        while heap:
            at, ticket, slack_seconds = heap[0]
            action = actions.get(ticket)
            if action is not None and (started == MAX_STARTS or at - slack_seconds > now):
                break
            heappop(heap)
            if action is not None:
                del actions[ticket]
                action()
                started += 1
        self._timer_at = inf
        if heap:
            self._set_timer(heap[0][0])

"""Starts the recurring work of a process with one timer.

In a process that mostly waits, a wake-up costs 30 to 50 us, because the caches are cold: more than
the work that follows it. With a timer for each of a hundred endpoints, for the event loop's lag,
for stale metrics and for outlier detection, it would wake up for each of them. So an action may
allow an earlier start, together with others. At most a few are started in one step of the event
loop, because requests wait meanwhile.
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


def _ignore(late_seconds: float) -> None:
    """Do nothing."""


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
        """When the action is due that the timer is for; -inf while actions are started."""
        self._fires_at = inf
        """When the timer should fire; not before it was set, even if the action is overdue."""
        self._fired: Callable[[float], None] = _ignore

    @property
    def late_seconds(self) -> float:
        """Seconds by which the timer is overdue now; 0.0 if it is not. Thread-safe."""
        return max(0.0, self._clock() - self._fires_at)

    def watch(self, fired: Callable[[float], None] = _ignore) -> None:
        """Call ``fired`` with the seconds by which the timer is late whenever it fires.

        It replaces the previous function, and must neither wait nor raise.
        """
        self._fired = fired

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

    def add_after(
        self, seconds: float, action: Callable[[], None], *, slack_seconds: float = 0.0
    ) -> int:
        """Start ``action`` once after some seconds; see :meth:`add`."""
        return self.add(self._clock() + seconds, action, slack_seconds=slack_seconds)

    def remove(self, ticket: int) -> None:
        """Remove an action that has not been started."""
        del self._actions[ticket]

    async def wait(self, seconds: float, *, slack_seconds: float = 0.0) -> None:
        """Wait for ``seconds``, or up to ``slack_seconds`` less."""
        woken = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        ticket = self.add_after(seconds, wake, slack_seconds=slack_seconds)
        try:
            await woken
        finally:
            self._actions.pop(ticket, None)

    def clear(self) -> None:
        """Remove all actions."""
        self._actions.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = self._fires_at = inf

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = self._clock()
        self._timer_at, self._fires_at = at, max(at, now)
        self._timer = asyncio.get_running_loop().call_later(self._fires_at - now, self._fire)

    def _fire(self) -> None:
        self._timer, self._timer_at = None, -inf  # actions that are added set no timer meanwhile
        now = self._clock()
        try:
            self._fired(max(0.0, now - self._fires_at))
            self._start_due(now + RESOLUTION_SECONDS)
        finally:  # an action that raises nevertheless must not stop the others
            self._timer_at = self._fires_at = inf
            if self._heap:
                self._set_timer(self._heap[0][0])

    def _start_due(self, now: float) -> None:
        heap, actions = self._heap, self._actions
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

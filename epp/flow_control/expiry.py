"""When requests have waited too long: one timer for all of them, at the exact time."""

import asyncio
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from epp.flow_control.queues import QueuedRequest

_MOST_AT_ONCE = 64
"""After so many the loop has a turn: when a pool comes or goes, the time of all ends together, and
5 000 answers in a row held up everything else for 0.4 s."""


class Expiry:
    """Calls back for each request that still waits when its time is over; made in the event loop.

    Args:
        clock: Seconds, those of ``expires_at``.
        expired: Called with each.
    """

    def __init__(
        self, clock: Callable[[], float], expired: Callable[[QueuedRequest], None]
    ) -> None:
        self._clock = clock
        self._expired = expired
        self._heap: list[tuple[float, int, QueuedRequest]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def add(self, queued: QueuedRequest) -> None:
        """Watch a request, unless it may wait for ever."""
        if queued.expires_at is not None:
            heappush(self._heap, (queued.expires_at, queued.sequence, queued))
            self._arm()

    def forget(self, waiting: int) -> None:
        """Let go of those that wait no more, if they are most of what is held.

        Args:
            waiting: How many still wait.
        """
        if len(self._heap) > 2 * waiting + 64:
            self._heap = [entry for entry in self._heap if entry[2].is_waiting]
            heapify(self._heap)
        if not waiting:
            self._heap.clear()
            self._disarm()

    def replace(self, waiting: Iterable[QueuedRequest]) -> None:
        """Watch ``waiting`` and nobody else."""
        self._heap = [
            (each.expires_at, each.sequence, each)
            for each in waiting
            if each.expires_at is not None
        ]
        heapify(self._heap)
        self._disarm()
        self._arm()

    def _arm(self) -> None:
        if not self._heap:
            return
        due_at = self._heap[0][0]
        if self._timer is None or due_at < self._due_at:
            self._disarm()
            self._due_at = due_at
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due_at - self._clock()), self._ring)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        now = self._clock()
        left = _MOST_AT_ONCE
        try:
            while left and self._heap and self._is_over(now):
                queued = heappop(self._heap)[2]
                if queued.is_waiting:
                    left -= 1
                    self._expired(queued)
        finally:  # one whose end goes wrong must not keep the others waiting for ever
            self._arm()

    def _is_over(self, now: float) -> bool:
        expires_at, _, first = self._heap[0]
        return not first.is_waiting or expires_at <= now

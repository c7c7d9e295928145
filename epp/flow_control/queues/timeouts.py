"""Timeouts of waiting requests: the request's own limit, the band's, and one for an empty pool."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from epp.flow_control.queues.flows import QueuedRequest
from epp.flow_control.settings import BandSettings, FlowSettings
from epp.scheduling import Endpoint

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


def ttl_of(band: BandSettings, own_seconds: float | None) -> float | None:
    """Return how long a request may wait: what it says itself, but no longer than others may."""
    if own_seconds is None or band.ttl_seconds is None:
        return band.ttl_seconds if own_seconds is None else own_seconds
    return min(band.ttl_seconds, own_seconds)


class WaitingTimes:
    """When each request has waited too long; that begins anew as the pool becomes empty or not."""

    def __init__(
        self,
        pool: Callable[[], Sequence[Endpoint]],
        clock: Callable[[], float],
        expired: Callable[[QueuedRequest], None],
    ) -> None:
        self._pool = pool
        self._expiry = Expiry(clock, expired)
        self._settings: FlowSettings | None = None
        self.pool_is_empty = False
        self._regime_since = clock()

    def use(self, settings: FlowSettings) -> None:
        """Go over to other settings; requests that wait already keep their times."""
        self._settings = settings

    def pool_has_changed(self, now: float) -> bool:
        """Look whether there are endpoints; return whether that was otherwise before."""
        is_empty = not self._pool()
        if is_empty == self.pool_is_empty:
            return False
        self.pool_is_empty = is_empty
        self._regime_since = now
        return True

    def begin_anew(self, waiting: Sequence[QueuedRequest]) -> None:
        """Watch all that wait from now on, for there are endpoints again, or none any more."""
        for queued in waiting:
            queued.expires_at = self._expires_at(queued)
        self._expiry.replace(waiting)

    def add(self, queued: QueuedRequest) -> None:
        """Watch a request that begins to wait."""
        queued.expires_at = self._expires_at(queued)
        self._expiry.add(queued)

    def forget(self, waiting: int) -> None:
        """Let go of those that wait no more.

        Args:
            waiting: How many still wait.
        """
        self._expiry.forget(waiting)

    def _expires_at(self, queued: QueuedRequest) -> float | None:
        if queued.has_own_ttl and queued.ttl_seconds is not None:
            return queued.enqueued_at + queued.ttl_seconds
        assert self._settings is not None  # noqa: S101 - something waits
        full, empty = queued.ttl_seconds, self._settings.no_endpoint_ttl_seconds
        ttl = empty if self.pool_is_empty else full
        if ttl is None:
            return None
        expires_at = max(queued.enqueued_at, self._regime_since) + ttl
        if full is None or empty is None:
            return expires_at
        # Both times and no more: the one server of a pool may come and go for ever.
        return min(expires_at, queued.enqueued_at + full + empty)

"""Timeouts of waiting requests: the request's own, its band's, and one for an empty pool."""

import asyncio
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from epp.flow_control.flows import QueuedRequest
from epp.flow_control.interfaces import FlowHost
from epp.flow_control.settings import BandSettings, FlowSettings

_MAX_AT_ONCE = 64
"""Expired requests per turn of the event loop. When a pool appears or vanishes all timeouts end at
the same time, and 5 000 responses in a row blocked the loop for 0.4 s."""
_SPARE_ENTRIES = 64


def ttl_of(band: BandSettings, own_seconds: float | None) -> float | None:
    """Return the request's own TTL, limited by that of its band; None for no limit."""
    if own_seconds is None or band.ttl_seconds is None:
        return band.ttl_seconds if own_seconds is None else own_seconds
    return min(band.ttl_seconds, own_seconds)


class WaitingTimes:
    """Decides when requests expire; timeouts restart when the pool becomes empty or nonempty."""

    def __init__(self, host: FlowHost, settings: FlowSettings) -> None:
        self._host = host
        self._expiry = Expiry(host)
        self._settings = settings
        self.pool_is_empty = False
        self._regime_since = host.now()

    def use(self, settings: FlowSettings) -> None:
        """Apply other settings; requests that wait already keep their times."""
        self._settings = settings

    def pool_has_changed(self, now: float) -> bool:
        """Check for endpoints; return whether the pool has become empty, or no longer is."""
        is_empty = not self._host.pool()
        if is_empty == self.pool_is_empty:
            return False
        self.pool_is_empty = is_empty
        self._regime_since = now
        return True

    def restart(self, waiting: Sequence[QueuedRequest]) -> None:
        """Restart the timeouts of all waiting requests."""
        for queued in waiting:
            queued.expires_at = self._expires_at(queued)
        self._expiry.replace(waiting)

    def add(self, queued: QueuedRequest) -> None:
        """Start the timeout of a request."""
        queued.expires_at = self._expires_at(queued)
        self._expiry.add(queued)

    def compact(self, waiting: int) -> None:
        """Drop requests that left their queues, if they are most of the entries.

        Args:
            waiting: How many requests still wait.
        """
        self._expiry.compact(waiting)

    def _expires_at(self, queued: QueuedRequest) -> float | None:
        if queued.has_own_ttl and queued.ttl_seconds is not None:
            return queued.enqueued_at + queued.ttl_seconds
        full, empty = queued.ttl_seconds, self._settings.no_endpoint_ttl_seconds
        ttl = empty if self.pool_is_empty else full
        if ttl is None:
            return None
        expires_at = max(queued.enqueued_at, self._regime_since) + ttl
        if full is None or empty is None:
            return expires_at
        # The sum bounds the wait: a pool with one unstable server may change forever.
        return min(expires_at, queued.enqueued_at + full + empty)


class Expiry:
    """One timer for the timeouts of all requests, at the exact time of the next one."""

    def __init__(self, host: FlowHost) -> None:
        self._host = host
        self._heap: list[tuple[float, int, QueuedRequest]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def add(self, queued: QueuedRequest) -> None:
        """Watch a request, unless it has no timeout."""
        if queued.expires_at is not None:
            heappush(self._heap, (queued.expires_at, queued.sequence, queued))
            self._arm()

    def compact(self, waiting: int) -> None:
        """Drop requests that left their queues, if they are most of the entries."""
        if len(self._heap) > 2 * waiting + _SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[2].is_waiting]
            heapify(self._heap)
        if not waiting:
            self._heap.clear()
            self._disarm()

    def replace(self, waiting: Iterable[QueuedRequest]) -> None:
        """Replace the watched requests with ``waiting``."""
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
            self._timer = loop.call_later(max(0.0, due_at - self._host.now()), self._ring)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        now = self._host.now()
        left = _MAX_AT_ONCE
        try:
            while left and self._heap and self._is_over(now):
                queued = heappop(self._heap)[2]
                if queued.is_waiting:
                    left -= 1
                    self._host.expired(queued)
        finally:  # an exception for one request must not stop the timer of the others
            self._arm()

    def _is_over(self, now: float) -> bool:
        expires_at, _, first = self._heap[0]
        return not first.is_waiting or expires_at <= now

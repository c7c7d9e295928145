"""How long a request may wait: its own limit, its band's, and another one for an empty pool."""

from collections.abc import Callable, Sequence

from epp.flow_control.expiry import Expiry
from epp.flow_control.queues import QueuedRequest
from epp.flow_control.settings import BandSettings, FlowSettings
from epp.scheduling import Endpoint


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

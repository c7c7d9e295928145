"""The page ``/debug/endpoints``: the health of each endpoint, and whether it is draining."""

from collections.abc import Callable
from math import inf
from typing import Final

import msgspec

from epp.data_layer.store import EndpointStore
from epp.outlier_detection import OutlierDetector
from epp.scheduling import Endpoint

PATH: Final = "endpoints"

UNWATCHED: Final = "unwatched"
"""State of every endpoint while outlier detection is off."""


class EndpointLine(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint."""

    name: str
    address: str
    state: str
    """Its health; ``unwatched`` if outlier detection is off."""
    since_seconds: float | None
    """Time in this state; None if it is unwatched."""
    reason: str
    """The evidence against it; "" for none."""
    share: float
    """Share of the requests for which it is a candidate."""
    returns_in_seconds: float | None
    """Time until an ejection ends by itself; None if it does not."""
    ejections: dict[str, int]
    """Number of ejections by reason; empty if it is unwatched."""
    draining: str
    """Why it gets no new requests, whatever its state; "" if it is not draining."""
    drain_ends_in_seconds: float | None
    """Time until the command that drains it ends; None for no command or no end."""
    in_flight: int
    """Requests in flight there, including those of other EPPs as far as known."""


class EndpointsPage(msgspec.Struct, frozen=True, kw_only=True):
    """All endpoints, by name."""

    panic: bool
    """Whether ejected endpoints are used because too many are ejected."""
    endpoints: list[EndpointLine]


class EndpointsView:
    """Shows the endpoints of the pool to operators.

    Args:
        store: The pool.
        outliers: Outlier detection; None if it is off.
        clock: Monotonic seconds.
    """

    def __init__(
        self, store: EndpointStore, outliers: OutlierDetector | None, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._outliers = outliers
        self._clock = clock

    def page(self) -> EndpointsPage:
        """Return the current page."""
        return EndpointsPage(
            panic=self._outliers is not None and self._outliers.is_panicking,
            endpoints=[self.line(endpoint) for endpoint in self._store.snapshot],
        )

    def line(self, endpoint: Endpoint) -> EndpointLine:
        """Return the current line of one endpoint."""
        now, drains = self._clock(), self._store.drains
        health = None if self._outliers is None else self._outliers.health_of(endpoint)
        is_panicking = self._outliers is not None and self._outliers.is_panicking
        share = 1.0 if health is None or is_panicking else health.share(now)
        return EndpointLine(
            name=endpoint.name,
            address=endpoint.address,
            state=UNWATCHED if health is None else health.state.value,
            since_seconds=None if health is None else round(now - health.since, 3),
            reason="" if health is None else health.reason,
            share=0.0 if endpoint.is_draining else round(share, 3),
            returns_in_seconds=None if health is None else _until(health.returns_at, now),
            ejections={}
            if health is None
            else {kind.value: count for kind, count in health.ejections.items()},
            draining=drains.reason(endpoint),
            drain_ends_in_seconds=_until(drains.commands.get(endpoint, inf), now),
            in_flight=endpoint.load.in_flight,
        )


def _until(time: float, now: float) -> float | None:
    return round(max(0.0, time - now), 3) if time < inf else None

"""The page ``/debug/endpoints``: the health of each endpoint."""

from collections.abc import Callable
from math import inf
from typing import Final

import msgspec

from epp.outlier_detection.detector import OutlierDetector

PATH: Final = "endpoints"


class EndpointLine(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint."""

    name: str
    address: str
    state: str
    since_seconds: float
    """Time in this state."""
    reason: str
    """The evidence against it; "" for none."""
    share: float
    """Share of the requests for which it is a candidate."""
    returns_in_seconds: float | None
    """Time until an ejection ends by itself; None if it does not."""
    ejections: dict[str, int]
    """Number of ejections by reason."""
    is_draining: bool
    """Whether its labels keep new requests away, whatever its state."""
    in_flight: int


class EndpointsPage(msgspec.Struct, frozen=True, kw_only=True):
    """All endpoints, by name."""

    panic: bool
    """Whether ejected endpoints are used because too many are ejected."""
    endpoints: list[EndpointLine]


def endpoints_page(detector: OutlierDetector, clock: Callable[[], float]) -> EndpointsPage:
    """Return the present page."""
    now = clock()
    return EndpointsPage(
        panic=detector.is_panicking,
        endpoints=[
            EndpointLine(
                name=endpoint.name,
                address=endpoint.address,
                state=health.state.value,
                since_seconds=round(now - health.since, 3),
                reason=health.reason,
                share=round(health.share(now), 3),
                returns_in_seconds=(
                    round(max(0.0, health.returns_at - now), 3) if health.returns_at < inf else None
                ),
                ejections={kind.value: count for kind, count in health.ejections.items()},
                is_draining=endpoint.is_draining,
                in_flight=endpoint.load.in_flight,
            )
            for endpoint, health in sorted(detector, key=lambda pair: pair[0].name)
        ],
    )

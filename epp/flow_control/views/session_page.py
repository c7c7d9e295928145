"""The records of the page ``/debug/session``."""

import msgspec


class ShareLine(msgspec.Struct, frozen=True, kw_only=True):
    """A flow's share of one resource."""

    resource: str
    used: float | None = None
    deserved: float | None = None
    share: float | None = None


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting request."""

    request_id: str
    flow: str
    priority: int
    model: str
    size_bytes: int
    waited_seconds: float
    remaining_seconds: float | None
    """Time until it expires; None for never."""
    tries: int
    """How often no endpoint could take it."""
    place: int
    """Its place in the flow: 1 for the head, 0 for a parked request."""
    reasons: list[str]
    """Why it waits; for parked requests only, because those of a head are in its flow."""


class FlowLine(msgspec.Struct, frozen=True, kw_only=True):
    """A flow."""

    flow: str
    waiting: int
    size_bytes: int
    head_waited_seconds: float | None
    """None if no request waits, or all are parked."""
    reasons: list[str]
    """Why its head waits."""
    shares: list[ShareLine]


class BandLine(msgspec.Struct, frozen=True, kw_only=True):
    """A priority band."""

    priority: int
    waiting: int
    max_requests: int
    size_bytes: int
    max_bytes: int
    ceiling: float | None
    blocked: str
    """Why the band may not dispatch; "" if it may."""
    flows: list[FlowLine]
    more_flows: int
    requests: list[RequestLine]
    """The heads in the order of their flows, then the second requests, and so on."""
    more_requests: int
    """The number of other waiting requests that are not parked."""


class SessionPluginLine(msgspec.Struct, frozen=True, kw_only=True):
    """A session plugin."""

    name: str
    pages: list[str]
    """Paths below ``/debug/session/``."""


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """The whole page."""

    waiting: int
    size_bytes: int
    saturation: dict[str, float | None]
    blocked: str
    bands: list[BandLine]
    parked: list[RequestLine]
    more_parked: int
    plugins: list[SessionPluginLine]
    faults: list[str]
    """Failures of plugins while the page was made."""

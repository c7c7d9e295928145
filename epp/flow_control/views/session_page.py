"""What ``/debug/session`` has in it."""

import msgspec


class ShareLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a flow has of one resource."""

    resource: str
    used: float | None = None
    deserved: float | None = None
    share: float | None = None


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits."""

    request_id: str
    flow: str
    priority: int
    model: str
    size_bytes: int
    waited_seconds: float
    remaining_seconds: float | None
    """Until it has waited too long; None for never."""
    tries: int
    """How often no endpoint was found for it."""
    place: int
    """In its flow; the head has 1, and a parked request, which is passed over, 0."""
    reasons: list[str]
    """Why it has not gone; of parked requests alone, a head's are with its flow."""


class FlowLine(msgspec.Struct, frozen=True, kw_only=True):
    """A flow."""

    flow: str
    waiting: int
    size_bytes: int
    head_waited_seconds: float | None
    """None if it has no head: nothing waits, or all is parked."""
    reasons: list[str]
    """Why its head has not gone."""
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
    """Why nothing of it may go; "" if something may."""
    flows: list[FlowLine]
    more_flows: int
    requests: list[RequestLine]
    """All heads, in the order of their flows, then those behind them, and so on."""
    more_requests: int
    """How many wait besides these and those that are parked."""


class PluginLine(msgspec.Struct, frozen=True, kw_only=True):
    """A session plugin."""

    name: str
    pages: list[str]
    """Below ``/debug/session/``."""


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of it."""

    waiting: int
    size_bytes: int
    saturation: dict[str, float | None]
    blocked: str
    bands: list[BandLine]
    parked: list[RequestLine]
    more_parked: int
    plugins: list[PluginLine]
    faults: list[str]
    """What plugins failed to tell."""

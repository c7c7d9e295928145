"""The record of one decision: what was chosen, for which reasons, and on which inputs.

The answer to the gateway and the log line are made of it. It holds references to what the decision
has computed anyway and is made once per routed request, when its endpoints are reserved and the
``PreRequest`` plugins have run.
"""

from collections.abc import Mapping, Sequence

import msgspec

from epp.scheduling import Endpoint, LLMRequest, Reservation, SchedulingResult, ShadowPick


class Decision(msgspec.Struct, frozen=True, eq=False):
    """Where one request goes, and why."""

    # A msgspec Struct because it is made in 0.4 us; a frozen dataclass takes 5.

    request: LLMRequest
    """The request, with its target model, priority and flow; its prompt is dropped once sent."""
    candidates: Sequence[Endpoint]
    """Endpoints that the choice was made among: the pool, restricted by subset and screeners."""
    result: SchedulingResult
    """What each profile filtered, scored and picked, as ``PreRequest`` plugins have left it."""
    endpoint: Endpoint
    """The primary profile's best endpoint, which is reserved."""
    destination: str
    """What the gateway gets: ``ip:port``, or several separated by commas, best first."""
    request_headers: Mapping[str, str | None]
    """Headers to set on the way to the model server by lower-case name; None removes one."""
    received_at: float
    """When the request headers came, in seconds of the clock."""
    decided_at: float
    waiting_requests: float
    """The chosen endpoint's load before this request was counted; so are the next two."""
    running_requests: float
    kv_cache_usage: float
    metrics_age_seconds: float | None
    """Age of the endpoint's metrics at the decision; None if it has none yet."""
    reservation: Reservation
    """The request's place on ``endpoint``; it moves if another endpoint serves."""
    stage_reservations: Sequence[Reservation]
    """Places on the endpoints of the other profiles, such as a prefill."""
    stages: Mapping[str, Endpoint]
    """Those endpoints by profile."""
    scores: Mapping[str, float] | None
    """Total scores by ``ip:port``, for the gateway; None if it does not get them."""
    shadow: Sequence[ShadowPick]
    """What shadow profiles would have chosen."""
    is_forced: bool = False
    """Whether a signed header has named the endpoint."""

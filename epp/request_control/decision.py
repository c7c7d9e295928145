"""The record of one decision: the choice, its reasons, and its inputs.

The reply to the gateway and the log line are made from it. It refers to objects that the decision
has computed anyway, and is made once per routed request, when its endpoints are reserved and the
``PreRequest`` plugins have run.
"""

from collections.abc import Mapping, Sequence

from epp.scheduling import Endpoint, LLMRequest, Reservation, SchedulingResult, ShadowPick


class Decision:
    """Where one request goes, and why; never changed."""

    __slots__ = (
        "candidates",
        "decided_at",
        "destination",
        "endpoint",
        "is_forced",
        "kv_cache_usage",
        "metrics_age_seconds",
        "received_at",
        "request",
        "request_headers",
        "reservation",
        "result",
        "running_requests",
        "scores",
        "shadow",
        "stage_reservations",
        "stages",
        "waiting_requests",
    )

    def __init__(  # noqa: PLR0917 - keywords would cost 3 us
        self,
        request: LLMRequest,
        candidates: Sequence[Endpoint],
        result: SchedulingResult,
        endpoint: Endpoint,
        destination: str,
        request_headers: Mapping[str, str | None],
        received_at: float,
        decided_at: float,
        waiting_requests: int | float,
        running_requests: int | float,
        kv_cache_usage: float,
        metrics_age_seconds: float | None,
        reservation: Reservation,
        stage_reservations: Sequence[Reservation],
        stages: Mapping[str, Endpoint],
        scores: Mapping[str, float] | None,
        shadow: Sequence[ShadowPick],
        is_forced: bool = False,
    ) -> None:
        self.request = request
        """The request with target model, priority and flow; its prompt is dropped when sent."""
        self.candidates = candidates
        """The endpoints to choose from: the pool, restricted by the subset and the screeners."""
        self.result = result
        """What each profile filtered, scored and picked, with changes by ``PreRequest`` plugins."""
        self.endpoint = endpoint
        """The primary profile's best endpoint, which is reserved."""
        self.destination = destination
        """What the gateway gets: ``ip:port``, or several separated by commas, best first."""
        self.request_headers = request_headers
        """Headers to set on the way to the model server by lower-case name; None removes one."""
        self.received_at = received_at
        """When the request headers arrived, in seconds of the clock."""
        self.decided_at = decided_at
        self.waiting_requests = waiting_requests
        """The chosen endpoint's load before this request was counted; so are the next two."""
        self.running_requests = running_requests
        self.kv_cache_usage = kv_cache_usage
        self.metrics_age_seconds = metrics_age_seconds
        """Age of the endpoint's metrics at the decision; None if it has none yet."""
        self.reservation = reservation
        """The request's place on ``endpoint``; it moves if another endpoint serves."""
        self.stage_reservations = stage_reservations
        """Places on the endpoints of the other profiles, such as a prefill."""
        self.stages = stages
        """The endpoints of ``stage_reservations``, by profile."""
        self.scores = scores
        """Total scores by ``ip:port``, for the gateway; None if it does not get them."""
        self.shadow = shadow
        """What shadow profiles would have chosen."""
        self.is_forced = is_forced
        """Whether a signed header has named the endpoint."""

"""One scheduled request, from the decision to the end of its stream."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from epp.observability import RequestMetrics
from epp.request_control.pipeline import Pipeline
from epp.request_control.plugins import REQUEST_HEADERS_TO_SET, EndCause, ResponseHead
from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    Reservation,
    SchedulingResult,
    ShadowPick,
)

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ExchangeOwner(Protocol):
    """Is told when an exchange ends: the director."""

    def finish(self, exchange: "Exchange", cause: EndCause) -> None:
        """Release, learn and report; called once."""

    def served(self, exchange: "Exchange", address: str) -> None:
        """The gateway says that ``address`` served the request."""


class Exchange:
    """What the stream of a scheduled request holds; ``close`` gives everything back."""

    __slots__ = (
        "_owner",
        "body",
        "decided_at",
        "endpoint",
        "kv_cache_usage",
        "metrics",
        "metrics_age_seconds",
        "pipeline",
        "received_at",
        "request",
        "reservation",
        "result",
        "running_requests",
        "shadow",
        "state",
        "status",
        "waiting_requests",
    )

    def __init__(
        self,
        owner: ExchangeOwner,
        *,
        pipeline: Pipeline,
        request: LLMRequest,
        state: CycleState,
        result: SchedulingResult,
        metrics: RequestMetrics,
        received_at: float,
        decided_at: float,
        body: bytes | None = None,
        shadow: Sequence[ShadowPick] = (),
    ) -> None:
        self._owner: ExchangeOwner | None = owner
        self.pipeline = pipeline
        """The one that made the decision; it stays with the exchange when another takes over."""
        self.request = request
        self.state = state
        self.result = result
        self.metrics = metrics
        self.received_at = received_at
        """When the request headers came, in seconds of the clock."""
        self.decided_at = decided_at
        self.body = body
        """What to send on if it differs from what was received (a model rewrite)."""
        self.shadow = shadow
        """What shadow profiles would have chosen."""
        self.status: int | None = None
        """HTTP status of the model server's answer."""
        endpoint = result.endpoints[0].endpoint
        self.endpoint: Endpoint = endpoint
        # What the chosen endpoint looked like at the decision, for the log line.
        load = endpoint.load
        self.waiting_requests = load.waiting_requests
        self.running_requests = load.running_requests
        self.kv_cache_usage = load.kv_cache_usage
        requested_at = endpoint.metrics.requested_at
        self.metrics_age_seconds = None if requested_at is None else decided_at - requested_at
        self.reservation = Reservation(load, decided_at)

    @property
    def request_headers(self) -> Mapping[str, str | None]:
        """Headers to set on the way to the model server; None removes one."""
        return self.state.read(REQUEST_HEADERS_TO_SET) or _NO_HEADERS

    @property
    def wants_response_headers(self) -> bool:
        """Whether a plugin wants to see the headers of the answer."""
        return bool(self.pipeline.response_header)

    def response_started(
        self, status: int, headers: Mapping[str, str] | None = None
    ) -> Mapping[str, str]:
        """Take note of the head of the answer; return the headers to set on it.

        Args:
            status: Its HTTP status.
            headers: By lower-case name; None if nobody wants to see them. Whoever served must be
                known by then (:meth:`served_by`).
        """
        self.status = status
        if self._owner is None or not self.pipeline.response_header:
            return _NO_HEADERS
        head = ResponseHead(status, headers or _NO_HEADERS)
        self.pipeline.answer_began(self.request, head, self.endpoint, self.state)
        return head.set_headers

    def served_by(self, address: str) -> None:
        """Move the reservation if another endpoint than the chosen one served."""
        if address != self.endpoint.address and self._owner is not None:
            self._owner.served(self, address)

    def close(self, cause: EndCause) -> None:
        """End the exchange; only the first call counts."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.finish(self, cause)

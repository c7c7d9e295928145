"""One scheduled request, from the decision to the end of its stream."""

from typing import Protocol

from epp.observability import RequestMetrics
from epp.request_control.plugins import EndCause
from epp.scheduling import CycleState, Endpoint, LLMRequest, Reservation, SchedulingResult


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
        "decided_at",
        "endpoint",
        "kv_cache_usage",
        "metrics",
        "metrics_age_seconds",
        "received_at",
        "request",
        "reservation",
        "result",
        "running_requests",
        "state",
        "status",
        "waiting_requests",
    )

    def __init__(
        self,
        owner: ExchangeOwner,
        *,
        request: LLMRequest,
        state: CycleState,
        result: SchedulingResult,
        metrics: RequestMetrics,
        received_at: float,
        decided_at: float,
    ) -> None:
        self._owner: ExchangeOwner | None = owner
        self.request = request
        self.state = state
        self.result = result
        self.metrics = metrics
        self.received_at = received_at
        """When the request headers came, in seconds of the clock."""
        self.decided_at = decided_at
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

    def response_started(self, status: int) -> None:
        """The model server's response headers have come."""
        self.status = status

    def served_by(self, address: str) -> None:
        """Move the reservation if another endpoint than the chosen one served."""
        if address != self.endpoint.address and self._owner is not None:
            self._owner.served(self, address)

    def close(self, cause: EndCause) -> None:
        """End the exchange; only the first call counts."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.finish(self, cause)

"""Candidates that record their outcomes."""

from collections.abc import Mapping, Sequence

from epp.flow_control import Candidate, Outcome, QueuedRequest
from epp.scheduling import Endpoint, LLMRequest, ProfileResult, SchedulingResult, ScoredEndpoint


class NotingCandidate(Candidate):
    """Chooses the first endpoint."""

    def __init__(self, request: LLMRequest, received_at: float = 0.0) -> None:
        self._request = request
        self._received_at = received_at
        self.endpoint: Endpoint | None = None
        self.attributes: Mapping[str, str] = {}
        self.ended: list[str] = []
        """The outcomes; exactly one in the end."""

    @property
    def request(self) -> LLMRequest:
        return self._request

    @property
    def received_at(self) -> float:
        return self._received_at

    @property
    def held_bytes(self) -> int:
        return self._request.body_bytes

    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        best = endpoints[0]
        if preference is not None:
            best = max(endpoints, key=lambda endpoint: preference[endpoint])
        result = ProfileResult("default", [ScoredEndpoint(best, 1.0)])
        return SchedulingResult(primary="default", profiles={"default": result})

    def dispatch(
        self, queued: QueuedRequest, result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        self.endpoint = result.endpoints[0].endpoint
        self.attributes = attributes
        self.ended.append(Outcome.DISPATCHED)

    def fail(self, error: Exception) -> None:
        self.ended.append(type(error).__name__)

    def turn_away(self, outcome: Outcome, why: str, *, pool_is_empty: bool) -> None:
        self.ended.append(outcome)

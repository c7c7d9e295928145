"""A request of another worker in the queues of this one, and when metrics count it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from epp.flow_control import Candidate, FlowObserver, Outcome, QueuedRequest
from epp.flow_control.plugins import Flow
from epp.flow_control.pressure.saturation import serves_decode
from epp.request_control.forced_endpoint import forced_result
from epp.scheduling import Endpoint, LLMRequest, SchedulingResult
from epp.workers.flow_accounts import Grant
from epp.workers.flow_messages import Asked, request_of


class RequestOwner(Protocol):
    """Replies to the worker that has a request."""

    def grant(
        self, remote: "RemoteRequest", endpoint: Endpoint | None, *, has_waited: bool
    ) -> None:
        """Allow the worker to send the request."""

    def refuse(
        self, remote: "RemoteRequest", outcome: Outcome, why: str, *, pool_is_empty: bool
    ) -> None:
        """End the request."""

    def failed(self, remote: "RemoteRequest", error: Exception) -> None:
        """End the request, whose grant has failed."""


class RemoteRequest(Candidate):
    """A request of another worker.

    Args:
        owner: Sends the replies.
        worker: Number of that worker.
        asked: Its message about the request.
    """

    def __init__(self, owner: RequestOwner, worker: int, asked: Asked) -> None:
        self._owner = owner
        self.worker = worker
        self.number = asked.number
        self._request = request_of(asked.facts)
        self._received_at = asked.received_at
        self._held_bytes = asked.held_bytes
        self.enqueued_at = asked.enqueued_at
        self.ttl_seconds = asked.ttl_seconds
        self.queued: QueuedRequest | None = None
        """The request in its queue; None if it never was in one."""
        self.counted: QueuedRequest | None = None
        """The queued request that metrics have counted; None if none."""
        self.is_granted = False
        """Whether it was granted, and its worker has not reported yet."""
        self.grant: Grant | None = None
        """The grant that counts until then; None for none."""
        self.granted_at = 0.0
        self.granted_after = 0
        """The controller's number of events at the time of the grant."""

    @property
    def request(self) -> LLMRequest:
        return self._request

    @property
    def received_at(self) -> float:
        return self._received_at

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        return forced_result(least_loaded(endpoints))

    def dispatch(
        self, queued: QueuedRequest, result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        self._owner.grant(self, result.endpoints[0].endpoint, has_waited=True)

    def fail(self, error: Exception) -> None:
        self._owner.failed(self, error)

    def turn_away(self, outcome: Outcome, why: str, *, pool_is_empty: bool) -> None:
        self._owner.refuse(self, outcome, why, pool_is_empty=pool_is_empty)


def least_loaded(endpoints: Sequence[Endpoint]) -> Endpoint:
    """Return the endpoint where a grant counts; one that generates responses, if there is one."""
    decoding = [each for each in endpoints if serves_decode(each)]
    return min(decoding or endpoints, key=lambda each: each.load.in_flight)


class CountedOnce(FlowObserver):
    """Passes events on to an observer, but a grant only when its worker has reported.

    Args:
        observer: The observer.
        notify: Called when a request begins to wait.
    """

    def __init__(self, observer: FlowObserver, notify: Callable[[], None]) -> None:
        self._observer = observer
        self._notify = notify

    def passed(self, request: LLMRequest) -> None:
        self._observer.passed(request)

    def rejected(self, request: LLMRequest, outcome: Outcome) -> None:
        self._observer.rejected(request, outcome)

    def flow_removed(self, flow: Flow) -> None:
        self._observer.flow_removed(flow)

    def plugin_timer(
        self, plugin: str, extension_point: str, slow_call_seconds: float
    ) -> Callable[[float], None] | None:
        return self._observer.plugin_timer(plugin, extension_point, slow_call_seconds)

    def plugin_failed(self, plugin: str, extension_point: str) -> None:
        self._observer.plugin_failed(plugin, extension_point)

    def session_ended(self, seconds: float) -> None:
        self._observer.session_ended(seconds)

    def enqueued(self, queued: QueuedRequest, seconds: float) -> None:
        self._notify()
        remote = queued.candidate
        if isinstance(remote, RemoteRequest):
            if remote.counted is not None:
                return
            remote.counted = queued
        self._observer.enqueued(queued, seconds)

    def left(self, queued: QueuedRequest, outcome: Outcome, seconds: float) -> None:
        remote = queued.candidate
        if isinstance(remote, RemoteRequest):
            if outcome is Outcome.DISPATCHED or remote.counted is None:
                return
            queued = remote.counted
        self._observer.left(queued, outcome, seconds)

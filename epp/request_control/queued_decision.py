"""A request in flow control's queues: its dispatch or its refusal."""

from collections.abc import Mapping, Sequence
from typing import Final

from epp.flow_control import FlowController, NoPlaceError, Outcome, QueuedRequest
from epp.request_control.decider import Decider
from epp.request_control.errors import (
    AllFilteredError,
    InternalError,
    InvalidTtlError,
    QueueExpiredError,
    QueueFullError,
    QueueNoEndpointsError,
    RequestError,
)
from epp.request_control.pending import PendingDecision
from epp.request_control.plugins import EndCause
from epp.request_control.prepared_request import PreparedRequest
from epp.request_control.producer_run import ProducerRun
from epp.request_control.refusals import Refusals
from epp.request_control.routed_request import RoutedRequest
from epp.scheduling import CycleState, Endpoint, LLMRequest, SchedulingResult

TTL_HEADER: Final = "x-llm-d-request-ttl-ms"
"""Maximum wait of a request in whole milliseconds; the band's own limit also applies."""

_MAX_TTL_MS = 86_400_000

_CANCELLED = {
    EndCause.CLIENT_DISCONNECT: Outcome.EVICTED_CONTEXT_CANCELLED,
    EndCause.ENDED: Outcome.EVICTED_CONTEXT_CANCELLED,
}
"""Outcomes of causes on the client's side; any other cause is this EPP's own."""


def ttl_of(headers: Mapping[str, str]) -> float | None:
    """Return the maximum wait that a request sets, in seconds; None if it sets none.

    Raises:
        InvalidTtlError: The header is invalid.
    """
    text = headers.get(TTL_HEADER)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_TTL_MS)):
        milliseconds = int(text)
        if 0 < milliseconds <= _MAX_TTL_MS:
            return milliseconds / 1000
    raise InvalidTtlError(
        f"header {TTL_HEADER} is {text[:40]!r}; it must be a whole number of milliseconds from 1 to"
        f" {_MAX_TTL_MS}"
    )


class QueuedDecision(PendingDecision):
    """A request that flow control dispatches, now or later, as its ``Candidate``.

    Args:
        prepared: The request.
        decider: Chooses and reserves its endpoint.
        flow: Dispatches it.
        refusals: Reports a request that is refused or abandoned.
    """

    __slots__ = (
        "_decider",
        "_flow",
        "_known_pipeline",
        "_prepared",
        "_queued",
        "_refusals",
        "request",
    )

    def __init__(
        self,
        prepared: PreparedRequest,
        decider: Decider,
        flow: FlowController,
        refusals: Refusals,
    ) -> None:
        super().__init__()
        self.request: LLMRequest = prepared.request
        self._prepared = prepared
        self._decider = decider
        self._flow = flow
        self._refusals = refusals
        self._queued: QueuedRequest | None = None
        self._known_pipeline = prepared.pipeline
        """The last pipeline for which :meth:`_follow_reload` tried to prepare it."""
        prepared.pipeline.request_began()

    @property
    def received_at(self) -> float:
        return self._prepared.received_at

    @property
    def held_bytes(self) -> int:
        prepared = self._prepared
        if counted := prepared.memory.held_bytes:
            return counted
        return max(self.request.body_bytes, len(prepared.rewritten or b""))

    def submit(self, ttl_seconds: float | None) -> None:
        """Submit the request to flow control, which is on.

        Args:
            ttl_seconds: The result of :func:`ttl_of`.
        """
        self._queued = self._flow.submit(self, ttl_seconds)

    def cancel(self, cause: EndCause) -> None:
        if self.outcome is not None:
            return
        if self._queued is not None:
            queued, self._queued = self._queued, None  # it refers to this decision
            self._flow.cancel(queued, _CANCELLED.get(cause, Outcome.EVICTED_OTHER))
        self._refusals.abandoned(self._prepared, cause)
        self._leave_pipelines()

    # --- the Candidate ----------------------------------------------------------------------------

    def state(self) -> CycleState:
        producer_run = self._prepared.producer_run
        producer_run.attach(self._flow.pool())
        return producer_run.state

    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        try:
            return self._decider.choose(self._prepared, endpoints, preference)
        except AllFilteredError as error:
            if not self._flow.holds_filtered:
                raise
            if not self._follow_reload():
                self._refusals.held(error, self._prepared)
                raise NoPlaceError(str(error)) from error
        return self.choose(endpoints, preference)

    def _follow_reload(self) -> bool:
        """Prepare the request for the pipeline in use if it is a new one; return whether it did.

        Filters that a reload has removed must not hold a request forever. A request to which an
        asynchronous producer of the pipeline in use applies is not prepared: that would have to
        wait within a session.
        """
        prepared, pipeline = self._prepared, self._decider.pipeline
        if pipeline is self._known_pipeline:
            return False
        self._known_pipeline = pipeline
        request, state = prepared.request, CycleState()
        if pipeline.header_processors:
            fairness_id = request.fairness_id
            pipeline.request_came(request, state)
            request.fairness_id = fairness_id  # it waits in the queue of this flow
        producer_run = ProducerRun(pipeline.producers, request, state)
        if producer_run.advance():
            return False
        pipeline.request_began()
        if prepared.parsed_by is None:
            prepared.parsed_by = prepared.pipeline  # its parser will read the response
        else:
            prepared.pipeline.request_ended()
        prepared.pipeline, prepared.producer_run = pipeline, producer_run
        return True

    def dispatch(
        self, queued: QueuedRequest, result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        # The hooks of the current pipeline: thousands may have waited since a reload, and its
        # fairness policy has to see them all.
        trace = self._prepared.trace
        if trace is not None:
            trace.begin_step()
        try:
            routed = self._decider.route(
                self._prepared, result, pipeline=self._decider.pipeline, headers=attributes
            )
        finally:
            if trace is not None:
                trace.end_step()
        routed.allow_eviction(self._flow)
        routed.queued = queued
        if routed.record is not None and queued.has_waited:
            routed.record.waited(queued)
        self._end(routed)

    def fail(self, error: Exception) -> None:
        if self.outcome is None:  # dispatch may have succeeded before the error
            self._refused(error)

    def turn_away(self, outcome: Outcome, why: str, *, pool_is_empty: bool) -> None:
        self._refused(_refusal(outcome, why, pool_is_empty=pool_is_empty))

    def _leave_pipelines(self) -> None:
        prepared = self._prepared
        prepared.pipeline.request_ended()
        if prepared.parsed_by is not None:
            prepared.parsed_by.request_ended()

    def _refused(self, error: Exception) -> None:
        self._end(self._refusals.refused_request(error, self._prepared))

    def _end(self, outcome: RoutedRequest | RequestError) -> None:
        self._leave_pipelines()
        self._queued = None  # it refers to this decision
        self.settle(outcome)


def _refusal(outcome: Outcome, why: str, *, pool_is_empty: bool) -> RequestError:
    """Return the error of a request that was not dispatched, with the Go EPP's status."""
    if pool_is_empty:
        return QueueNoEndpointsError(why)
    if outcome is Outcome.REJECTED_CAPACITY:
        return QueueFullError(why)
    if outcome is Outcome.EVICTED_TTL:
        return QueueExpiredError(why)
    return InternalError(why)

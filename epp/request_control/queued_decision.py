"""A request under flow control: what the director does when its turn comes, or never does."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from epp.flow_control import FlowControl, FlowController, NoPlaceError, Outcome, QueuedRequest
from epp.request_control.decider import Decider, PreparedRequest
from epp.request_control.errors import (
    AllFilteredError,
    BadRequestError,
    InternalError,
    QueueExpiredError,
    QueueFullError,
    QueueNoEndpointsError,
    RequestError,
)
from epp.request_control.pending import PendingDecision
from epp.request_control.pipeline import Pipeline
from epp.request_control.plugins import REQUEST_HEADERS_TO_SET, EndCause
from epp.request_control.routed_request import RoutedRequest
from epp.scheduling import Endpoint, LLMRequest, SchedulingResult

TTL_HEADER: Final = "x-llm-d-request-ttl-ms"
"""How long a request may wait, in whole milliseconds; the band's own limit holds, too."""

_MAX_TTL_MS = 86_400_000

_CANCELLED = {
    EndCause.CLIENT_DISCONNECT: Outcome.EVICTED_CONTEXT_CANCELLED,
    EndCause.ENDED: Outcome.EVICTED_CONTEXT_CANCELLED,
}
"""Any other cause is this EPP's own."""


def ttl_of(headers: Mapping[str, str]) -> float | None:
    """Return how long a request says that it may wait, in seconds; None if it does not.

    Raises:
        BadRequestError: It says something else.
    """
    text = headers.get(TTL_HEADER)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_TTL_MS)):
        milliseconds = int(text)
        if 0 < milliseconds <= _MAX_TTL_MS:
            return milliseconds / 1000
    raise BadRequestError(
        f"header {TTL_HEADER} is {text[:40]!r}; it must be a whole number of milliseconds from 1 to"
        f" {_MAX_TTL_MS}"
    )


class QueuedDecision(PendingDecision):
    """A request that flow control dispatches, now or later; a ``Candidate`` of its.

    Args:
        prepared: The request.
        decider: Chooses, and makes its routed.
        flow: Whom it is submitted to.
        refuse: Counts and logs an error; returns what to answer.
        abandon: Is told if nobody wants the decision any more.
        pipeline: Returns the one that requests begin on when this one's turn comes.
    """

    __slots__ = ("_abandon", "_decider", "_flow", "_pipeline", "_prepared", "_queued", "_refuse")

    def __init__(
        self,
        prepared: PreparedRequest,
        *,
        decider: Decider,
        flow: FlowController,
        refuse: Callable[[Exception], RequestError],
        abandon: Callable[[EndCause], None],
        pipeline: Callable[[], Pipeline],
    ) -> None:
        super().__init__()
        self._prepared = prepared
        self._decider = decider
        self._flow = flow
        self._refuse = refuse
        self._abandon = abandon
        self._pipeline = pipeline
        self._queued: QueuedRequest | None = None
        prepared.pipeline.request_began()

    @property
    def request(self) -> LLMRequest:
        return self._prepared.producer_run.request

    @property
    def received_at(self) -> float:
        return self._prepared.received_at

    @property
    def held_bytes(self) -> int:
        prepared = self._prepared
        if counted := prepared.memory.held_bytes:
            return counted
        return max(prepared.producer_run.request.body_bytes, len(prepared.rewritten or b""))

    def submit(self, control: FlowControl, ttl_seconds: float | None) -> None:
        """Submit the request to flow control.

        Args:
            control: The active flow control.
            ttl_seconds: The result of :func:`ttl_of`.
        """
        self._queued = control.submit(self, ttl_seconds)

    def cancel(self, cause: EndCause) -> None:
        if self.outcome is not None:
            return
        if self._queued is not None:
            queued, self._queued = self._queued, None  # which points back
            self._flow.cancel(queued, _CANCELLED.get(cause, Outcome.EVICTED_OTHER))
        self._abandon(cause)
        self._prepared.pipeline.request_ended()

    # --- what flow control asks -----------------------------------------------------------------

    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        try:
            return self._decider.choose(self._prepared, endpoints, preference)
        except AllFilteredError as error:
            if self._flow.holds_filtered:
                raise NoPlaceError(str(error)) from error
            raise

    def dispatch(
        self, queued: QueuedRequest, result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        # Its hooks are those of now: a fairness policy that has come with a reload decides by what
        # it was told of, and what waited then may be thousands.
        routed = self._decider.take(self._prepared, result, self._pipeline())
        try:
            routed.in_flight = self._flow.evictions.keep(routed)
            if attributes:
                state = self._prepared.producer_run.state
                set_by_plugins = state.read(REQUEST_HEADERS_TO_SET) or {}
                state.write(REQUEST_HEADERS_TO_SET, {**set_by_plugins, **attributes})
        except BaseException:
            routed.close(EndCause.ERROR)
            raise
        routed.queued = queued
        self._end(routed)

    def fail(self, error: Exception) -> None:
        if self.outcome is None:  # it may have been dispatched before it came to this
            self._end(self._refuse(error))

    def turn_away(self, outcome: Outcome, why: str, *, pool_is_empty: bool) -> None:
        self._end(self._refuse(_refusal(outcome, why, pool_is_empty=pool_is_empty)))

    def _end(self, outcome: RoutedRequest | RequestError) -> None:
        self._prepared.pipeline.request_ended()
        self._queued = None  # which points back
        self.settle(outcome)


def _refusal(outcome: Outcome, why: str, *, pool_is_empty: bool) -> RequestError:
    """Return the answer to a request that was not dispatched; the reference's statuses."""
    if pool_is_empty:
        return QueueNoEndpointsError(why)
    if outcome is Outcome.REJECTED_CAPACITY:
        return QueueFullError(why)
    if outcome is Outcome.EVICTED_TTL:
        return QueueExpiredError(why)
    return InternalError(why)

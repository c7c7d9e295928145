"""Routed requests from their decision to their end: reservations, flow control, metrics, log."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from epp.flow_control import FlowController
from epp.observability import CanonicalLine, Metrics
from epp.outlier_detection import SERVER_ERROR, OutlierDetector
from epp.request_control.errors import NoServerRespondsError, RequestError
from epp.request_control.hedging import Hedge, Hedging
from epp.request_control.plugins import EndCause, ResponseSource
from epp.request_control.recording import DecisionRecorder
from epp.request_control.refusals import Refusals
from epp.request_control.request_log import NO_FIELDS, finished_line
from epp.request_control.routed_request import RoutedRequest
from epp.scheduling import Endpoint

_BAD_GATEWAY: Final = HTTPStatus.BAD_GATEWAY.value
# Looked up once: reading a member from its class takes 0.15 us.
_ENDED: Final = EndCause.ENDED
_CLIENT_LEFT: Final = EndCause.CLIENT_DISCONNECT
_BY_GATEWAY: Final = ResponseSource.GATEWAY
_CONCLUSIVE: Final = frozenset({EndCause.COMPLETED, _ENDED, _CLIENT_LEFT})
"""Ends that say something about the server."""
_CUT_SECONDS: Final = 0.005
"""A streamed response that ends so soon after its head was probably cut off."""
_UNREACHABLE: Final = frozenset({_BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT.value})
_OK: Final = HTTPStatus.OK.value
"""Looked up once: on Python 3.11 that takes 0.3 us."""

RequestWatch = Callable[[RoutedRequest, EndCause, float], None]
"""Called with a request that ends, the cause, and the time in seconds of the clock."""


class LiveRequests:
    """The :class:`RequestLifecycle` of all routed requests.

    Args:
        find_address: Returns the pool's endpoint at ``ip:port``, None if it has none.
        metrics: Counts requests.
        clock: Monotonic seconds, the clock of endpoint loads.
        flow: Flow control; None without it.
        refusals: Reports faults.
        outliers: Outlier detection; None without it.
        hedging: Decides when a request is tried a second time; None for never.
        recorder: Records outcomes; None for none.
        emit_decision_header: Whether responses have the headers of :mod:`.decision_header`.
    """

    def __init__(
        self,
        *,
        find_address: Callable[[str], Endpoint | None],
        metrics: Metrics,
        clock: Callable[[], float],
        flow: FlowController | None,
        refusals: Refusals,
        outliers: OutlierDetector | None = None,
        hedging: Hedging | None = None,
        recorder: DecisionRecorder | None = None,
        log_fields: Mapping[str, str] = NO_FIELDS,
        emit_decision_header: bool = False,
    ) -> None:
        self._emit_decision_header = emit_decision_header
        self.in_flight = 0
        """Routed requests not yet closed."""
        self.time = clock
        self.watch: RequestWatch | None = None
        """Called for each request that ends; None while nobody watches."""
        self._find_address = find_address
        self._clock = clock
        self._flow = flow
        self._refusals = refusals
        self._outliers = outliers
        self._hedging = hedging
        self._recorder = recorder
        self._finished = CanonicalLine("request finished", logger=__name__, **log_fields)
        self._response_seconds = metrics.response_processing.observe

    def began(self, routed: RoutedRequest) -> None:
        pipeline, parsed_by = routed.pipeline, routed.parsed_by
        pipeline.request_began()
        if parsed_by is not pipeline:  # its parser reads the response
            parsed_by.request_began()
        self.in_flight += 1
        metrics = routed.metrics
        metrics.total.inc()
        metrics.running.inc()
        metrics.size.observe(routed.request.body_bytes)
        if routed.request.stream:
            routed.endpoint.awaited += 1
        if self._emit_decision_header:
            routed.emits_decision_header = True

    def served_by(self, routed: RoutedRequest, address: str) -> None:
        """Move the reservation to the endpoint at ``address``, if the pool has it."""
        endpoint = self._find_address(address)
        if endpoint is not None:
            hedge = routed.hedge
            if hedge is not None and hedge.tries(self._clock()):
                hedge.is_won = True
            elif self._outliers is not None:  # the gateway could not reach the picked one
                self._outliers.responded(routed.endpoint, _BAD_GATEWAY)
            if routed.request.stream and routed.status is None:
                routed.endpoint.awaited -= 1
                endpoint.awaited += 1
            routed.endpoint.retries += 1
            routed.decision.reservation.move(endpoint.load, self._clock())
            routed.endpoint = endpoint
            if routed.queued is not None and self._flow is not None:
                self._flow.moved(routed.queued, endpoint)

    def response_status(self, routed: RoutedRequest, status: int) -> None:
        """Pass the status to outlier detection.

        A server that could not reach the server of another stage, such as a prefill, answers with
        502 or 504: then the other one has failed.
        """
        outliers = self._outliers
        if outliers is None or routed.response_source is ResponseSource.GATEWAY:
            return
        stages = routed.decision.stages.values()
        from_gateway = routed.response_source is ResponseSource.GATEWAY_FOR_SERVER
        is_stages_fault = bool(stages) and status in _UNREACHABLE and not from_gateway
        if not is_stages_fault:
            outliers.responded(routed.endpoint, status, from_gateway=from_gateway)
        if status < SERVER_ERROR or is_stages_fault:
            for endpoint in stages:
                outliers.responded(endpoint, status)

    def unserved(self, routed: RoutedRequest) -> RequestError | None:
        why = None if self._outliers is None else self._outliers.why_none_responds()
        return NoServerRespondsError(why) if why else None

    def hedge(self, routed: RoutedRequest, others: int) -> Hedge | None:
        hedging = self._hedging
        if hedging is None:
            return None
        return hedging.begin(routed.request.body_bytes, self._clock(), others)

    def response_began(self, routed: RoutedRequest) -> None:
        """Release the stages before the primary profile; the request can no longer be evicted."""
        routed.release_stages(self._clock())
        if self._flow is not None:
            if routed.in_flight is not None:
                self._flow.evictions.spare(routed.in_flight)
            self._flow.wake()

    def ended(self, routed: RoutedRequest, cause: EndCause) -> None:  # noqa: PLR0912 - calls cost
        """Release the reservations, call the plugins, count and log."""
        now = self._clock()
        decision, request, metrics = routed.decision, routed.request, routed.metrics
        decision.reservation.release(now)
        routed.release_stages(now)
        self.in_flight -= 1
        metrics.running.dec()
        metrics.duration.observe(now - decision.received_at)
        if routed.status is not None:
            self._response_seconds(routed.response_seconds)
        if metrics.awaits_proof and routed.status == _OK:
            metrics.prove(request.model, request.target_model)
        status = routed.status
        if status is None and request.stream:
            routed.endpoint.awaited -= 1
            if routed.hedge is not None:
                routed.hedge.end(now, has_succeeded=False)
                routed.hedge = None
        if (watch := self.watch) is not None:
            watch(routed, cause, now)
        routed.endpoint.responses[0 if status is None else status // 100 % 10] += 1
        if (
            self._outliers is not None
            and cause in _CONCLUSIVE
            and routed.response_source is not _BY_GATEWAY
        ):
            self._outliers.ended(routed.endpoint, is_whole=_is_whole(routed, cause, now))
        pipeline, parsed_by = routed.pipeline, routed.parsed_by
        try:
            has_usage = routed.usage is not None
            hooks = pipeline.response_complete if has_usage else pipeline.complete_without_usage
            if hooks:
                pipeline.ended(hooks, request, routed.endpoint, cause, routed.state)
            if routed.record is not None and self._recorder is not None:
                self._recorder.ended(routed, cause, now)
            if self._finished.enabled:
                try:
                    self._finished.write(finished_line(routed, cause, now))
                except Exception as error:  # a plugin may have changed the request's fields
                    self._refusals.fault(error, request.request_id)
        finally:
            pipeline.request_ended()
            if parsed_by is not pipeline:
                parsed_by.request_ended()
            if self._flow is not None:  # after the plugins, which give back what they count
                outcome = cause._value_  # as in the log line
                self._flow.ended(routed.queued, routed.in_flight, outcome, routed.usage)
                routed.queued = routed.in_flight = None  # they refer to this request


def _is_whole(routed: RoutedRequest, cause: EndCause, now: float) -> bool:
    """Return whether the response was probably complete, and not a 5xx.

    Without its body, a response that is cut off looks complete; but a streamed response rarely ends
    right after it begins.
    """
    status = routed.status
    if cause is _CLIENT_LEFT or status is None or status >= SERVER_ERROR:
        return False
    streamed_since = routed.responded_at
    return not (cause is _ENDED and streamed_since and now - streamed_since < _CUT_SECONDS)

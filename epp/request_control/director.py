"""The director: handles one request from parsing to the reservation of its endpoint.

Parsing, the operator's policies, the hooks before the choice, scheduling and the reservation happen
in one synchronous call, so that no other request comes between choosing an endpoint and counting
the request there. Only a request for which an asynchronous data producer runs, or that flow control
queues, waits in between; what follows the wait is one synchronous step again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from epp.flow_control import FlowController
from epp.observability import Metrics
from epp.outlier_detection import OutlierDetector
from epp.parsing import (
    BodyLimits,
    BodyTooLongError,
    CompressionRatioError,
    Decoding,
    NestedTooDeeplyError,
    ParseError,
    TooManyValuesError,
)
from epp.request_control.decider import Decider
from epp.request_control.dry_runs import DryRuns
from epp.request_control.errors import (
    AllFilteredError,
    BadRequestError,
    BodyTooLargeError,
    DecodedBodyTooLargeError,
    RequestError,
    TooDeepError,
    TooManyJsonValuesError,
)
from epp.request_control.forced_endpoint import ForcedEndpoints
from epp.request_control.hedging import Hedging
from epp.request_control.live_requests import LiveRequests, RequestWatch
from epp.request_control.memory import UNCOUNTED, RequestMemory
from epp.request_control.pending import AwaitingProducers, PendingDecision
from epp.request_control.pipeline import Pipeline
from epp.request_control.plugins import EndCause
from epp.request_control.policies import (
    DEFAULT_FAIRNESS_ID,
    NoPolicies,
    OutcomeWatch,
    RequestPolicies,
    apply_policies,
    names_model,
    priority_of,
)
from epp.request_control.prepared_request import PreparedRequest, RawRequest
from epp.request_control.producer_run import ProducerRun
from epp.request_control.queued_decision import QueuedDecision, ttl_of
from epp.request_control.recording import DecisionRecorder
from epp.request_control.refusals import Refusals
from epp.request_control.request_log import NO_FIELDS
from epp.request_control.routed_request import RoutedRequest
from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    bounded_id,
    caused,
)
from epp.tracing import RequestTrace


class Director:
    """Routes whole HTTP requests."""

    def __init__(
        self,
        *,
        pool: Callable[[], Sequence[Endpoint]],
        find_address: Callable[[str], Endpoint | None],
        pipeline: Pipeline,
        metrics: Metrics,
        clock: Callable[[], float],
        policies: RequestPolicies | None = None,
        outcomes: OutcomeWatch | None = None,
        flow: FlowController | None = None,
        outliers: OutlierDetector | None = None,
        hedging_budget: float = 0.0,
        emit_endpoint_scores: bool = False,
        emit_decision_header: bool = False,
        follow_subset_hint: bool = True,
        body_limits: BodyLimits | None = None,
        whole_pool: Callable[[], Sequence[Endpoint]] | None = None,
        why_none_serves: Callable[[], str] = lambda: "",
        log_fields: Mapping[str, str] = NO_FIELDS,
        recorder: DecisionRecorder | None = None,
        traced_as: str = "",
        forced: ForcedEndpoints | None = None,
    ) -> None:
        """Wire the director.

        Args:
            pool: Returns the endpoints that a request may go to now.
            find_address: Returns the pool's endpoint at ``ip:port``, None if it has none.
            pipeline: The plugins.
            metrics: Counts requests.
            clock: Monotonic seconds, the clock of endpoint loads.
            policies: The operator's objectives and model rewrites.
            outcomes: Notified of every request that was decided or refused.
            flow: Flow control. Without it, or while it is off, only sheddable requests to a full
                pool are refused.
            outliers: Outlier detection, which gets the status of responses; None without it.
            hedging_budget: Second tries by gateways that can hedge, as a share of their streamed
                requests; 0.0 for none.
            emit_endpoint_scores: Send the gateway the total score of every candidate.
            emit_decision_header: Tell clients the endpoint, its score and the request id.
            follow_subset_hint: Choose among the endpoints that the gateway names, if it names any.
            body_limits: Limits of bodies; None for the defaults.
            whole_pool: Returns all endpoints, including those that outlier detection has ejected,
                for a request that no other endpoint can serve; None if ``pool`` returns them all.
            why_none_serves: Returns why ``pool`` returns no endpoint although there are some; ""
                if there are none.
            log_fields: Fields of every log line of a request.
            recorder: Records decisions, refusals and outcomes; None for none.
            traced_as: Name of the pool in traces.
            forced: Reads the header that forces an endpoint; None to ignore it.
        """
        self._pool = pool
        self._forced = forced
        self.traced_as = traced_as
        """Name of the pool in traces."""
        self._policies = policies or NoPolicies()
        self._flow = flow
        self._recorder = recorder
        self._body_limits = body_limits or BodyLimits()
        self._dry_runs = DryRuns(
            outcomes,
            policies=self._policies,
            pool=pool,
            whole_pool=whole_pool or pool,
            body_limits=self._body_limits,
            follow_subset_hint=follow_subset_hint,
        )
        self._refusals = Refusals(
            metrics, clock, outcomes, self._dry_runs, log_fields, recorder=recorder
        )
        self._live = LiveRequests(
            find_address=find_address,
            metrics=metrics,
            clock=clock,
            flow=flow,
            refusals=self._refusals,
            outliers=outliers,
            hedging=Hedging(hedging_budget, metrics.hedged) if hedging_budget else None,
            recorder=recorder,
            log_fields=log_fields,
            emit_decision_header=emit_decision_header,
        )
        self._decider = Decider(
            pipeline,
            lifecycle=self._live,
            metrics=metrics,
            clock=clock,
            outcomes=outcomes,
            recorder=recorder,
            emit_endpoint_scores=emit_endpoint_scores,
            follow_subset_hint=follow_subset_hint,
            whole_pool=whole_pool or pool,
            why_none_serves=why_none_serves,
            log_fields=log_fields,
        )

    @property
    def in_flight(self) -> int:
        """The number of routed requests not yet closed."""
        return self._live.in_flight

    def watch_ends(self, watch: RequestWatch | None) -> None:
        """Call ``watch`` for each request that ends; None stops that. Thread-safe."""
        self._live.watch = watch

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of new requests; may be replaced between two requests."""
        return self._decider.pipeline

    @pipeline.setter
    def pipeline(self, pipeline: Pipeline) -> None:
        self._decider.pipeline = pipeline

    @property
    def previous_pipeline(self) -> Pipeline | None:
        """The pipeline before a reload, for dry runs of refused requests; None for no dry runs."""
        return self._dry_runs.pipeline

    @previous_pipeline.setter
    def previous_pipeline(self, pipeline: Pipeline | None) -> None:
        self._dry_runs.pipeline = pipeline

    def handle(
        self,
        *,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes | memoryview,
        received_at: float,
        subset: Sequence[str] | None = None,
        memory: RequestMemory = UNCOUNTED,
        decoded: bytes | None = None,
        trace: RequestTrace | None = None,
    ) -> RoutedRequest | PendingDecision:
        """Parse the request, choose an endpoint and reserve it, at once or later.

        Args:
            request_id: Id of the HTTP request.
            headers: Its headers by lower-case name, pseudo headers included.
            body: Its whole body; b"" for none. A memoryview is copied: copy a long one beforehand.
            received_at: When its headers arrived, in seconds of the clock.
            subset: Endpoints that the gateway allows, ``ip:port`` or ``ip``; None for all.
            memory: Counts the bytes that it holds, ``body`` and ``decoded`` already included.
            decoded: The body without its content encoding, if the caller has decoded it.
            trace: Records what happens to the request; None if it is not traced.

        Raises:
            RequestError: The error to answer with; it is counted and logged already.
        """
        request: LLMRequest | None = None
        raw: RawRequest | None = None
        prepared: PreparedRequest | None = None
        pipeline = self._decider.pipeline
        try:
            forced = "" if self._forced is None else self._forced.wanted(headers)
            body = bytes(body)  # no copy, unless it is a view
            if self._dry_runs.pipeline is not None and not forced:
                raw = RawRequest(request_id, headers, body, decoded, subset)
            try:
                parsed = pipeline.request_parser.parse(
                    request_id,
                    headers,
                    body,
                    may_lack_model=names_model(self._policies, headers),
                    limits=self._body_limits,
                    decoded=decoded,
                )
                request = parsed.request
                rewritten = apply_policies(self._policies, parsed)
            except ParseError as fault:
                raise caused(_as_request_error(fault), fault) from fault
            if rewritten is not None:
                memory.hold(len(rewritten))
                if raw is not None:
                    raw.target_model = request.target_model
            state = CycleState()
            if pipeline.header_processors:
                pipeline.request_came(request, state)
                if request.fairness_id:  # perhaps set by a plugin
                    request.fairness_id = bounded_id(request.fairness_id)
            if not request.fairness_id:
                request.fairness_id = DEFAULT_FAIRNESS_ID
            producer_run = ProducerRun(pipeline.producers, request, state)
            prepared = PreparedRequest(
                pipeline,
                producer_run,
                parsed.parser,
                rewritten,
                received_at,
                subset,
                memory,
                raw,
                trace,
                forced,
            )
            if steps := producer_run.advance():
                prepared.begin_to_wait()
                return AwaitingProducers(prepared, steps, self._decide, self._refusals)
            return self._decide(prepared)
        except Exception as error:
            refusal = self._refusals.refused(
                error,
                request_id=request_id,
                request=request,
                headers=headers,
                received_at=received_at,
                raw=raw,
                candidates=() if prepared is None else prepared.candidates,
                trace=trace,
            )
            try:
                if refusal is error:
                    raise
                raise caused(refusal, error) from error
            finally:
                del refusal  # its traceback refers to this frame, and the frame to the body

    def decoding(self, headers: Mapping[str, str], body: bytes | memoryview) -> Decoding | None:
        """Return the decoding to finish before :meth:`handle`; None if the body needs none.

        Raises:
            ParseError: No parser claims the path.
        """
        return self.pipeline.request_parser.decoding(headers, body, self._body_limits)

    def refuse(
        self,
        error: Exception,
        *,
        request_id: str,
        headers: Mapping[str, str],
        received_at: float,
        trace: RequestTrace | None = None,
    ) -> RequestError:
        """Count and log a request that ends with ``error`` before :meth:`handle` was called.

        Returns:
            The error to answer with.
        """
        return self._refusals.refused(
            _as_request_error(error) if isinstance(error, ParseError) else error,
            request_id=request_id,
            request=None,
            headers=headers,
            received_at=received_at,
            trace=trace,
        )

    def ended_early(
        self,
        why: RequestError | EndCause,
        *,
        request_id: str,
        headers: Mapping[str, str],
        received_at: float,
    ) -> None:
        """Record a request that ended before its body was complete; it is counted already.

        Args:
            why: The error it ends with, or how its client left.
            request_id: Id of the HTTP request.
            headers: Its headers by lower-case name.
            received_at: When its headers arrived, in seconds of the clock.
        """
        recorder, path = self._recorder, headers.get(":path", "")
        if recorder is None:
            return
        if isinstance(why, RequestError):
            recorder.refused(why, request_id, None, received_at, (), path=path)
        else:
            recorder.abandoned_early(request_id, path, why, received_at)

    def priority_of(self, headers: Mapping[str, str]) -> int:
        """Return the priority of a request with these headers, by its objective."""
        return priority_of(self._policies, headers)

    def _decide(self, prepared: PreparedRequest) -> RoutedRequest | PendingDecision:
        """Choose and reserve in one step, or queue the request in flow control."""
        flow, decider = self._flow, self._decider
        control = None if flow is None else flow.active
        if prepared.forced:
            return self._force(prepared, flow if control is not None else None)
        request, pool = prepared.producer_run.request, self._pool()
        if flow is None or control is None:
            if request.priority < 0 and pool:
                prepared.pipeline.shed(request, pool)
            return decider.route(prepared, decider.choose(prepared, pool))
        ttl_seconds = ttl_of(request.headers)
        if flow.lets_pass(request):
            try:
                result = decider.choose(prepared, pool)
            except AllFilteredError:
                if not control.settings.holds_filtered:
                    raise
            else:
                flow.passed(request)
                routed = decider.route(prepared, result)
                routed.allow_eviction(flow)
                return routed
        prepared.begin_to_wait()
        decision = QueuedDecision(prepared, decider, flow, self._refusals)
        decision.submit(ttl_seconds)
        return decision.outcome if isinstance(decision.outcome, RoutedRequest) else decision

    def _force(self, prepared: PreparedRequest, flow: FlowController | None) -> RoutedRequest:
        """Send the request to the endpoint that its header names, ahead of all waiting requests.

        Args:
            prepared: The request.
            flow: Flow control; None while it is off.
        """
        assert self._forced is not None  # noqa: S101 - it has read the header
        endpoint = self._forced.found(prepared.forced)
        routed = self._decider.route(prepared, self._decider.force(prepared, endpoint))
        if flow is not None:
            flow.passed(prepared.request)
            routed.allow_eviction(flow)
        return routed


_REQUEST_ERRORS: Final[Mapping[type[ParseError], type[RequestError]]] = {
    BodyTooLongError: BodyTooLargeError,
    CompressionRatioError: DecodedBodyTooLargeError,
    NestedTooDeeplyError: TooDeepError,
    TooManyValuesError: TooManyJsonValuesError,
}
"""The client's error for each error of parsing; any other is a bad request."""


def _as_request_error(error: ParseError) -> RequestError:
    return _REQUEST_ERRORS.get(type(error), BadRequestError)(str(error))

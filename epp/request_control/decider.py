"""Turns a parsed request into a routed one: candidates, choice, reservation."""

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from epp.observability import DebugLine, Metrics
from epp.request_control.conditional import PREFER_HEADER, acceptance
from epp.request_control.decision import Decision
from epp.request_control.decision_log import chosen_fields, no_endpoint_fields
from epp.request_control.errors import (
    AllFilteredError,
    NoCandidatesError,
    NoCandidatesForNoBodyError,
    OutsideSubsetError,
    PluginFailedError,
    ProfileNotFoundError,
    RequestDroppedError,
    RequestError,
)
from epp.request_control.forced_endpoint import forced_result
from epp.request_control.pipeline import Pipeline
from epp.request_control.plugins import REQUEST_HEADERS_TO_SET, EndCause
from epp.request_control.policies import OutcomeWatch
from epp.request_control.prepared_request import PreparedRequest
from epp.request_control.recording import DecisionRecorder
from epp.request_control.request_log import NO_FIELDS
from epp.request_control.routed_request import RequestLifecycle, RoutedRequest
from epp.request_control.subset import within
from epp.scheduling import (
    DroppedError,
    Endpoint,
    FilterFailedError,
    NoEndpointsError,
    ProfileResult,
    Reservation,
    SchedulingResult,
    ScoredEndpoint,
    ShadowPick,
    UnknownProfileError,
    caused,
)

perf_counter: Final = time.perf_counter  # compiled code looks up an imported name at each use

_REQUEST_ERRORS: Final[Mapping[type[Exception], type[RequestError]]] = {
    NoEndpointsError: AllFilteredError,
    FilterFailedError: PluginFailedError,
    DroppedError: RequestDroppedError,
    UnknownProfileError: ProfileNotFoundError,
}
"""The client's error for each error of the scheduler; any other is a fault of this EPP."""

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_STAGES: Final[tuple[Sequence[Reservation], Mapping[str, Endpoint]]] = ((), MappingProxyType({}))


class Decider:
    """Chooses endpoints and reserves them; every step is synchronous.

    Args:
        pipeline: The pipeline of new requests.
        lifecycle: Called at each step of a routed request's life.
        metrics: Counts decisions.
        clock: Monotonic seconds, the clock of endpoint loads.
        outcomes: Notified of every decision.
        recorder: Records decisions; None for none.
        emit_endpoint_scores: See :class:`Director`.
        follow_subset_hint: See :class:`Director`.
        whole_pool: See :class:`Director`.
        why_none_serves: See :class:`Director`.
        log_fields: See :class:`Director`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        lifecycle: RequestLifecycle,
        metrics: Metrics,
        clock: Callable[[], float],
        outcomes: OutcomeWatch | None,
        recorder: DecisionRecorder | None,
        emit_endpoint_scores: bool,
        follow_subset_hint: bool,
        whole_pool: Callable[[], Sequence[Endpoint]],
        why_none_serves: Callable[[], str],
        log_fields: Mapping[str, str] = NO_FIELDS,
    ) -> None:
        self.pipeline = pipeline
        """The pipeline of new requests; replaced by a reload."""
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._clock = clock
        self._outcomes = outcomes
        self._recorder = recorder
        self._emit_endpoint_scores = emit_endpoint_scores
        self._follow_subset_hint = follow_subset_hint
        self._whole_pool = whole_pool
        self._why_none_serves = why_none_serves
        self._schedule_seconds = metrics.scheduler_e2e.observe
        self._processing_seconds = metrics.request_processing.observe
        self._attempts = metrics.attempts
        self._count_decision = metrics.decisions.decided
        self._chosen = DebugLine("endpoint chosen", logger=__name__, **log_fields)
        self._no_endpoint = DebugLine("no endpoint left", logger=__name__, **log_fields)

    def choose(
        self,
        prepared: PreparedRequest,
        endpoints: Sequence[Endpoint],
        preference: Mapping[Endpoint, float] | None = None,
    ) -> SchedulingResult:
        """Choose among ``endpoints``; nothing is reserved.

        Args:
            prepared: The request.
            endpoints: The pool, or a part of it.
            preference: A score for each of them, added to the profiles' own.

        Raises:
            RequestError: No endpoint is left, or a plugin refuses the request.
        """
        trace = prepared.trace
        if trace is not None:
            trace.begin_choice()
        try:
            return self._choose(prepared, endpoints, preference)
        except (AllFilteredError, OutsideSubsetError) as error:
            # An ejected endpoint may be the only one of its kind: then it is better than none.
            whole_pool = self._whole_pool()
            if preference is not None or len(endpoints) >= len(whole_pool) or _is_held(error):
                raise
            return self._choose(prepared, whole_pool, preference)
        finally:
            if trace is not None:
                trace.end_choice(prepared.candidates, prepared.pipeline.scheduler.profiles)

    def _choose(
        self,
        prepared: PreparedRequest,
        endpoints: Sequence[Endpoint],
        preference: Mapping[Endpoint, float] | None,
    ) -> SchedulingResult:
        request, state = prepared.producer_run.request, prepared.producer_run.state
        candidates = candidates_of(
            prepared, endpoints, self._follow_subset_hint, self._why_none_serves
        )
        prepared.candidates = candidates
        began = perf_counter()
        try:
            result = prepared.pipeline.scheduler.schedule(
                request,
                candidates,
                state,
                preference,
                acceptance(request.headers, state) if PREFER_HEADER in request.headers else None,
            )
        except Exception as error:
            self._attempts.failed(request.target_model)
            if self._no_endpoint.enabled and isinstance(error, NoEndpointsError):
                self._no_endpoint.write(no_endpoint_fields, request, candidates, error)
            if kind := _REQUEST_ERRORS.get(type(error)):
                raise caused(kind(str(error)), error) from error
            raise
        self._schedule_seconds(perf_counter() - began)
        return result

    def force(self, prepared: PreparedRequest, endpoint: Endpoint) -> SchedulingResult:
        """Choose ``endpoint`` without asking filters, scorers and picker; nothing is reserved.

        Raises:
            RequestError: An admitter refuses the request.
        """
        pipeline, producer_run, trace = prepared.pipeline, prepared.producer_run, prepared.trace
        prepared.candidates = candidates = (endpoint,)
        if trace is not None:
            trace.begin_choice()
        try:
            producer_run.attach(candidates)
            if pipeline.admitters:
                pipeline.admit(producer_run.request, candidates, producer_run.state)
        finally:
            if trace is not None:
                trace.end_choice(candidates, pipeline.scheduler.profiles)
        return forced_result(endpoint)

    def route(
        self,
        prepared: PreparedRequest,
        result: SchedulingResult,
        *,
        pipeline: Pipeline | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> RoutedRequest:
        """Reserve ``result`` in the step in which :meth:`choose` returned it.

        Args:
            prepared: The request.
            result: The endpoints to reserve.
            pipeline: Its hooks run from now on; by default those of ``prepared.pipeline``.
            headers: Headers to set on the way to the model server, besides those of plugins.
        """
        request, state = prepared.producer_run.request, prepared.producer_run.state
        candidates = prepared.candidates
        shadow: Sequence[ShadowPick] = ()
        shadow_results: list[ProfileResult] = []
        if (
            prepared.pipeline.shadows and not prepared.forced
        ):  # before the reservation, which they must not see
            shadow = prepared.pipeline.shadow_picks(
                request, candidates, state, result, shadow_results
            )
            self._count_shadows(shadow)
        pipeline = pipeline or prepared.pipeline
        metrics = self._metrics.for_request(
            request.model, request.target_model, request.fairness_id, request.priority
        )
        scores = _scores(result) if self._emit_endpoint_scores else None
        picked = result.endpoints  # a property
        endpoint = picked[0].endpoint
        destination = result.destination or _addresses(picked)
        now = self._clock()
        load: Any = endpoint.load  # Any: compiled code would turn its ints into floats
        waiting_requests, running_requests = load.waiting_requests, load.running_requests
        kv_cache_usage, requested_at = load.kv_cache_usage, endpoint.metrics.requested_at
        recorder = self._recorder
        inputs = None if recorder is None else recorder.inputs(candidates, now)
        stage_reservations, stages = _NO_STAGES
        if len(result.profiles) > 1:
            stage_reservations, stages = _reserve_stages(result, now)
        reservation = Reservation(load, now)
        try:
            if pipeline.pre_request:
                pipeline.chosen(request, result, candidates, state)
            decision = Decision(  # by position: keywords would cost 3 us
                request,
                candidates,
                result,
                endpoint,
                destination,
                _request_headers(prepared, headers),
                prepared.received_at,
                now,
                waiting_requests,
                running_requests,
                kv_cache_usage,
                None if requested_at is None else now - requested_at,
                reservation,
                stage_reservations,
                stages,
                scores,
                shadow,
                bool(prepared.forced),
            )
            routed = RoutedRequest(self._lifecycle, decision, prepared, pipeline, metrics)
            if recorder is not None and inputs is not None:
                recorder.decided(routed, inputs, shadow_results)
        except BaseException:
            for each in (reservation, *stage_reservations):
                each.release(self._clock())
            hooks = pipeline.complete_without_usage
            pipeline.ended(hooks, request, endpoint, EndCause.ERROR, state)
            raise
        self._attempts.succeeded(request.target_model, endpoint)
        self._count_decision(result)
        if self._chosen.enabled:
            self._chosen.write(chosen_fields, request, candidates, result, now)
        self._lifecycle.began(routed)
        self._processing_seconds(now - prepared.received_at)
        if self._outcomes is not None:
            self._outcomes.routed()
        return routed

    def _count_shadows(self, picks: Sequence[ShadowPick]) -> None:
        for pick in picks:
            self._metrics.shadow_runs.labels(pick.profile).inc()
            if not pick.agrees:
                self._metrics.shadow_disagreements.labels(pick.profile).inc()


def candidates_of(
    prepared: PreparedRequest,
    endpoints: Sequence[Endpoint],
    follow_subset_hint: bool,
    why_none_serves: Callable[[], str] = lambda: "",
) -> Sequence[Endpoint]:
    """Run screeners, ``attach`` of producers, and admitters; return the request's candidates.

    Args:
        prepared: The request.
        endpoints: The pool, or a part of it.
        follow_subset_hint: See :class:`Director`.
        why_none_serves: See :class:`Director`.

    Raises:
        RequestError: No endpoint is left, or a plugin refuses the request.
    """
    pipeline, producer_run = prepared.pipeline, prepared.producer_run
    request, state = producer_run.request, producer_run.state
    if not endpoints:
        kind = NoCandidatesError if request.body_bytes else NoCandidatesForNoBodyError
        raise kind(
            why_none_serves() or "the pool has no endpoint: is discovery configured and running?"
        )
    if prepared.subset is not None and follow_subset_hint:
        endpoints = within(prepared.subset, endpoints)
    if pipeline.screeners:
        endpoints = pipeline.screened(request, endpoints, state)
    producer_run.attach(endpoints)
    if pipeline.admitters:
        pipeline.admit(request, endpoints, state)
    return endpoints


def _is_held(error: RequestError) -> bool:
    """Return whether endpoints of the pool suit a request, and one of them will have room."""
    cause = error.__cause__
    return isinstance(cause, NoEndpointsError) and cause.is_held


def _scores(result: SchedulingResult) -> Mapping[str, float]:
    """Return the total scores of the primary profile, by ``ip:port``."""
    scored = result.profiles[result.primary].scored
    return {each.endpoint.address: each.score for each in scored}


def _addresses(picked: Sequence[ScoredEndpoint]) -> str:
    if len(picked) == 1:
        return picked[0].endpoint.address
    return ",".join([each.endpoint.address for each in picked])


def _reserve_stages(
    result: SchedulingResult, now: float
) -> tuple[Sequence[Reservation], Mapping[str, Endpoint]]:
    """Reserve the best endpoint of every profile but the primary one; also return them."""
    stages = {
        name: other.endpoints[0].endpoint
        for name, other in result.profiles.items()
        if name != result.primary and other.endpoints
    }
    return [Reservation(endpoint.load, now) for endpoint in stages.values()], stages


def _request_headers(
    prepared: PreparedRequest, headers: Mapping[str, str]
) -> Mapping[str, str | None]:
    """Return the headers to set: those of plugins, overridden by ``headers``."""
    set_by_plugins = prepared.producer_run.state.read(REQUEST_HEADERS_TO_SET) or _NO_HEADERS
    request_headers = prepared.producer_run.request.headers
    is_decoded = prepared.rewritten is not None and "content-encoding" in request_headers
    if not (is_decoded or headers):
        return set_by_plugins
    # The body that is sent on is decoded, whatever encoding plugins have set.
    decoded = {"content-encoding": None} if is_decoded else {}
    return {**set_by_plugins, **decoded, **headers}

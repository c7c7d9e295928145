"""From a parsed request to a routed one: candidates, choice, reservation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from epp.observability import Metrics
from epp.parsing import Parser, reader_finder
from epp.request_control.conditional import PREFER_HEADER, acceptance
from epp.request_control.errors import (
    AllFilteredError,
    NoCandidatesError,
    NoCandidatesForNoBodyError,
    ProfileNotFoundError,
    RequestDroppedError,
    RequestError,
)
from epp.request_control.memory import UNCOUNTED, RequestMemory
from epp.request_control.pipeline import Pipeline
from epp.request_control.plugins import REQUEST_HEADERS_TO_SET, EndCause
from epp.request_control.policies import OutcomeWatch
from epp.request_control.producer_run import ProducerRun
from epp.request_control.routed_request import RoutedRequest, RoutedRequestOwner
from epp.request_control.subset import within
from epp.scheduling import (
    DroppedError,
    Endpoint,
    Guard,
    NoEndpointsError,
    SchedulingResult,
    ShadowPick,
    UnknownProfileError,
)

_ANSWERS: Mapping[type[Exception], type[RequestError]] = {
    NoEndpointsError: AllFilteredError,
    DroppedError: RequestDroppedError,
    UnknownProfileError: ProfileNotFoundError,
}
"""What the scheduler's errors are to the client; any other is a fault of this EPP."""


@dataclass(slots=True, eq=False)
class PreparedRequest:
    """A request that is read and prepared, and what its decision needs."""

    pipeline: Pipeline
    producer_run: ProducerRun
    """All of its producers have prepared it."""
    parser: Guard[Parser] | None
    rewritten: bytes | None
    """What to send on in place of what was received."""
    received_at: float
    subset: Sequence[str] | None
    """What the gateway lets it go to; None for all of the pool."""
    memory: RequestMemory = UNCOUNTED
    """The account of what it holds."""
    candidates: Sequence[Endpoint] = ()
    """What the last choice was among."""

    is_waiting: bool = False

    def begin_to_wait(self) -> None:
        """Put what the request keeps only because it waits on its account; idempotent.

        Raises:
            HeldBytesError: There is no memory left for it.
        """
        if not self.is_waiting:
            self.is_waiting = True
            request = self.producer_run.request
            self.memory.hold(len(request.prompt) + len(request.tools) + len(request.template))


class Decider:
    """Chooses endpoints and reserves them; every step is synchronous."""

    def __init__(
        self,
        *,
        owner: RoutedRequestOwner,
        metrics: Metrics,
        clock: Callable[[], float],
        outcomes: OutcomeWatch | None,
        emit_endpoint_scores: bool,
        follow_subset_hint: bool,
    ) -> None:
        self.in_flight = 0
        """Routed requests not yet closed."""
        self._owner = owner
        self._metrics = metrics
        self._clock = clock
        self._outcomes = outcomes
        self._emit_endpoint_scores = emit_endpoint_scores
        self._follow_subset_hint = follow_subset_hint
        self._schedule_seconds = metrics.scheduler_e2e.observe
        self._processing_seconds = metrics.request_processing.observe
        self._attempts = metrics.attempts

    def choose(
        self,
        prepared: PreparedRequest,
        endpoints: Sequence[Endpoint],
        preference: Mapping[Endpoint, float] | None = None,
    ) -> SchedulingResult:
        """Choose among ``endpoints``; nothing is reserved.

        Args:
            prepared: The request.
            endpoints: Those of the pool that it may go to.
            preference: A score for each of them that counts beside the profiles' own.

        Raises:
            RequestError: There is nothing to choose from, or a plugin turns the request away.
        """
        pipeline, producer_run = prepared.pipeline, prepared.producer_run
        request, state = producer_run.request, producer_run.state
        if not endpoints:
            kind = NoCandidatesError if request.body_bytes else NoCandidatesForNoBodyError
            raise kind("the pool has no endpoint: is discovery configured and running?")
        if prepared.subset is not None and self._follow_subset_hint:
            endpoints = within(prepared.subset, endpoints)
        if pipeline.screeners:
            endpoints = pipeline.screened(request, endpoints, state)
        prepared.candidates = endpoints
        producer_run.attach(endpoints)
        if pipeline.admitters:
            pipeline.admit(request, endpoints, state)
        began = perf_counter()
        try:
            result = pipeline.scheduler.schedule(
                request,
                endpoints,
                state,
                preference,
                acceptance(request.headers, state) if PREFER_HEADER in request.headers else None,
            )
        except Exception as error:
            self._attempts.failed(request.target_model)
            if answer := _ANSWERS.get(type(error)):
                raise answer(str(error)) from error
            raise
        self._schedule_seconds(perf_counter() - began)
        return result

    def take(
        self, prepared: PreparedRequest, result: SchedulingResult, pipeline: Pipeline | None = None
    ) -> RoutedRequest:
        """Reserve ``result``, what :meth:`choose` returned in the same step.

        Args:
            prepared: The request.
            result: Where it goes.
            pipeline: Whose hooks are told from now on; None for those of the one it began with.
        """
        pipeline, rewritten = pipeline or prepared.pipeline, prepared.rewritten
        request, state = prepared.producer_run.request, prepared.producer_run.state
        shadow: Sequence[ShadowPick] = ()
        if prepared.pipeline.shadows:  # before the reservation, which they must not see
            shadow = prepared.pipeline.shadow_picks(request, prepared.candidates, state, result)
            self._count_shadows(shadow)
        routed = RoutedRequest(
            self._owner,
            pipeline=pipeline,
            request=request,
            state=state,
            result=result,
            metrics=self._metrics.for_request(
                request.model, request.target_model, request.fairness_id, request.priority
            ),
            received_at=prepared.received_at,
            decided_at=self._clock(),
            body=rewritten,
            scores=_scores(result) if self._emit_endpoint_scores else None,
            shadow=shadow,
        )
        try:
            self._tell(prepared, pipeline, routed, result)
        except BaseException:
            routed.undo(self._clock())
            hooks = pipeline.complete_without_usage
            pipeline.ended(hooks, request, routed.endpoint, EndCause.ERROR, state)
            raise
        self._attempts.succeeded(request.target_model, routed.endpoint)
        pipeline.request_began()
        if pipeline is not prepared.pipeline:  # whose parser reads the answer
            prepared.pipeline.request_began()
            routed.begun_on = prepared.pipeline
        self.in_flight += 1
        routed.metrics.total.inc()
        routed.metrics.running.inc()
        routed.metrics.size.observe(request.body_bytes)
        self._processing_seconds(routed.decided_at - routed.received_at)
        if self._outcomes is not None:
            self._outcomes.note(False)
        return routed

    def _tell(
        self,
        prepared: PreparedRequest,
        pipeline: Pipeline,
        routed: RoutedRequest,
        result: SchedulingResult,
    ) -> None:
        """Tell the plugins of a decision whose endpoints are reserved."""
        request, state = routed.request, routed.state
        if prepared.parser is not None:
            routed.find_reader = reader_finder(prepared.parser, request)
        if pipeline.pre_request:
            pipeline.chosen(request, result, prepared.candidates, state)
        if prepared.rewritten is not None and "content-encoding" in request.headers:
            # After the plugins, which may set the headers anew: the body is plain now.
            set_by_plugins = state.read(REQUEST_HEADERS_TO_SET) or {}
            changed = {**set_by_plugins, "content-encoding": None}
            state.write(REQUEST_HEADERS_TO_SET, changed)

    def _count_shadows(self, picks: Sequence[ShadowPick]) -> None:
        for pick in picks:
            self._metrics.shadow_runs.labels(pick.profile).inc()
            if not pick.agrees:
                self._metrics.shadow_disagreements.labels(pick.profile).inc()


def _scores(result: SchedulingResult) -> Mapping[str, float]:
    """Return the totals of all that the primary profile scored, by ``ip:port``."""
    scored = result.profiles[result.primary].scored
    return {each.endpoint.address: each.score for each in scored}

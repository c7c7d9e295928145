"""The director: one request, top to bottom.

Parsing, the operator's policies, the hooks before the choice, scheduling and the reservation happen
in one synchronous call, so choosing an endpoint and counting the request there cannot be torn apart
by another request. Only a request that an asynchronous data producer applies to waits in between;
what comes after the wait is one synchronous step again.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

from epp.observability import CanonicalLine, Metrics
from epp.parsing import (
    DEFAULT_MAX_BODY_BYTES,
    BodyTooLongError,
    NestedTooDeeplyError,
    ParseError,
    Parser,
    reader_finder,
)
from epp.request_control.attempts import Attempts
from epp.request_control.errors import (
    AllFilteredError,
    BadRequestError,
    BodyTooLargeError,
    NoCandidatesError,
    NoCandidatesForNoBodyError,
    ProfileNotFoundError,
    RequestDroppedError,
    RequestError,
    TooDeepError,
)
from epp.request_control.exchange import Exchange
from epp.request_control.pending import PendingDecision
from epp.request_control.pipeline import Pipeline
from epp.request_control.plugins import REQUEST_HEADERS_TO_SET, EndCause
from epp.request_control.policies import (
    DEFAULT_FAIRNESS_ID,
    NoPolicies,
    OutcomeWatch,
    RequestPolicies,
    apply_policies,
    names_model,
)
from epp.request_control.production import AsyncStep, Production
from epp.request_control.refusals import Refusals
from epp.request_control.request_line import finished_line
from epp.request_control.subset import within
from epp.scheduling import (
    CycleState,
    DroppedError,
    Endpoint,
    Guard,
    LLMRequest,
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


class Director:
    """Takes whole HTTP requests and returns exchanges."""

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
        emit_endpoint_scores: bool = False,
        follow_subset_hint: bool = True,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    ) -> None:
        """Wire the director.

        Args:
            pool: Returns the present snapshot of endpoints.
            find_address: Returns the pool's endpoint at ``ip:port``, None if it has none.
            pipeline: What plugins do to requests.
            metrics: Where requests are counted.
            clock: Monotonic seconds, the clock that endpoint loads are kept in.
            policies: The operator's objectives and model rewrites.
            outcomes: Is told of every request that was decided or refused.
            emit_endpoint_scores: Tell the gateway the total score of every candidate.
            follow_subset_hint: Choose among the endpoints that the gateway names, if it does.
            max_body_bytes: The most that a body may have without its content encoding.
        """
        self.pipeline = pipeline
        """The one that requests begin on from now on; may be replaced between two of them."""
        self.in_flight = 0
        """Exchanges not yet closed."""
        self._pool = pool
        self._find_address = find_address
        self._metrics = metrics
        self._clock = clock
        self._policies = policies or NoPolicies()
        self._outcomes = outcomes
        self._emit_endpoint_scores = emit_endpoint_scores
        self._follow_subset_hint = follow_subset_hint
        self._max_body_bytes = max_body_bytes
        self._schedule_seconds = metrics.scheduler_e2e.observe
        self._attempts = Attempts(metrics)
        self._refusals = Refusals(metrics, clock, outcomes)
        self._finished = CanonicalLine("request finished")

    def handle(
        self,
        *,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes,
        received_at: float,
        subset: Sequence[str] | None = None,
    ) -> Exchange | PendingDecision:
        """Parse, schedule and reserve, or wait for what the choice depends on.

        Args:
            request_id: Id of the HTTP request.
            headers: Its headers by lower-case name, pseudo headers included.
            body: Its whole body; b"" for none.
            received_at: When its headers came, in seconds of the clock.
            subset: What the gateway lets it go to, ``ip:port`` or ``ip``; None for all of the pool.

        Raises:
            RequestError: What to answer instead; it is counted and logged already.
        """
        request: LLMRequest | None = None
        pipeline = self.pipeline
        try:
            try:
                reading = pipeline.intake.read(
                    request_id,
                    headers,
                    body,
                    may_lack_model=names_model(self._policies, headers),
                    max_body_bytes=self._max_body_bytes,
                )
                request = reading.request
                rewritten = apply_policies(self._policies, reading)
            except BodyTooLongError as error:
                raise BodyTooLargeError(str(error)) from error
            except NestedTooDeeplyError as error:
                raise TooDeepError(str(error)) from error
            except ParseError as error:
                raise BadRequestError(str(error)) from error
            state = CycleState()
            if pipeline.header_processors:
                pipeline.request_came(request, state)
            if not request.fairness_id:
                request.fairness_id = DEFAULT_FAIRNESS_ID
            production = Production(pipeline.producers, request, state)
            if asked := production.advance():
                return self._pending(
                    pipeline,
                    production,
                    asked,
                    parser=reading.parser,
                    rewritten=rewritten,
                    received_at=received_at,
                    subset=subset,
                )
            return self._decide(
                pipeline,
                production,
                parser=reading.parser,
                rewritten=rewritten,
                received_at=received_at,
                subset=subset,
            )
        except Exception as error:
            answer = self._refusals.refused(
                error,
                request_id=request_id,
                request=request,
                headers=headers,
                received_at=received_at,
            )
            if answer is error:
                raise
            raise answer from error

    def served(self, exchange: Exchange, address: str) -> None:
        """Move ``exchange`` to the endpoint at ``address``, if the pool has it."""
        endpoint = self._find_address(address)
        if endpoint is not None:
            exchange.reservation.move(endpoint.load, self._clock())
            exchange.endpoint = endpoint

    def answered(self, exchange: Exchange) -> None:
        """Give back what the stages before the primary profile hold."""
        exchange.release_stages(self._clock())

    def finish(self, exchange: Exchange, cause: EndCause) -> None:
        """Release the reservation, tell the plugins, count and log; once per exchange."""
        now = self._clock()
        exchange.reservation.release(now)
        exchange.release_stages(now)
        self.in_flight -= 1
        metrics = exchange.metrics
        metrics.running.dec()
        metrics.duration.observe(now - exchange.received_at)
        pipeline = exchange.pipeline
        try:
            if pipeline.response_complete:
                pipeline.ended(exchange.request, exchange.endpoint, cause, exchange.state)
            if self._finished.enabled:
                self._finished.write(finished_line(exchange, cause, now))
        finally:
            pipeline.leave()

    def _pending(
        self,
        pipeline: Pipeline,
        production: Production,
        asked: Sequence[AsyncStep],
        *,
        parser: Guard[Parser] | None,
        rewritten: bytes | None,
        received_at: float,
        subset: Sequence[str] | None,
    ) -> PendingDecision:
        request = production.request

        def decide() -> Exchange | RequestError:
            try:
                return self._decide(
                    pipeline,
                    production,
                    parser=parser,
                    rewritten=rewritten,
                    received_at=received_at,
                    subset=subset,
                )
            except Exception as error:
                return self._refusals.refused(
                    error,
                    request_id=request.request_id,
                    request=request,
                    headers=request.headers,
                    received_at=received_at,
                )
            finally:
                pipeline.leave()

        def abandon(cause: EndCause) -> None:
            self._refusals.abandoned(request, cause, received_at)
            pipeline.leave()

        pending = PendingDecision(production, asked, decide=decide, abandon=abandon)
        pipeline.enter()
        return pending

    def _decide(
        self,
        pipeline: Pipeline,
        production: Production,
        *,
        parser: Guard[Parser] | None,
        rewritten: bytes | None,
        received_at: float,
        subset: Sequence[str] | None,
    ) -> Exchange:
        """Choose and reserve, in one step."""
        request, state = production.request, production.state
        endpoints = self._pool()
        if not endpoints:
            kind = NoCandidatesError if request.body_bytes else NoCandidatesForNoBodyError
            raise kind("the pool has no endpoint: is discovery configured and running?")
        if request.priority < 0:
            pipeline.shed(request, endpoints)
        if subset is not None and self._follow_subset_hint:
            endpoints = within(subset, endpoints)
        if pipeline.screeners:
            endpoints = pipeline.screened(request, endpoints, state)
        production.attach(endpoints)
        if pipeline.admitters:
            pipeline.admit(request, endpoints, state)
        began = perf_counter()
        try:
            result = pipeline.scheduler.schedule(request, endpoints, state)
        except Exception as error:
            self._attempts.failed(request.target_model)
            if answer := _ANSWERS.get(type(error)):
                raise answer(str(error)) from error
            raise
        self._schedule_seconds(perf_counter() - began)
        shadow: Sequence[ShadowPick] = ()
        if pipeline.shadows:  # before the reservation, which they must not see
            shadow = pipeline.shadow_picks(request, endpoints, state, result)
            self._count_shadows(shadow)
        exchange = Exchange(
            self,
            pipeline=pipeline,
            request=request,
            state=state,
            result=result,
            metrics=self._metrics.for_request(
                request.model, request.target_model, request.fairness_id, request.priority
            ),
            received_at=received_at,
            decided_at=self._clock(),
            body=rewritten,
            scores=_scores(result) if self._emit_endpoint_scores else None,
            shadow=shadow,
        )
        if parser is not None:
            exchange.find_reader = reader_finder(parser, request)
        if pipeline.pre_request:
            pipeline.chosen(request, result, state)
        if rewritten is not None and "content-encoding" in request.headers:
            # After the plugins, which may set the headers anew: the body is plain now.
            set_by_plugins = state.read(REQUEST_HEADERS_TO_SET) or {}
            changed = {**set_by_plugins, "content-encoding": None}
            state.write(REQUEST_HEADERS_TO_SET, changed)
        self._attempts.succeeded(request.target_model, exchange.endpoint)
        pipeline.enter()
        self.in_flight += 1
        exchange.metrics.total.inc()
        exchange.metrics.running.inc()
        exchange.metrics.size.observe(request.body_bytes)
        if self._outcomes is not None:
            self._outcomes.note(False)
        return exchange

    def _count_shadows(self, picks: Sequence[ShadowPick]) -> None:
        for pick in picks:
            self._metrics.shadow_runs.labels(pick.profile).inc()
            if not pick.agrees:
                self._metrics.shadow_disagreements.labels(pick.profile).inc()


def _scores(result: SchedulingResult) -> Mapping[str, float]:
    """Return the totals of all that the primary profile scored, by ``ip:port``."""
    scored = result.profiles[result.primary].scored
    return {each.endpoint.address: each.score for each in scored}

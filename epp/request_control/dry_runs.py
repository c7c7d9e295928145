"""Dry runs of refused requests: would the configuration before a reload have routed them?

While a reload is watched, a request that the new pipeline refuses is decided again by the previous
one, from its headers and body, on the same endpoints. Nothing is reserved, queued, counted or
logged. Only the plugins that take part in the choice are called, with a request and a cycle state
of their own; no asynchronous producer runs, and no hook that follows a choice. The policies and the
limits are those of this process, which no reload changes.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from epp.parsing import BodyLimits
from epp.request_control.conditional import acceptance
from epp.request_control.decider import candidates_of
from epp.request_control.errors import (
    InvalidTtlError,
    LimitError,
    NoCandidatesError,
    NotCachedError,
    OutsideSubsetError,
    QueueExpiredError,
    QueueFullError,
    QueueNoEndpointsError,
    RequestError,
)
from epp.request_control.pipeline import Pipeline
from epp.request_control.policies import (
    DEFAULT_FAIRNESS_ID,
    OutcomeWatch,
    RequestPolicies,
    apply_policies,
    names_model,
)
from epp.request_control.prepared_request import PreparedRequest, RawRequest
from epp.request_control.producer_run import ProducerRun
from epp.scheduling import (
    CycleState,
    Endpoint,
    NoEndpointsError,
    SchedulingResult,
    bounded_id,
    described,
)

_NOT_JUDGED = (
    InvalidTtlError,
    LimitError,
    NoCandidatesError,
    NotCachedError,  # not a fault: it tells a coordinator to have the prompt prefilled
    QueueExpiredError,
    QueueFullError,
    QueueNoEndpointsError,
)
"""Refusals that do not depend on the plugins that take part in a dry run."""


class DryRuns:
    """Judges refused requests; a request that needs an asynchronous producer is not judged.

    Args:
        outcomes: Says whether a dry run is wanted, and receives its result; None for no dry runs.
        policies: The operator's objectives and model rewrites.
        pool: See :class:`Director`.
        whole_pool: See :class:`Director`.
        body_limits: Limits of bodies.
        follow_subset_hint: See :class:`Director`.
    """

    def __init__(
        self,
        outcomes: OutcomeWatch | None,
        *,
        policies: RequestPolicies,
        pool: Callable[[], Sequence[Endpoint]],
        whole_pool: Callable[[], Sequence[Endpoint]],
        body_limits: BodyLimits,
        follow_subset_hint: bool,
    ) -> None:
        self.pipeline: Pipeline | None = None
        """The pipeline before the reload, with guards of its own; None for no dry runs."""
        self._outcomes = outcomes
        self._policies = policies
        self._pool = pool
        self._whole_pool = whole_pool
        self._body_limits = body_limits
        self._follow_subset_hint = follow_subset_hint

    def judge(self, raw: RawRequest, refusal: RequestError) -> None:
        """Decide a refused request again, if that is wanted, and record the result."""
        pipeline, outcomes = self.pipeline, self._outcomes
        if pipeline is None or outcomes is None or isinstance(refusal, _NOT_JUDGED):
            return
        if not outcomes.take_dry_run():
            return
        is_regression = self._would_route(pipeline, raw)
        if is_regression is not None:
            outcomes.judged(
                is_regression=is_regression,
                status=refusal.status,
                reason=refusal.drop_reason or refusal.code,
                error=described(refusal),
            )

    def _would_route(self, pipeline: Pipeline, raw: RawRequest) -> bool | None:
        """Return whether ``pipeline`` would route the request; None if that is unknown."""
        try:
            prepared = self._prepared(pipeline, raw)
            if prepared is None:
                return None
            pool, whole_pool = self._pool(), self._whole_pool()
            if prepared.request.priority < 0:
                pipeline.shed(prepared.request, pool)
            try:
                self._choose(prepared, pool)
            except (NoEndpointsError, OutsideSubsetError):
                if len(pool) >= len(whole_pool):
                    raise
                self._choose(prepared, whole_pool)
        except Exception:  # a refusal, or a fault of a plugin
            return False
        return True

    def _prepared(self, pipeline: Pipeline, raw: RawRequest) -> PreparedRequest | None:
        """Return the request as ``pipeline`` sees it; None if an asynchronous producer applies."""
        policies = _SamePolicies(self._policies, raw.target_model)
        parsed = pipeline.request_parser.parse(
            raw.request_id,
            raw.headers,
            raw.body,
            may_lack_model=names_model(policies, raw.headers),
            limits=self._body_limits,
            decoded=raw.decoded,
        )
        request, state = parsed.request, CycleState()
        rewritten = apply_policies(policies, parsed)
        pipeline.request_came(request, state)
        request.fairness_id = bounded_id(request.fairness_id) or DEFAULT_FAIRNESS_ID
        producer_run = ProducerRun(pipeline.producers, request, state)
        if producer_run.advance():
            return None
        return PreparedRequest(pipeline, producer_run, parsed.parser, rewritten, 0.0, raw.subset)

    def _choose(self, prepared: PreparedRequest, endpoints: Sequence[Endpoint]) -> None:
        """Choose an endpoint, without the hooks that follow; raise if the request is refused."""
        request, state = prepared.request, prepared.producer_run.state
        candidates = candidates_of(prepared, endpoints, self._follow_subset_hint)
        check = acceptance(request.headers, state)

        def found(result: SchedulingResult) -> NoReturn:
            if check is not None:
                check(result)
            raise _FoundError

        with suppress(_FoundError):
            prepared.pipeline.scheduler.schedule(request, candidates, state, accept=found)


class _FoundError(Exception):
    """Ends the scheduling once an endpoint is found, before any hook is called with it."""


@dataclass(frozen=True, slots=True)
class _SamePolicies:
    """The policies with the target already drawn: another draw would be random, and counted."""

    policies: RequestPolicies
    target_model: str

    def priority_of(self, objective: str) -> int:
        return self.policies.priority_of(objective)

    def target_of(self, model: str) -> str | None:
        return self.target_model or None

    def renames_all(self) -> bool:
        return self.policies.renames_all()

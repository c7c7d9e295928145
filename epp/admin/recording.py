"""Records decisions on the straight path of requests; implements :class:`DecisionRecorder`.

All recorded decisions together may cost three in a hundred of a request's CPU time; ``make bench``
prints what they cost (docs/performance.md). Above a rate of decisions only a sample is recorded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from epp.admin.captured import CapturedDecision, CapturedProfile
from epp.admin.decision_ring import DecisionRing
from epp.admin.settings import ExplainSettings
from epp.observability import MAX_CHARS, cut
from epp.request_control import PREFIX_MATCHES, EndCause, RequestError, RoutedRequest
from epp.scheduling import (
    DroppedError,
    Endpoint,
    LLMRequest,
    NoEndpointsError,
    ProfileResult,
    ScoredEndpoints,
    described,
)

Doubted = Callable[[], Mapping[str, str]]
"""Returns the states of the endpoints that are not healthy, by name."""

_ENTRY_BYTES = 1600
_CANDIDATE_BYTES = 260
"""Bytes of an entry and of each candidate in it, its scores included; see test_recording.py."""


class Recorder:
    """The recorder of one pool.

    Args:
        settings: The rate.
        ring: Keeps what is recorded.
        clock: Monotonic seconds, the clock of endpoint loads.
        doubted: See :data:`Doubted`; None without outlier detection.
    """

    def __init__(
        self,
        settings: ExplainSettings,
        ring: DecisionRing,
        clock: Callable[[], float],
        doubted: Doubted | None,
    ) -> None:
        self._ring = ring
        self._clock = clock
        self._doubted = doubted
        self._rate = settings.explain_rate
        self._most = max(1.0, self._rate)
        self._left = self._most
        """How many decisions may be recorded at once."""
        self._refilled_at = clock()

    def begin(self, candidates: Sequence[Endpoint], now: float) -> CapturedDecision | None:
        ring = self._ring
        ring.newest += 1
        if self._rate:
            left = self._left + (now - self._refilled_at) * self._rate
            self._refilled_at = now
            if left < 1.0:
                self._left = left
                return None
            self._left = (left if left < self._most else self._most) - 1.0
        doubted = self._doubted
        return CapturedDecision(
            now, _inputs(candidates), None if doubted is None else doubted(), ring.newest
        )

    def decided(self, routed: RoutedRequest, shadows: Sequence[ProfileResult]) -> None:
        entry = cast("CapturedDecision", routed.record)
        decision = routed.decision
        result, endpoint = decision.result, decision.endpoint
        count = len(entry.inputs)
        _set_request(entry, decision.request)
        entry.received_at = decision.received_at
        entry.endpoint, entry.address = endpoint.name, endpoint.address
        entry.destination, entry.primary = decision.destination, result.primary
        entry.profiles = [_captured(each, count) for each in result.profiles.values()]
        entry.outlines = routed.parsed_by.outlines
        entry.matches = routed.state.read(PREFIX_MATCHES)
        if decision.stages:
            entry.stages = [(name, each.name) for name, each in decision.stages.items()]
        size = _ENTRY_BYTES + count * _CANDIDATE_BYTES * len(entry.profiles)
        if decision.shadow:
            entry.shadow = decision.shadow
            entry.shadow_profiles = [_captured(each, count) for each in shadows]
            size += count * _CANDIDATE_BYTES * len(shadows)
        entry.size_bytes = size
        self._ring.add(entry)

    def ended(self, routed: RoutedRequest, cause: EndCause, now: float) -> None:
        entry = cast("CapturedDecision", routed.record)
        entry.ended_at = now
        entry.status = routed.status
        entry.outcome = cause.value
        served = routed.endpoint
        if served is not routed.decision.endpoint:
            entry.served = (served.name, served.address)
        if (usage := routed.usage) is not None:
            entry.prompt_tokens = usage.prompt_tokens
            entry.completion_tokens = usage.completion_tokens
            entry.cached_tokens = usage.cached_tokens
        self._ring.ended(entry)

    def refused(
        self,
        error: RequestError,
        request_id: str,
        request: LLMRequest | None,
        received_at: float,
        candidates: Sequence[Endpoint],
    ) -> None:
        now = self._clock()
        entry = self.begin(candidates, now)
        if entry is None:
            return
        if request is not None:
            _set_request(entry, request)
        entry.request_id = cut(request_id)
        entry.stage, entry.reason = error.stage, error.drop_reason or error.code
        entry.error = cut(str(error))
        entry.status = error.status
        cause = error.__cause__
        if isinstance(cause, NoEndpointsError):
            entry.primary = cause.profile
            entry.profiles = [_unchosen(cause.profile, cause.removed, described(cause))]
        elif isinstance(cause, DroppedError):
            entry.primary = cause.profile
            removed: Mapping[str, Sequence[str]] = {cause.by: ()}
            entry.profiles = [_unchosen(cause.profile, removed, described(cause))]
        self._end(entry, EndCause.REFUSED, received_at, now)

    def abandoned(self, request: LLMRequest, cause: EndCause, received_at: float) -> None:
        now = self._clock()
        entry = self.begin((), now)
        if entry is not None:
            _set_request(entry, request)
            entry.stage = "queue"
            self._end(entry, cause, received_at, now)

    def _end(
        self, entry: CapturedDecision, cause: EndCause, received_at: float, now: float
    ) -> None:
        entry.received_at, entry.ended_at = received_at, now
        entry.outcome = cause.value
        entry.size_bytes = _ENTRY_BYTES + len(entry.inputs) * _CANDIDATE_BYTES
        self._ring.add(entry)
        self._ring.ended(entry)


def _set_request(entry: CapturedDecision, request: LLMRequest) -> None:
    # Strings of clients may be long; one test, as nearly all are short.
    request_id, model, target = request.request_id, request.model, request.target_model
    fairness_id, path = request.fairness_id, request.path
    if len(request_id) + len(model) + len(target) + len(fairness_id) + len(path) > MAX_CHARS:
        request_id, model, target = cut(request_id), cut(model), cut(target)
        fairness_id, path = cut(fairness_id), cut(path)
    entry.request_id, entry.model, entry.target_model = request_id, model, target
    entry.fairness_id, entry.path = fairness_id, path
    entry.priority, entry.stream = request.priority, request.stream
    entry.body_bytes = request.body_bytes


def _inputs(candidates: Sequence[Endpoint]) -> list[Any]:
    return [
        (
            each.name,
            each.address,
            each.labels,
            each.metrics,
            (load := each.load).waiting_requests,
            load.running_requests,
            load.kv_cache_usage,
            load.in_flight,
        )
        for each in candidates
    ]


def _captured(result: ProfileResult, candidates: int) -> CapturedProfile:
    scored, (scorers, columns) = result.scored, result.scores
    if isinstance(scored, ScoredEndpoints):
        endpoints, totals = scored.endpoints, scored.scores
    else:
        endpoints = [each.endpoint for each in scored]
        totals = [each.score for each in scored]
    return CapturedProfile(
        result.profile,
        result.removed,
        None if len(totals) == candidates else [each.name for each in endpoints],
        totals,
        scorers,
        columns,
        [each.endpoint.name for each in result.endpoints],
        result.preference,
        "" if result.error is None else str(result.error),
    )


def _unchosen(name: str, removed: Mapping[str, Sequence[str]], error: str) -> CapturedProfile:
    return CapturedProfile(name, removed, (), (), (), (), (), (), error)

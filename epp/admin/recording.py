"""Records decisions on the request path; implements ``DecisionRecorder``.

Recording may take 3 % of a request's CPU time; ``make bench`` prints its cost
(docs/performance.md). Above a configured rate of decisions only a sample is recorded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from epp.admin.captured import (
    NO_NAMES,
    CandidateNames,
    CapturedDecision,
    Ending,
    Inputs,
    Refusal,
)
from epp.admin.captured_results import (
    NOTHING,
    captured_profile,
    packed_results,
    sole_result,
    unchosen_profile,
)
from epp.admin.decision_ring import DecisionRing
from epp.admin.settings import ExplainSettings
from epp.observability import cut
from epp.request_control import (
    DECISION_NOTES,
    PREFIX_MATCHES,
    DecisionNote,
    EndCause,
    RequestError,
    RoutedRequest,
)
from epp.scheduling import (
    DroppedError,
    Endpoint,
    LLMRequest,
    NoEndpointsError,
    ProfileResult,
    SchedulingResult,
    load_columns,
)

_log = structlog.get_logger(__name__)

Doubted = Callable[[], Mapping[str, str]]
"""Returns the states of the endpoints that are not healthy, by name."""

_DECISION_BYTES: Final = 1300
_CANDIDATE_BYTES: Final = 80
"""Estimated memory of a decision and of each of its candidates, without packed results."""


def _sentences(note: DecisionNote) -> Sequence[str]:
    try:
        return note.sentences()
    except Exception:
        _log.exception("note on a decision failed", note=type(note).__name__)
        return ()


class Recorder:
    """The recorder of one pool.

    Args:
        settings: Maximum rate of recorded decisions.
        ring: Keeps the recorded decisions.
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
        """Number of decisions that may be recorded immediately."""
        self._refilled_at = clock()
        self._candidates: Sequence[Endpoint] = ()
        """Candidates of the last decision; their names are cached, because most decisions have the
        whole pool as candidates."""
        self._names = NO_NAMES

    def inputs(self, candidates: Sequence[Endpoint], now: float) -> Inputs | None:
        ring = self._ring
        sequence = ring.newest = ring.newest + 1
        if self._rate:
            left = self._left + (now - self._refilled_at) * self._rate
            self._refilled_at = now
            if left < 1.0:
                self._left = left
                return None
            self._left = (left if left < self._most else self._most) - 1.0
        if candidates is not self._candidates:
            self._candidates = candidates
            self._names = CandidateNames(
                [each.name for each in candidates],
                [each.address for each in candidates],
                [each.labels for each in candidates],
            )
        columns = load_columns(candidates)
        return (
            self._names,
            [_record(each.load) for each in candidates]
            if columns is None
            else tuple(columns.values),
            [each.metrics for each in candidates],
            None if self._doubted is None else self._doubted(),
            now,
            sequence,
        )

    def decided(
        self, routed: RoutedRequest, inputs: object, shadows: Sequence[ProfileResult]
    ) -> None:
        # No cast(), which is a call.
        given: Inputs = inputs  # type: ignore[assignment] # returned by inputs()
        candidates, loads, pages, doubted, decided_at, sequence = given
        decision = routed.decision
        request, result, endpoint = decision.request, decision.result, decision.endpoint
        stages, count = decision.stages, len(loads)
        packed = NOTHING
        sole = None if shadows else sole_result(result, count)
        if sole is None:
            packed = _packed(result, shadows, count)
        request_id, model, path = request.request_id, request.model, request.path
        entry = CapturedDecision(  # by position, because keywords take twice as long
            candidates,
            loads,
            pages,
            doubted,
            decided_at,
            sequence,
            _DECISION_BYTES
            + count * _CANDIDATE_BYTES
            + len(packed if sole is None else sole[-1])
            + len(request_id)
            + len(model)
            + len(path),
            decision.received_at,
            request_id,
            model,
            request.target_model,
            path,
            request.fairness_id,
            request.priority,
            request.stream,
            request.body_bytes,
            endpoint.name,
            endpoint.address,
            decision.destination,
            result.primary,
            sole,
            packed,
            routed.decided_by.outlines,
            routed.state.read(PREFIX_MATCHES),
            decision.shadow,
            [(name, each.name) for name, each in stages.items()] if stages else (),
            decision.is_forced,
        )
        if notes := routed.state.read(DECISION_NOTES):
            entry.notes = [cut(each) for note in notes for each in _sentences(note)]
            entry.size_bytes += sum(map(len, entry.notes))
        routed.record = entry
        self._ring.add(entry)

    def ended(self, routed: RoutedRequest, cause: EndCause, now: float) -> None:
        entry: CapturedDecision = routed.record  # type: ignore[assignment] # decided() has set it
        served = routed.endpoint
        is_other = served is not routed.decision.endpoint
        entry.ending = Ending(
            now,
            cause,
            routed.status,
            (served.name, served.address) if is_other else None,
            routed.usage,
        )
        if self._ring.is_awaited:
            self._ring.ended(entry)

    def refused(
        self,
        error: RequestError,
        request_id: str,
        request: LLMRequest | None,
        received_at: float,
        candidates: Sequence[Endpoint],
        *,
        path: str,
    ) -> None:
        now = self._clock()
        given = self.inputs(candidates, now)
        if given is None:
            return
        cause = error.__cause__
        primary, profiles = "", []
        if isinstance(cause, NoEndpointsError | DroppedError):
            primary = cause.profile
            removed = cause.removed if isinstance(cause, NoEndpointsError) else {cause.by: ()}
            profiles = [unchosen_profile(primary, removed, str(cause))]
        packed = packed_results(profiles, ())
        entry = _unrouted(given, packed, request_id, request, received_at)
        entry.path, entry.primary = cut(path), primary
        entry.refusal = Refusal(error.stage, error.drop_reason or error.code, cut(str(error)))
        self._end(entry, Ending(now, EndCause.REFUSED, error.status, None, None))

    def abandoned(self, request: LLMRequest, cause: EndCause, received_at: float) -> None:
        now = self._clock()
        given = self.inputs((), now)
        if given is not None:
            entry = _unrouted(given, NOTHING, request.request_id, request, received_at)
            self._end(entry, Ending(now, cause, None, None, None))

    def abandoned_early(
        self, request_id: str, path: str, cause: EndCause, received_at: float
    ) -> None:
        now = self._clock()
        given = self.inputs((), now)
        if given is not None:
            entry = _unrouted(given, NOTHING, request_id, None, received_at)
            entry.path = cut(path)
            self._end(entry, Ending(now, cause, None, None, None))

    def _end(self, entry: CapturedDecision, ending: Ending) -> None:
        entry.ending = ending
        self._ring.add(entry)
        self._ring.ended(entry)


def _record(load: Any) -> Any:  # noqa: ANN401 - typed, compiled code would copy the tuple
    return load.record()


def _packed(result: SchedulingResult, shadows: Sequence[ProfileResult], candidates: int) -> bytes:
    """Return the packed results of all profiles, given the number of candidates."""
    return packed_results(
        [captured_profile(each, candidates) for each in result.profiles.values()],
        [captured_profile(each, candidates) for each in shadows],
    )


def _unrouted(
    given: Inputs, packed: bytes, request_id: str, request: LLMRequest | None, received_at: float
) -> CapturedDecision:
    _, loads, *_ = given
    entry = CapturedDecision(
        *given,
        _DECISION_BYTES + len(loads) * _CANDIDATE_BYTES + len(packed),
        received_at,
        cut(request_id),
        packed=packed,
    )
    if request is not None:
        entry.model, entry.target_model = cut(request.model), cut(request.target_model)
        entry.path, entry.fairness_id = cut(request.path), cut(request.fairness_id)
        entry.priority, entry.stream = request.priority, request.stream
        entry.body_bytes = request.body_bytes
    return entry

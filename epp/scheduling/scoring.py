"""The scorers of a profile: one column of scores each, validated and added up.

Validating every score separately would cost more than most scorers, so the sum also checks that
all scores are numbers in [0, 1]. Only if they are not, each column is corrected: scores out of
range are clamped, NaN becomes 0, and a scorer whose scores are not numbers is skipped like one that
raised.
"""

import time
from collections.abc import Sequence
from typing import Any, Final, Generic

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.errors import PLUGIN_FAULTS, PluginContractError
from epp.scheduling.guards import Guard, GuardRails
from epp.scheduling.plugins import Plugin, Scorer, WeightedScorer
from epp.scheduling.scales import Scale, scale_of
from epp.scheduling.totals import corrected, weighted_totals
from epp.scheduling.types import EndpointT, RequestT, ScoreColumns

perf_counter: Final = time.perf_counter  # compiled code looks up an imported name at each use

_Member = tuple[Guard[Scorer[Any, Any]], Scale | None, float]
"""A scorer, the scale of its scores, its weight."""


class ScorerSet(Generic[RequestT, EndpointT]):
    """The scorers of one profile.

    Raises:
        PluginContractError: A scorer declares an invalid ``score_range`` or ``normalize``.
    """

    __slots__ = ("_members", "_named", "_weights")

    def __init__(
        self, scorers: Sequence[WeightedScorer[RequestT, EndpointT]], guards: GuardRails
    ) -> None:
        self._members: tuple[_Member, ...] = tuple(
            (guards.guard("Scorer", each.scorer), scale_of(each.scorer), each.weight)
            for each in scorers
        )
        self._weights = tuple(each.weight for each in scorers)
        self._named = tuple((each.scorer.name, each.weight) for each in scorers)

    def totals(
        self, request: RequestT, endpoints: Sequence[EndpointT], state: CycleState
    ) -> tuple[Sequence[float], ScoreColumns]:
        """Return the weighted total of each endpoint, and the columns that were added up.

        A scorer that fails adds nothing.
        """
        count = len(endpoints)
        columns: list[Sequence[float]] = []
        skipped: list[_Member] = []
        recovering: list[Guard[Scorer[Any, Any]]] = []
        began = perf_counter()
        for member in self._members:
            guard, scale, _ = member
            if guard.is_off:
                skipped.append(member)
                continue
            try:
                plugin: Any = guard.plugin  # which may return anything
                scores: Sequence[float] = plugin.score(request, endpoints, state)
                if not isinstance(scores, (list, tuple)) or len(scores) != count:
                    raise _broken(guard.plugin, scores, count)
                if scale is not None:
                    scores = scale(scores)
            except PLUGIN_FAULTS as error:
                guard.failed(error, perf_counter() - began)
                skipped.append(member)
                began = perf_counter()
                continue
            columns.append(scores)
            if guard.failures:
                recovering.append(guard)
            ended = perf_counter()
            guard.timed(ended - began)
            began = ended
        counted, weights, named = self._members, self._weights, self._named
        if skipped:
            counted = tuple(member for member in counted if member not in skipped)
            weights = tuple(weight for _, _, weight in counted)
            named = _named(counted)
        try:
            totals = weighted_totals(columns, weights, count)
        except Exception:  # some score is not a number; _corrected_totals finds the scorer
            totals = None
        if totals is None:
            return _corrected_totals(columns, counted, count)
        for guard in recovering:
            guard.recovered()
        return totals, (named, columns)


def _named(members: Sequence[_Member]) -> tuple[tuple[str, float], ...]:
    return tuple((guard.plugin.name, weight) for guard, _, weight in members)


def _corrected_totals(
    columns: Sequence[Sequence[float]], counted: Sequence[_Member], count: int
) -> tuple[Sequence[float], ScoreColumns]:
    """Return the totals of columns with scores outside [0, 1], or that are not numbers."""
    fixed: list[Sequence[float]] = []
    valid: list[_Member] = []
    for member, scores in zip(counted, columns, strict=True):
        guard = member[0]
        try:
            column, outside, not_numbers = corrected(scores)
        except Exception as error:
            guard.failed(error)
            continue
        guard.recovered()
        if outside or not_numbers:
            guard.scores_corrected(outside, not_numbers)
        fixed.append(column)
        valid.append(member)
    weights = [weight for _, _, weight in valid]
    return weighted_totals(fixed, weights, count) or [0.0] * count, (_named(valid), fixed)


def _broken(scorer: Plugin, scores: object, count: int) -> PluginContractError:
    if isinstance(scores, (list, tuple)):
        return PluginContractError(
            f"scorer {scorer.name!r} returned {len(scores)} scores for {count} endpoints"
        )
    return PluginContractError(
        f"scorer {scorer.name!r} returned {type(scores).__name__}, not a list of scores"
    )

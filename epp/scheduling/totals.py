"""The weighted sum of the scorers' columns, a profile's hottest loop, and scales of columns.

One pass over a column costs 0.15 us before its first endpoint, so three columns, as the default
profile has, are added in one pass: 1.6 us instead of 4.8 for 10 endpoints, 125 instead of 160 for
1000. Both ways add in the order of the scorers and give the same floats.
"""

from collections.abc import Callable, Sequence
from math import inf, isfinite, isnan
from typing import Any

from epp.scheduling.errors import PluginContractError
from epp.scheduling.plugins import Scorer

_IN_ONE_PASS = 3

Scale = Callable[[Sequence[float]], list[float]]
"""Scales the scores of one call to [0, 1]; NaN stays NaN."""


def weighted_totals(
    columns: Sequence[Sequence[float]], weights: Sequence[float], count: int
) -> list[float] | None:
    """Return ``count`` totals: for each endpoint, the sum of weight times score.

    Returns None if some score is not in [0, 1]; :func:`corrected` then corrects the columns.

    Args:
        columns: One column of ``count`` scores per scorer.
        weights: One weight per scorer.
        count: Number of endpoints.

    Raises:
        TypeError: A score is not a number.
    """
    if len(columns) == _IN_ONE_PASS:
        first, second, third = columns
        u, v, w = weights
        totals = [
            u * a + v * b + w * c
            for a, b, c in zip(first, second, third)  # noqa: B905 - strict costs 0.2 us
            # Not chained: 0.1 us less for 10 endpoints.
            if a >= 0.0 and a <= 1.0 and b >= 0.0 and b <= 1.0 and c >= 0.0 and c <= 1.0
        ]
        return totals if len(totals) == count else None
    totals = [0.0] * count
    for scores, weight in zip(columns, weights, strict=True):
        totals = [
            total + weight * score
            for total, score in zip(totals, scores, strict=True)
            if 0.0 <= score <= 1.0
        ]
        if len(totals) < count:
            return None
    return totals


def corrected(scores: Sequence[float]) -> tuple[list[float], int, int]:
    """Return ``scores`` within [0, 1], how many were outside, and how many were NaN (now 0).

    Raises:
        TypeError: A score is not a number.
    """
    not_numbers = sum(map(isnan, scores))
    fixed = [min(1.0, max(0.0, 0.0 if isnan(score) else float(score))) for score in scores]
    outside = sum(not 0.0 <= score <= 1.0 for score in scores) - not_numbers
    return fixed, outside, not_numbers


def scale_fault(scorer: Scorer[Any, Any] | type[Scorer[Any, Any]]) -> str:
    """Return why the scale that a scorer declares is invalid; "" if it is valid."""
    declared, normalize = scorer.score_range, scorer.normalize
    if normalize is not None and (normalize != "min-max" or declared is not None):
        return (
            f"normalize is {normalize!r} and score_range {declared!r}; declare either"
            ' normalize = "min-max" or score_range = (lowest, highest)'
        )
    if declared is None:
        return ""
    try:
        low, high = declared
        is_range = 0 < high - low < inf
    except (TypeError, ValueError):
        is_range = False
    if is_range:
        return ""
    return (
        f"score_range is {declared!r}; it must be (lowest, highest), two finite numbers of which"
        " the first is less"
    )


def scale_of(scorer: Scorer[Any, Any]) -> Scale | None:
    """Return the scale of the scores of ``scorer``; None if they need none.

    Raises:
        PluginContractError: The declared scale is invalid.
    """
    if fault := scale_fault(scorer):
        raise PluginContractError(f"scorer {scorer.name!r}: {fault}")
    if scorer.normalize is not None:
        return _stretched
    if scorer.score_range is None:
        return None
    low, high = scorer.score_range
    span = high - low
    return lambda scores: [(score - low) / span for score in scores]


def _stretched(scores: Sequence[float]) -> list[float]:
    """Scale finite scores to [0, 1]; infinities stay outside, to be clamped and counted."""
    numbers = [score for score in scores if isfinite(score)]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    span = high - low
    if span == inf:  # both ends are finite, but their difference overflows
        return _stretched([score / 2 for score in scores])
    if span > 0:
        return [(score - low) / span for score in scores]
    return [1.0 if isfinite(score) else score for score in scores]

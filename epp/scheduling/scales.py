"""Scales of scores: how a scorer's column becomes one in [0, 1]."""

from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import Any

from epp.scheduling.errors import PluginContractError
from epp.scheduling.plugins import Scorer

Scale = Callable[[Sequence[float]], list[float]]
"""Scales the scores of one call to [0, 1]; NaN stays NaN."""


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

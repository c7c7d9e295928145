"""Finds what decided a choice: the term that put the winner ahead of the runner-up.

The runner-up is the best other candidate of the profile, the first of several. The total of an
endpoint is a sum of terms: for each scorer its weight times its score, and the preference of flow
control. The term in which the winner leads by most decided.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

from epp.scheduling.types import ProfileResult, ScoreColumns, ScoredEndpoints

_PREFERENCE_SCALE: Final = 10.0
"""With a preference, the scorers' sum is scaled to this."""


class DecidedBy(StrEnum):
    """What can decide a choice."""

    SCORER = "scorer"
    """A scorer's term."""
    PREFERENCE = "preference"
    """Flow control's term: its session plugins prefer the winner."""
    TIE = "tie"
    """Nothing: the totals are equal, and the picker chose among the best."""
    PICKER = "picker"
    """The picker, or the profile handler: the winner does not have the highest total."""
    ONLY_CANDIDATE = "only-candidate"
    """The filters: they left no other endpoint."""


def decided_by(result: ProfileResult[Any]) -> tuple[DecidedBy, str]:
    """Return what decided a profile's choice, and the scorer's name; "" if no scorer decided.

    Args:
        result: Result of a profile that has picked; its scores must not have been dropped.
    """
    endpoints, totals = _columns(result)
    winner = result.endpoints[0].endpoint
    place = next((at for at, each in enumerate(endpoints) if each is winner), -1)
    return decisive_term(place, totals, result.scores, result.preference)


def decisive_term(
    place: int, totals: Sequence[float], scores: ScoreColumns, preference: Sequence[float]
) -> tuple[DecidedBy, str]:
    """Return what decided a choice, and the scorer's name; "" if no scorer decided.

    Args:
        place: Index of the winner; negative if it is not a candidate.
        totals: Totals of the candidates.
        scores: Their scores.
        preference: What flow control added to each total; empty if it has no preference.
    """
    if place < 0:
        return DecidedBy.PICKER, ""
    if len(totals) == 1:
        return DecidedBy.ONLY_CANDIDATE, ""
    if any(len(column) != len(totals) for column in scores[1]):
        return DecidedBy.PICKER, ""  # a profile handler has changed the candidates
    others = [*totals[:place], *totals[place + 1 :]]
    best = max(others)
    if totals[place] <= best:
        return (DecidedBy.TIE if totals[place] == best else DecidedBy.PICKER), ""
    rival = others.index(best)
    rival += rival >= place
    lead, kind, name = max(
        _leads(place, rival, scores, preference), default=(0.0, DecidedBy.PICKER, "")
    )
    return (kind, name) if lead > 0.0 else (DecidedBy.PICKER, "")


def _columns(result: ProfileResult[Any]) -> tuple[Sequence[object], Sequence[float]]:
    scored = result.scored
    if isinstance(scored, ScoredEndpoints):
        return scored.endpoints, scored.scores
    return [each.endpoint for each in scored], [each.score for each in scored]


def _leads(
    place: int, rival: int, scores: ScoreColumns, preference: Sequence[float]
) -> Iterator[tuple[float, DecidedBy, str]]:
    """Yield by how much each term puts the endpoint at ``place`` ahead of ``rival``."""
    scorers, columns = scores
    scale = 1.0
    if preference:
        yield preference[place] - preference[rival], DecidedBy.PREFERENCE, ""
        scale = _PREFERENCE_SCALE / (sum(abs(weight) for _, weight in scorers) or 1.0)
    for (name, weight), column in zip(scorers, columns, strict=True):
        yield scale * weight * (column[place] - column[rival]), DecidedBy.SCORER, name

"""Successive halving: many candidates get a short run, the best of them more and longer ones.

K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and hyperparameter
optimization", 2016. Each rung costs the same; a candidate costs three times as much on the next,
where a third of them is left.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from epp.lab.tuning.errors import TuningError

CandidateT = TypeVar("CandidateT")

_FACTOR = 3
_MAX_RUNGS = 4
_SHORTEST = 0.2
"""Fraction of the full length: a shorter run shows little but its beginning."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the search."""

    candidates: int
    """How many are compared."""
    seeds: int
    """Runs of each."""
    length: float
    """Fraction of the full length, 1.0 for a whole run."""

    @property
    def cost(self) -> float:
        """Length of all runs, in full runs."""
        return self.candidates * self.seeds * self.length


def plan_rungs(
    budget: float, seeds: int, *, candidates: int | None = None, may_be_short: bool = True
) -> list[Rung]:
    """Plan a search.

    Args:
        budget: Maximum length of all runs together, in full runs.
        seeds: Runs of each candidate on the last rung.
        candidates: Maximum number of candidates; None for no limit.
        may_be_short: Whether a part of a run is representative of the whole.

    Raises:
        TuningError: The budget does not suffice for two candidates.
    """
    if budget < 2 * seeds:
        raise TuningError(
            f"a budget of {budget:g} runs is too small to compare two configurations with {seeds}"
            f" seeds; give at least {2 * seeds}, or fewer seeds"
        )
    resources: list[tuple[int, float]] = []
    cost = float(seeds)
    while len(resources) < _MAX_RUNGS:
        resource = _resource(cost, may_be_short=may_be_short)
        if resources and resource == resources[0]:
            break
        if budget / (len(resources) + 1) < 2 * seeds and resources:
            break
        resources.insert(0, resource)
        cost /= _FACTOR
    share = budget / len(resources)
    rungs: list[Rung] = []
    for count, length in resources:
        fitting = int(share / (count * length) + 1e-9)
        if candidates is not None:
            fitting = min(fitting, candidates)
        if rungs and fitting >= rungs[-1].candidates:
            rungs.pop()  # all of them fit into this one
        rungs.append(Rung(fitting, count, length))
    return rungs


def _resource(cost: float, *, may_be_short: bool) -> tuple[int, float]:
    if cost >= 1 or not may_be_short:
        return max(1, round(cost)), 1.0
    return 1, max(_SHORTEST, round(cost, 2))


def climb(
    candidates: Sequence[CandidateT],
    rungs: Sequence[Rung],
    score: Callable[[Sequence[CandidateT], Rung], Sequence[float]],
) -> list[CandidateT]:
    """Return the candidates of the last rung, the best first.

    The first candidate is on every rung, so that the others can be compared with it.

    Args:
        candidates: The candidates of the first rung.
        rungs: The plan.
        score: Returns a score for each candidate; higher is better. Of equal ones the earlier
            candidate is better.
    """
    first = candidates[0]
    left = list(candidates)
    for rung in rungs:
        kept = left[: rung.candidates]
        if first not in kept:
            kept[-1] = first
        scores = score(kept, rung)
        order = sorted(range(len(kept)), key=lambda at: (-scores[at], kept[at] is not first))
        left = [kept[at] for at in order]
    return left

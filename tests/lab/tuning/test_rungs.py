"""The plan of successive halving, and the climb."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.lab.tuning import TuningError, plan_rungs
from epp.lab.tuning.rungs import Rung, climb


def test_each_step_has_a_third_of_the_candidates_with_three_times_the_runs() -> None:
    assert plan_rungs(60, 5) == [Rung(75, 1, 0.2), Rung(26, 1, 0.56), Rung(7, 2, 1), Rung(3, 5, 1)]


def test_runs_are_whole_where_a_part_says_nothing() -> None:
    assert plan_rungs(60, 5, may_be_short=False) == [Rung(20, 1, 1), Rung(10, 2, 1), Rung(4, 5, 1)]


def test_few_candidates_begin_where_all_of_them_fit() -> None:
    assert plan_rungs(60, 5, candidates=6) == [Rung(6, 2, 1), Rung(3, 5, 1)]
    assert plan_rungs(60, 5, candidates=3) == [Rung(3, 5, 1)]


def test_a_small_budget_is_refused_with_the_least() -> None:
    with pytest.raises(TuningError, match="give at least 10"):
        plan_rungs(9, 5)
    assert plan_rungs(10, 5) == [Rung(2, 5, 1)]


@given(
    budget=st.floats(1, 1000),
    seeds=st.integers(2, 20),
    candidates=st.none() | st.integers(2, 200),
    may_be_short=st.booleans(),
)
def test_a_plan_keeps_its_budget_and_ends_with_all_seeds(
    budget: float, seeds: int, candidates: int | None, may_be_short: bool
) -> None:
    if budget < 2 * seeds:
        return
    rungs = plan_rungs(budget, seeds, candidates=candidates, may_be_short=may_be_short)
    assert sum(each.cost for each in rungs) <= budget * (1 + 1e-9)
    assert (rungs[-1].seeds, rungs[-1].length) == (seeds, 1.0)
    counts = [each.candidates for each in rungs]
    assert min(counts) >= 2
    assert counts == sorted(counts, reverse=True)
    resources = [each.seeds * each.length for each in rungs]
    assert resources == sorted(resources)


def test_the_best_come_first_and_the_first_candidate_stays() -> None:
    seen: list[list[int]] = []

    def score(kept: Sequence[int], rung: Rung) -> list[float]:
        del rung
        seen.append(list(kept))
        return [float(each) for each in kept]

    order = climb(range(10), [Rung(10, 1, 0.5), Rung(3, 1, 1), Rung(2, 3, 1)], score)
    assert seen == [list(range(10)), [9, 8, 0], [9, 0]]
    assert order == [9, 0]


def test_the_first_candidate_wins_a_tie() -> None:
    assert climb("abc", [Rung(3, 1, 1)], lambda kept, _: [1.0] * len(kept))[0] == "a"

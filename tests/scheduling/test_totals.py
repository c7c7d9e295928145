"""The weighted sum, and the correction of scores outside [0, 1]."""

from math import isnan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling.totals import _totals_of_lists, corrected, weighted_totals

GOOD = st.one_of(st.floats(0, 1), st.sampled_from([0.0, -0.0, 1.0, 0, 1, True]))
SCORES = st.one_of(st.floats(-0.5, 1.5), GOOD, st.floats(), st.integers(-3, 3))
WEIGHTS = st.floats(0, 100)
NAN = float("nan")


@given(st.integers(0, 5), st.integers(1, 6), st.data())
def test_totals_are_the_weighted_sums_to_the_last_bit(
    scorers: int, count: int, data: st.DataObject
) -> None:
    columns = [data.draw(st.lists(GOOD, min_size=count, max_size=count)) for _ in range(scorers)]
    weights = data.draw(st.lists(WEIGHTS, min_size=scorers, max_size=scorers))
    want = []
    for row in range(count):
        total = 0.0
        for column, weight in zip(columns, weights, strict=True):
            total += weight * column[row]
        want.append(total)
    assert weighted_totals(columns, weights, count) == want


@given(st.lists(st.tuples(GOOD, GOOD, GOOD)), st.tuples(WEIGHTS, WEIGHTS, WEIGHTS))
def test_columns_that_are_lists_have_the_same_totals(
    rows: list[tuple[float, float, float]], weights: tuple[float, float, float]
) -> None:
    columns = [[row[at] for row in rows] for at in range(3)]
    of_tuples = weighted_totals([tuple(each) for each in columns], weights, len(rows))
    first, second, third = columns
    assert _totals_of_lists(first, second, third, *weights) == of_tuples


@pytest.mark.parametrize("column", range(3))
@pytest.mark.parametrize("bad", [-0.001, 1.001, NAN])
def test_totals_of_lists_end_before_a_score_outside(column: int, bad: float) -> None:
    columns = [[0.5] * 4 for _ in range(3)]
    columns[column][2] = bad
    first, second, third = columns
    assert _totals_of_lists(first, second, third, 1.0, 1.0, 1.0) == [1.5, 1.5]


@pytest.mark.parametrize("scorers", [1, 2, 3, 4])
@pytest.mark.parametrize("bad", [-0.001, 1.001, NAN, float("inf"), float("-inf"), 2, -1])
def test_a_score_outside_is_found_wherever_it_is(scorers: int, bad: float) -> None:
    for column in range(scorers):
        for row in range(4):
            columns = [[0.5] * 4 for _ in range(scorers)]
            columns[column][row] = bad
            assert weighted_totals(columns, [1.0] * scorers, 4) is None


@pytest.mark.parametrize("scorers", [1, 2, 3, 4])
def test_what_is_no_number_is_an_error(scorers: int) -> None:
    columns: list[Any] = [[0.5]] * (scorers - 1) + [["0.5"]]
    with pytest.raises(TypeError):
        weighted_totals(columns, [1.0] * scorers, 1)


@given(st.lists(SCORES, max_size=8))
def test_corrected_scores_are_in_range_and_each_correction_is_counted_once(
    scores: list[float],
) -> None:
    fixed, outside, not_numbers = corrected(scores)
    assert fixed == [0.0 if isnan(s) else max(0.0, min(1.0, s)) for s in scores]
    assert all(type(score) is float for score in fixed)
    assert not_numbers == sum(isnan(s) for s in scores)
    assert outside == sum(s < 0 or s > 1 for s in scores)
    assert corrected(fixed) == (fixed, 0, 0)

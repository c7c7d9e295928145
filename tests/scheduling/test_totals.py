import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling.totals import weighted_totals

SCORES = st.one_of(st.floats(-0.5, 1.5), st.sampled_from([0.0, -0.0, 1.0]), st.floats())
WEIGHTS = st.floats(0, 100)


@given(st.integers(0, 5), st.integers(1, 6), st.data())
def test_totals_are_the_clamped_weighted_sums_to_the_last_bit(
    scorers: int, count: int, data: st.DataObject
) -> None:
    columns = [data.draw(st.lists(SCORES, min_size=count, max_size=count)) for _ in range(scorers)]
    weights = data.draw(st.lists(WEIGHTS, min_size=scorers, max_size=scorers))
    want = []
    for row in range(count):
        total = 0.0
        for column, weight in zip(columns, weights, strict=True):
            score = column[row]
            total += weight * (0.0 if score != score else min(1.0, max(0.0, score)))  # noqa: PLR0124
        want.append(total)
    assert weighted_totals(columns, weights, count) == want


@pytest.mark.parametrize("scorers", [1, 2, 3, 4])
def test_nan_and_scores_outside_are_clamped_for_any_number_of_scorers(scorers: int) -> None:
    columns = [[float("nan"), 7.0, -1.0]] * scorers
    assert weighted_totals(columns, [2.0] * scorers, 3) == [0.0, 2.0 * scorers, 0.0]

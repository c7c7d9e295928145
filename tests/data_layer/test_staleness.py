"""When pages become stale."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.data_layer.staleness import (
    LoadEstimate,
    fade,
    faded_fraction,
    pool_median,
    threshold_seconds,
)
from epp.scheduling import EndpointMetrics


@pytest.mark.parametrize(
    ("configured", "interval", "expected"),
    [
        pytest.param(0.2, 0.05, 0.2, id="the configured one, if scrapes come often"),
        pytest.param(0.2, 0.1, 0.3, id="three intervals, if they come seldom"),
    ],
)
def test_the_threshold_in_force(configured: float, interval: float, expected: float) -> None:
    assert threshold_seconds(configured, interval) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        pytest.param(0.0, 0.0, id="new"),
        pytest.param(0.2, 0.0, id="at the threshold"),
        pytest.param(0.45, 0.5, id="half way"),  # (0.45 - 0.2) / (10 * 0.05)
        pytest.param(0.7, 1.0, id="after ten intervals"),
        pytest.param(99.0, 1.0, id="long after"),
    ],
)
def test_the_old_value_is_given_up_in_a_straight_line(age: float, expected: float) -> None:
    assert faded_fraction(age, 0.2, 0.05) == pytest.approx(expected)


def test_the_median_is_taken_of_each_value_by_itself() -> None:
    pages = [EndpointMetrics(0, 9, 0.1), EndpointMetrics(4, 1, 0.9), EndpointMetrics(2, 5, 0.3)]
    assert pool_median(pages) == LoadEstimate(2, 5, 0.3)
    assert pool_median(pages[:2]) == LoadEstimate(2, 5, 0.5)  # the mean of the two in the middle
    assert pool_median([]) == LoadEstimate(0, 0, 0)


_load_estimates = st.builds(LoadEstimate, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1))


@given(_load_estimates, _load_estimates, st.floats(0, 1))
def test_a_faded_value_lies_between_page_and_median(
    a: LoadEstimate, b: LoadEstimate, part: float
) -> None:
    assert fade(a, b, 0.0) == a
    assert fade(a, b, 1.0) == b
    faded = fade(a, b, part).waiting
    low, high = sorted((a.waiting, b.waiting))
    assert low - 1e-6 <= faded <= high + 1e-6

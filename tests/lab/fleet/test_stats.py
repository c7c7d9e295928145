"""Histograms of an engine: many observations at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epp.lab.fleet.stats import ServerHistogram

# Multiples of 1/64, so that sums and quotients are exact and ties with the bounds occur.
exact = st.integers(0, 640).map(lambda units: units / 64)


@given(
    bounds=st.lists(exact, min_size=1, max_size=6, unique=True).map(sorted),
    first=exact,
    growth=st.integers(0, 32).map(lambda units: units / 64),
    count=st.integers(0, 60),
    times=st.integers(1, 9),
)
def test_a_series_is_counted_as_its_values_one_by_one(
    bounds: list[float], first: float, growth: float, count: int, times: int
) -> None:
    series, plain = ServerHistogram(bounds), ServerHistogram(bounds)
    series.observe_series(first, growth, count, times)
    for index in range(count):
        plain.observe(first + index * growth, times)
    assert series.counts == plain.counts
    assert series.sum == plain.sum


def test_several_equal_observations_count_and_sum_as_such() -> None:
    histogram = ServerHistogram((1.0, 2.0))
    histogram.observe(1.0, 3)
    histogram.observe(5.0)
    assert (histogram.counts, histogram.sum, histogram.count) == ([3, 0, 1], 8.0, 4)

"""Percentiles against tables made by hand (nearest rank: the ceil(fraction * n)-th smallest)."""

import pytest

from epp.lab.results import Distribution
from epp.lab.results.distribution import percentile


@pytest.mark.parametrize(
    ("values", "p50", "p90", "p99", "p999"),
    [
        pytest.param([7], 7, 7, 7, 7, id="one value"),
        pytest.param([1, 2], 1, 2, 2, 2, id="two: ranks 1, 2, 2"),
        pytest.param([10, 20, 30, 40, 50], 30, 50, 50, 50, id="five: ranks 3, 5, 5"),
        pytest.param(list(range(1, 11)), 5, 9, 10, 10, id="ten: ranks 5, 9, 10"),
        pytest.param(list(range(1, 101)), 50, 90, 99, 100, id="hundred: ranks 50, 90, 99"),
        pytest.param(list(range(1, 1001)), 500, 900, 990, 999, id="thousand: ranks 500, 900, 990"),
    ],
)
def test_percentiles_match_the_table(
    values: list[int], p50: int, p90: int, p99: int, p999: int
) -> None:
    fractions = (0.5, 0.9, 0.99, 0.999)
    assert [percentile(values, each) for each in fractions] == [p50, p90, p99, p999]


def test_extremes_are_the_ends() -> None:
    assert percentile([1, 2, 3], 0.0) == 1
    assert percentile([1, 2, 3], 1.0) == 3


def test_a_distribution_sorts_and_turns_seconds_into_milliseconds() -> None:
    # 1, 2, 3, 4 and 90 ms: sum 100, mean 20, median the third.
    found = Distribution.of_seconds([0.09, 0.002, 0.001, 0.004, 0.003])
    assert found is not None
    assert found.count == 5
    shown = [found.mean, found.p50, found.p90, found.p95, found.p99, found.p999, found.max]
    assert shown == pytest.approx([20, 3, 90, 90, 90, 90, 90])


def test_nothing_has_no_distribution() -> None:
    assert Distribution.of_seconds([]) is None

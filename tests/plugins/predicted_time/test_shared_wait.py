"""The wait that all endpoints have, by which a request counts as delaying others."""

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.predicted_time.fleets import TRUSTING

from epp_plugins.predicted_time import FleetModel
from epp_plugins.predicted_time.cost_table import shared_wait

WAITS = st.lists(st.floats(0.0, 1e9), min_size=2, max_size=12)


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        pytest.param([], 0.0, id="no endpoints"),
        pytest.param([inf, inf], 0.0, id="all are excluded"),
        pytest.param([3.0], 3.0, id="one endpoint"),
        pytest.param([3.0, inf], 3.0, id="one that is not excluded"),
        pytest.param([2.0, 2.0, 2.0, 2.0], 2.0, id="all the same"),
        pytest.param([0.0, 0.0, 0.0, 60.0], 0.0, id="one alone"),
        pytest.param([1.0, 3.0], 1.0, id="two: the shorter"),
        pytest.param([8.0, 60.0, 0.0, 8.0], 16.0 / 3.0, id="four: without the longest"),
        pytest.param([1.0] * 7 + [9.0], 1.0, id="eight: without the longest two"),
    ],
)
def test_it_is_the_mean_without_the_longest_quarter(
    waits: Sequence[float], expected: float
) -> None:
    assert shared_wait(waits) == pytest.approx(expected)


@given(WAITS)
def test_it_is_between_the_shortest_wait_and_the_mean(waits: list[float]) -> None:
    tolerance = 1.0 + 1e-9
    assert min(waits) <= shared_wait(waits) * tolerance
    assert shared_wait(waits) <= sum(waits) / len(waits) * tolerance


@given(WAITS, st.floats(0.0, 1e9))
def test_one_endpoint_cannot_make_it_longer_than_the_longest_wait_of_the_others(
    waits: list[float], claimed: float
) -> None:
    assert shared_wait([*waits, claimed]) <= max(waits) * (1.0 + 1e-9)


def test_a_server_that_hangs_does_not_bind_requests_to_the_servers_of_their_prefixes() -> None:
    model = FleetModel(TRUSTING)
    keys = ("a", "b", "c", "hangs")
    for _ in range(20):
        model.sent("hangs", 1000.0, 0.0)
    now = 60.0
    model.sent("a", 1000.0, now)
    waits = model.table(keys, 4000.0, now).waits
    assert waits[0] == pytest.approx(0.08)
    assert waits[3] > 60.0
    tokens = {"a": 1000.0}
    _, idle, *_ = model.table(keys, 4000.0, now, tokens).predictions(tokens, 4000.0, {})
    # Q = 1 / 3, as one of three servers has a wait: 2 * Q * (1 + Q) services.
    assert idle.delay_to_others == pytest.approx(8.0 / 9.0 * idle.service, rel=0.01)

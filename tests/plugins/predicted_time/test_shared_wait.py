"""The wait common to all endpoints, which determines how much a request delays others."""

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.predicted_time.fleets import TRUSTING, Fleet

from epp_plugins.predicted_time import FleetModel
from epp_plugins.predicted_time.cost_table import CostTable, shared_wait
from epp_plugins.predicted_time.learner import Learner

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


def test_slow_servers_are_used_while_fast_ones_have_queues() -> None:
    slowness = {"a": 1.0, "b": 1.0, "slow c": 3.0, "slow d": 3.0}
    fleet = Fleet(slowness, lambda _: 0.1)
    fleet.run(200, rate=10.0, tokens=(1000.0,))
    fleet.run(800, rate=24.0, tokens=(1000.0,))  # 0.9 of what all four can do
    share = fleet.share("slow c", 400) + fleet.share("slow d", 400)
    assert 0.15 < share < 0.3  # a quarter of the fleet's speed
    assert max(seconds for _, seconds in fleet.served[-400:]) < 3.0


def test_work_that_delays_others_counts_at_the_fleets_speed() -> None:
    fleet = Fleet({"a": 1.0, "b": 1.0, "c": 1.0, "slow": 3.0}, lambda _: 0.1)
    for _ in range(40):
        for key in fleet.keys:
            fleet.send(key, 1000.0)
        fleet.pass_time(1.0)
    for _ in range(20):
        for key in fleet.keys:
            fleet.send(key, 1000.0)
    table = fleet.model.table(fleet.keys, 1000.0, fleet.now)
    assert table.services == pytest.approx([0.1, 0.1, 0.1, 0.3], rel=0.15)
    assert table.works == pytest.approx([0.1] * 4, rel=0.15)
    fast, *_, slow = table.predictions({}, 1000.0, {})
    # Twenty requests wait everywhere, so that a request delays most requests that count (64); at
    # the slow server it takes three times as long of those that wait there.
    own = 0.5 * (slow.wait / table.mean_service * slow.service)
    assert slow.delay_to_others == pytest.approx(64 * table.works[3] + min(own, 32 * 0.3), rel=0.01)
    assert slow.delay_to_others < 2 * fast.delay_to_others


def test_the_parts_of_a_cost_are_those_that_it_is_made_of() -> None:
    table = CostTable(
        ("fast", "slow"),
        (0.0, 0.2),
        (0.1, 0.3),
        (0.1, 0.1),
        (0.5, 2.0),
        Learner(TRUSTING),
        TRUSTING,
    )
    mean = table.mean_service
    for at, part in enumerate(table.predictions({}, 1000.0, {})):
        own = 0.5 * part.service * part.wait / mean
        assert part.cost == pytest.approx(table.costs()[at])
        assert part.eviction == pytest.approx(table.evictions[at] * (0.1 + mean))
        assert part.delay_to_others == pytest.approx(own)  # the shortest wait is 0

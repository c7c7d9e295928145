import pytest

from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    run_filter,
    run_profile,
)
from epp_plugins.filters.least_queue import LeastQueueFilter


@pytest.mark.parametrize(
    ("waiting", "want"),
    [
        pytest.param([0, 3, 10], ["0", "3"], id="the published example"),  # 0 + 10 // 3 = 3
        pytest.param([10, 3, 0], ["3", "0"], id="pool order is kept"),
        pytest.param([0, 2], ["0"], id="two of them"),  # 0 + 2 // 2 = 1
        pytest.param([0, 1], ["0"], id="division is of whole numbers"),  # 0 + 1 // 2 = 0
        pytest.param([5, 6, 8], ["5", "6"], id="the range starts at the least"),  # 5 + 3 // 3 = 6
        pytest.param([7, 7], ["7", "7"], id="all equal"),
        pytest.param([9], ["9"], id="one"),
        pytest.param([], [], id="none"),
    ],
)
def test_filter(waiting: list[int], want: list[str]) -> None:
    endpoints = [make_endpoint(str(n), waiting_requests=n) for n in waiting]
    assert run_filter(make_plugin(LeastQueueFilter), make_request(), endpoints) == want


def test_endpoints_never_scraped_are_all_kept() -> None:
    endpoints = [make_endpoint("a"), make_endpoint("b")]
    assert run_filter(make_plugin(LeastQueueFilter), make_request(), endpoints) == ["a", "b"]


def test_a_profile_picks_the_shortest_queue() -> None:
    profile = make_profile(filters=[make_plugin(LeastQueueFilter)])
    endpoints = [make_endpoint("a", waiting_requests=9), make_endpoint("b", waiting_requests=1)]
    assert run_profile(profile, make_request(), endpoints) == ["b"]

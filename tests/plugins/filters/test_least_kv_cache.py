import pytest

from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    run_filter,
    run_profile,
)
from epp_plugins.filters.least_kv_cache import LeastKvCacheFilter


@pytest.mark.parametrize(
    ("usages", "want"),
    [
        pytest.param([0.0, 0.3, 1.0], ["0.0", "0.3"], id="the published example"),  # 0 + 1 / 3
        pytest.param([1.0, 0.3, 0.0], ["0.3", "0.0"], id="pool order is kept"),
        pytest.param([0.5, 0.75, 1.0], ["0.5"], id="the range starts at the least"),  # .5 + .5 / 3
        pytest.param([0.25, 0.5, 1.0], ["0.25", "0.5"], id="equal to the bound"),  # .25 + .75 / 3
        pytest.param([0.9, 0.9], ["0.9", "0.9"], id="all equal"),
        pytest.param([1.0], ["1.0"], id="one, though full"),
        pytest.param([], [], id="none"),
    ],
)
def test_filter(usages: list[float], want: list[str]) -> None:
    endpoints = [make_endpoint(str(usage), kv_cache_usage=usage) for usage in usages]
    assert run_filter(make_plugin(LeastKvCacheFilter), make_request(), endpoints) == want


def test_endpoints_never_scraped_are_all_kept() -> None:
    endpoints = [make_endpoint("a"), make_endpoint("b")]
    assert run_filter(make_plugin(LeastKvCacheFilter), make_request(), endpoints) == ["a", "b"]


def test_a_profile_picks_the_emptiest_cache() -> None:
    profile = make_profile(filters=[make_plugin(LeastKvCacheFilter)])
    endpoints = [make_endpoint("a", kv_cache_usage=0.9), make_endpoint("b", kv_cache_usage=0.1)]
    assert run_profile(profile, make_request(), endpoints) == ["b"]

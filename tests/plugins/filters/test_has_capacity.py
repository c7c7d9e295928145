from typing import Any

import pytest

from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    run_filter,
    run_profile,
)
from epp_plugins.filters.has_capacity import HasCapacityFilter

ENDPOINTS = [
    make_endpoint("idle"),
    make_endpoint("at both bounds", waiting_requests=5, kv_cache_usage=0.8),
    make_endpoint("long queue", waiting_requests=6, kv_cache_usage=0.1),
    make_endpoint("full cache", waiting_requests=0, kv_cache_usage=0.81),
]


@pytest.mark.parametrize(
    ("parameters", "want"),
    [
        pytest.param({}, ["idle", "at both bounds"], id="5 waiting and 0.8 by default, which pass"),
        pytest.param(
            {"queueThreshold": 6}, ["idle", "at both bounds", "long queue"], id="a longer queue"
        ),
        pytest.param(
            {"kvCacheThreshold": 0.9}, ["idle", "at both bounds", "full cache"], id="a fuller cache"
        ),
        pytest.param({"queueThreshold": 0, "kvCacheThreshold": 0}, ["idle"], id="only idle ones"),
    ],
)
def test_filter(parameters: dict[str, Any], want: list[str]) -> None:
    assert run_filter(make_plugin(HasCapacityFilter, parameters), make_request(), ENDPOINTS) == want


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        pytest.param({"queueThreshold": -1}, r"`int` >= 0 - at `\$\.queueThreshold`", id="queue"),
        pytest.param(
            {"kvCacheThreshold": 80}, r"`float` <= 1.0 - at `\$\.kvCacheThreshold`", id="percent"
        ),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make_plugin(HasCapacityFilter, parameters)


def test_a_profile_passes_over_busy_endpoints() -> None:
    profile = make_profile(filters=[make_plugin(HasCapacityFilter)])
    assert run_profile(profile, make_request(), ENDPOINTS) == ["idle", "at both bounds"]

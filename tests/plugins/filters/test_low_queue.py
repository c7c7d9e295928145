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
from epp_plugins.filters.low_queue import LowQueueFilter

ENDPOINTS = [
    make_endpoint("at 0"),
    make_endpoint("at 128", waiting_requests=128),
    make_endpoint("at 129", waiting_requests=129),
    # No free slot is known, so what is in flight there waits too: 1 + 2.
    make_endpoint("at 3", waiting_requests=1, in_flight=2),
]


@pytest.mark.parametrize(
    ("parameters", "want"),
    [
        pytest.param({}, ["at 0", "at 128", "at 3"], id="128 by default, which passes"),
        pytest.param({"threshold": 3}, ["at 0", "at 3"], id="the effective queue counts"),
        pytest.param({"threshold": 2}, ["at 0"], id="one less"),
        pytest.param({"threshold": 0}, ["at 0"], id="only empty queues"),
    ],
)
def test_filter(parameters: dict[str, Any], want: list[str]) -> None:
    assert run_filter(make_plugin(LowQueueFilter, parameters), make_request(), ENDPOINTS) == want


def test_all_queues_too_long_leave_nobody() -> None:
    plugin = make_plugin(LowQueueFilter, {"threshold": 1})
    assert run_filter(plugin, make_request(), ENDPOINTS[1:]) == []
    assert run_filter(plugin, make_request(), []) == []


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected `int` >= 0 - at `\$\.threshold`"):
        make_plugin(LowQueueFilter, {"threshold": -1})


def test_a_profile_picks_a_short_queue() -> None:
    profile = make_profile(filters=[make_plugin(LowQueueFilter, {"threshold": 0})])
    assert run_profile(profile, make_request(), ENDPOINTS) == ["at 0"]

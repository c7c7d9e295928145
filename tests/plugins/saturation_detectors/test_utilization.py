import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling import Endpoint
from epp.testing import (
    check,
    make_endpoint,
    make_endpoints,
    make_profile,
    make_request,
    run_filter,
    run_profile,
)
from epp_plugins.saturation_detectors.utilization import Params, UtilizationDetector


def made(parameters: dict[str, Any] | None = None) -> UtilizationDetector:
    return UtilizationDetector("detector", msgspec.convert(parameters or {}, Params))


def test_the_class_is_sound() -> None:
    check(UtilizationDetector)


@pytest.mark.parametrize(
    ("table", "parameters", "expected"),
    [
        pytest.param({}, {}, 1.0, id="no endpoint: full"),
        pytest.param({"a": {}}, {}, 0.0, id="never scraped, nobody was: idle"),
        pytest.param({"a": {"in_flight": 5}}, {}, 1.0, id="what was sent counts"),  # 5 / 5
        pytest.param({"a": {"waiting_requests": 3}}, {}, 0.6, id="by the queue"),  # 3 / 5
        pytest.param({"a": {"kv_cache_usage": 0.6}}, {}, 0.75, id="by the cache"),  # 0.6 / 0.8
        pytest.param(
            # max(4/5, 0.4/0.8)
            {"a": {"waiting_requests": 4, "kv_cache_usage": 0.4}},
            {},
            0.8,
            id="by the fuller of the two",
        ),
        pytest.param(
            # (10/5 + 0.2/0.8 + 0) / 3
            {"a": {"waiting_requests": 10}, "b": {"kv_cache_usage": 0.2}, "c": {}},
            {},
            0.75,
            id="the mean of the endpoints, beyond 1 too",
        ),
        pytest.param(
            # max(10/20, 0.4/0.5)
            {"a": {"waiting_requests": 10, "kv_cache_usage": 0.4}},
            {"queueDepthThreshold": 20, "kvCacheUtilThreshold": 0.5},
            0.8,
            id="other thresholds",
        ),
        pytest.param(
            {"a": {"waiting_requests": 5}},
            {"headroom": 1.0, "metricsStalenessThreshold": "1s"},
            1.0,
            id="headroom is the filter's",
        ),
    ],
)
def test_saturation(
    table: dict[str, dict[str, Any]], parameters: dict[str, Any], expected: float
) -> None:
    assert made(parameters).saturation(make_endpoints(table)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("table", "parameters", "kept"),
    [
        pytest.param(
            {"a": {"waiting_requests": 4}, "b": {"waiting_requests": 5}},
            {},
            ["a"],
            id="a queue at its threshold is too long",
        ),
        pytest.param(
            {"a": {"kv_cache_usage": 0.79}, "b": {"kv_cache_usage": 0.8}},
            {},
            ["a"],
            id="a cache at its threshold is too full",
        ),
        pytest.param(
            # 5 * 1.2 = 6
            {"a": {"waiting_requests": 5}, "b": {"waiting_requests": 6}},
            {"headroom": 0.2},
            ["a"],
            id="headroom lets it go further",
        ),
        pytest.param(
            {"a": {"waiting_requests": 9}, "b": {"kv_cache_usage": 1.0}},
            {},
            ["a", "b"],
            id="all if none is below",
        ),
        pytest.param({"a": {}}, {}, ["a"], id="never scraped"),
    ],
)
def test_filter(
    table: dict[str, dict[str, Any]], parameters: dict[str, Any], kept: list[str]
) -> None:
    assert run_filter(made(parameters), make_request(), make_endpoints(table)) == kept


def test_in_a_profile() -> None:
    endpoints = make_endpoints({"a": {"waiting_requests": 7}, "b": {"waiting_requests": 1}})
    assert run_profile(make_profile(filters=[made()]), make_request(), endpoints) == ["b"]


NUMBERS = st.floats(-1e300, 1e300)


@given(values=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5))
def test_any_metrics_give_a_saturation_and_a_subset(values: list[tuple[float, float]]) -> None:
    endpoints: list[Endpoint] = []
    for place, (waiting, usage) in enumerate(values):
        endpoint = make_endpoint(f"ns/{place}")
        endpoint.load.assume(waiting=waiting, running=0, kv_cache_usage=usage)
        endpoints.append(endpoint)
    saturation = made().saturation(endpoints)
    assert saturation >= 0
    assert not math.isnan(saturation)
    assert run_filter(made(), make_request(), endpoints)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"queueDepthThreshold": 0}, "`$.queueDepthThreshold`", id="no queue"),
        pytest.param({"kvCacheUtilThreshold": 0.0}, "`$.kvCacheUtilThreshold`", id="no cache"),
        pytest.param({"kvCacheUtilThreshold": 1.1}, "`$.kvCacheUtilThreshold`", id="over 1"),
        pytest.param({"headroom": -0.1}, "`$.headroom`", id="less than no headroom"),
        pytest.param(
            {"metricsStalenessThreshold": "0s"},
            "metricsStalenessThreshold is 0; write a longer duration, such as 200ms",
            id="stale at once",
        ),
        pytest.param(
            {"metricsStalenessThreshold": "soon"}, "`soon` is not a duration", id="no duration"
        ),
        pytest.param({"threshold": 1}, "unknown field `threshold`", id="unknown field"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        made(parameters)

import random
import sys
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling import AttributeKey, CycleState, Endpoint
from epp.testing import (
    check,
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    run_profile,
)
from epp_plugins.scorers.endpoint_attribute import EndpointAttributeScorer
from epp_plugins.state_keys import GPU_UTILIZATION

DEPTH = AttributeKey[Any]("queue-depth/core-metrics-extractor")
MOST = sys.float_info.max
ABSENT = object()


def having(value: object, key: AttributeKey[Any] = DEPTH) -> Endpoint:
    return make_endpoint(repr(value)[:20], attributes={} if value is ABSENT else {key: value})


def linear(better: str, normalization: dict[str, Any] | None = None) -> EndpointAttributeScorer:
    algorithm: dict[str, Any] = {"type": f"linear_{better}_is_better"}
    if normalization is not None:
        algorithm["normalization"] = normalization
    return make_plugin(
        EndpointAttributeScorer, {"attributeKey": "queue-depth", "algorithm": algorithm}
    )


def scores(plugin: EndpointAttributeScorer, values: list[Any]) -> list[float]:
    return plugin.score(make_request(), [having(value) for value in values], CycleState())


LOWER, HIGHER = linear("lower"), linear("higher", {"adaptiveRange": {}})
UP_TO_10 = {"fixedRange": {"min": 0, "max": 10}}


@pytest.mark.parametrize(
    ("plugin", "values", "want"),
    [
        # Range 0 to 10: 1 - 10/10, 1 - 5/10, 1 - 0/10.
        pytest.param(LOWER, [10, 5, 0], [0.0, 0.5, 1.0], id="lower is better"),
        pytest.param(HIGHER, [10, 5, 0], [1.0, 0.5, 0.0], id="higher is better"),
        pytest.param(LOWER, [7, 7], [1.0, 1.0], id="all equal"),
        pytest.param(HIGHER, [7], [1.0], id="a sole endpoint"),
        pytest.param(LOWER, [10, ABSENT, 0], [0.0, 0.0, 1.0], id="missing is 0, not in the range"),
        pytest.param(LOWER, [7, ABSENT, 7], [1.0, 0.0, 1.0], id="missing beside equals is 0"),
        pytest.param(LOWER, [ABSENT, ABSENT], [0.0, 0.0], id="all missing"),
        # Range -4 to 4: (-2 + 4) / 8.
        pytest.param(HIGHER, [-4, -2, 4], [0.0, 0.25, 1.0], id="negative numbers"),
        pytest.param(
            LOWER, [nan, inf, -inf, True, "3", 0, 2], [0, 0, 0, 0, 0, 1.0, 0], id="no numbers"
        ),
        # The range is twice what a float can hold.
        pytest.param(HIGHER, [MOST, 0, -MOST], [1.0, 0.5, 0.0], id="the greatest numbers"),
        pytest.param(HIGHER, [5e-324, 0.0, 10**308], [0.0, 0.0, 1.0], id="the least numbers"),
        pytest.param(linear("lower", UP_TO_10), [10, 5, 0], [0.0, 0.5, 1.0], id="fixed, lower"),
        pytest.param(linear("higher", UP_TO_10), [10, 5, 0], [1.0, 0.5, 0.0], id="fixed, higher"),
        # 1 - 7/10, not 1 as in the candidates' own range.
        pytest.param(linear("lower", UP_TO_10), [7, 7], [0.3, 0.3], id="fixed, equal"),
        pytest.param(linear("lower", UP_TO_10), [15, -5], [0.0, 1.0], id="fixed, outside"),
        pytest.param(linear("higher", UP_TO_10), [10, ABSENT], [1.0, 0.0], id="fixed, missing"),
        pytest.param(
            linear("higher", {"fixedRange": {"min": 0, "max": 1e-3}}),
            [MOST, -MOST],
            [1.0, 0.0],
            id="fixed, far outside",
        ),
    ],
)
def test_score(plugin: EndpointAttributeScorer, values: list[Any], want: list[float]) -> None:
    assert scores(plugin, values) == pytest.approx(want)


_anything = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from([ABSENT, None, True, "1", 10**400, -(10**400), MOST, -MOST, 5e-324]),
)


@given(st.lists(_anything, min_size=1, max_size=6))
def test_every_score_is_a_fraction_whatever_the_attribute(values: list[Any]) -> None:
    for plugin in (LOWER, HIGHER, linear("lower", UP_TO_10), linear("higher", UP_TO_10)):
        given_scores = scores(plugin, values)
        assert len(given_scores) == len(values)
        assert all(0.0 <= score <= 1.0 for score in given_scores)


def test_a_better_number_never_scores_less() -> None:
    numbers = sorted(random.Random(7).uniform(-1e6, 1e6) for _ in range(50))
    assert scores(HIGHER, numbers) == sorted(scores(HIGHER, numbers))
    assert scores(LOWER, numbers) == sorted(scores(LOWER, numbers), reverse=True)


def test_the_producers_own_attribute_counts() -> None:
    check(EndpointAttributeScorer)
    algorithm = {"type": "linear_lower_is_better"}
    for parameters in (
        {"attributeKey": "GPUUtilization", "producer": "dcgm-extractor"},
        {"attributeKey": "GPUUtilization/dcgm-extractor"},
    ):
        plugin = make_plugin(EndpointAttributeScorer, {**parameters, "algorithm": algorithm})
        assert plugin.optional_reads == (GPU_UTILIZATION,)
        endpoints = [having(0.9, GPU_UTILIZATION), having(0.1, GPU_UTILIZATION), having(0)]
        assert plugin.score(make_request(), endpoints, CycleState()) == [0.0, 1.0, 0.0]


LOW = {"type": "linear_lower_is_better"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"algorithm": LOW}, "missing required field `attributeKey`", id="no name"),
        pytest.param(
            {"attributeKey": "", "algorithm": LOW},
            r"length >= 1 - at `\$\.attributeKey`",
            id="empty name",
        ),
        pytest.param(
            {"attributeKey": "a"}, "missing required field `algorithm`", id="no algorithm"
        ),
        pytest.param(
            {"attributeKey": "a", "algorithm": {"type": "log_lower_is_better"}},
            r"'log_lower_is_better' - at `\$\.algorithm\.type`",
            id="another algorithm",
        ),
        pytest.param(
            {
                "attributeKey": "a",
                "algorithm": {**LOW, "normalization": {**UP_TO_10, "adaptiveRange": {}}},
            },
            r"fixedRange and adaptiveRange are both set; remove one of them - at"
            r" `\$\.algorithm\.normalization`",
            id="two ranges",
        ),
        pytest.param(
            {
                "attributeKey": "a",
                "algorithm": {**LOW, "normalization": {"fixedRange": {"min": 1, "max": 1}}},
            },
            r"min must be less than max, got min 1\.0 and max 1\.0",
            id="an empty range",
        ),
        pytest.param(
            {
                "attributeKey": "a",
                "algorithm": {**LOW, "normalization": {"fixedRange": {"min": -MOST, "max": MOST}}},
            },
            "max - min must be finite",
            id="a range too long",
        ),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plugin(EndpointAttributeScorer, parameters)


def test_a_profile_picks_the_lowest() -> None:
    profile = make_profile(scorers=[LOWER])
    endpoints = [having(8), having(1), having(4)]
    assert run_profile(profile, make_request(), endpoints) == ["1", "4", "8"]

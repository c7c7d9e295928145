"""Usage-limit policies: the saturation at which each band stops dispatching."""

from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import Any

import msgspec
import pytest
from config.graphs import HEAD
from hypothesis import given
from hypothesis import strategies as st

from epp.building import make_builder
from epp.config import load_text
from epp.flow_control.plugins import UsageLimitPolicy
from epp.scheduling import Plugin
from epp.testing import check, make_plugin
from epp_plugins.flow_control.priority_holdback import PriorityHoldbackPolicy
from epp_plugins.flow_control.soft_reflective_ceiling import SoftReflectiveCeilingPolicy
from epp_plugins.flow_control.static_usage_limit import StaticUsageLimitPolicy

POLICIES = (PriorityHoldbackPolicy, SoftReflectiveCeilingPolicy, StaticUsageLimitPolicy)
BANDS = st.lists(st.integers(-(2**31), 2**31), max_size=8, unique=True).map(
    lambda priorities: sorted(priorities, reverse=True)
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.type)
def test_the_class_is_sound(policy: type[Plugin]) -> None:
    check(policy)


def test_static_is_the_same_for_all_and_full_by_default() -> None:
    assert make_plugin(StaticUsageLimitPolicy).ceilings(0.3, (9, 0, -1)) == [1.0, 1.0, 1.0]
    policy = make_plugin(StaticUsageLimitPolicy, {"threshold": 0.8})
    assert policy.ceilings(1.5, (9, 0)) == [0.8, 0.8]
    assert policy.ceilings(1.5, ()) == []


@pytest.mark.parametrize(
    ("parameters", "priorities", "want"),
    [
        # 1 - i * 0.6 / 3
        pytest.param({"minCeiling": 0.4}, (9, 8, 1, -7), [1.0, 0.8, 0.6, 0.4], id="by rank"),
        pytest.param(
            {"minCeiling": 0.5, "maxCeiling": 0.9, "domain": "rank", "shape": "linear"},
            (100, 0, -100),
            [0.9, 0.7, 0.5],  # 0.9 - i * 0.4 / 2
            id="by rank below a highest ceiling",
        ),
        pytest.param(
            {"minCeiling": 0.5, "domain": "value"},
            (100, 80, 0),
            [1.0, 0.9, 0.5],  # 0.5 + 80 / 100 * 0.5
            id="by value",
        ),
        pytest.param(
            {"minCeiling": 0.0, "domain": "value"},
            (10, -10, -30),
            [1.0, 0.5, 0.0],  # (-10 + 30) / 40
            id="by value with negative ones",
        ),
        pytest.param({"minCeiling": 0.4, "maxCeiling": 0.9}, (0,), [0.9], id="alone: the highest"),
        pytest.param({"minCeiling": 0.4, "domain": "value"}, (0,), [1.0], id="alone, by value"),
        pytest.param({"minCeiling": 0.4}, (), [], id="no band"),
        pytest.param(
            {"domain": "explicit", "ceilings": {"100": 1.0, "0": 0.7, "-1": 0.7}},
            (100, 50, 0, -1),
            [1.0, 0.0, 0.7, 0.7],
            id="listed; one that is not listed never goes",
        ),
        pytest.param(
            {"domain": "explicit", "ceilings": {"100": 1.0, "0": 0.7}},
            (0,),
            [0.7],
            id="listed, alone",
        ),
    ],
)
def test_holdback(
    parameters: dict[str, Any], priorities: Sequence[int], want: Sequence[float]
) -> None:
    policy = make_plugin(PriorityHoldbackPolicy, parameters)
    for saturation in (0.0, 0.99, 3.0):
        assert policy.ceilings(saturation, priorities) == pytest.approx(want)


@pytest.mark.parametrize(
    ("policy", "parameters", "message"),
    [
        pytest.param(PriorityHoldbackPolicy, {}, "minCeiling is missing", id="no lowest"),
        pytest.param(
            PriorityHoldbackPolicy,
            {"minCeiling": 0.9, "maxCeiling": 0.9},
            "minCeiling 0.9 must be below maxCeiling 0.9",
            id="lowest not below highest",
        ),
        pytest.param(PriorityHoldbackPolicy, {"minCeiling": 1.0}, "< 1.0", id="lowest of 1"),
        pytest.param(PriorityHoldbackPolicy, {"minCeiling": nan}, ">= 0.0", id="lowest no number"),
        pytest.param(
            PriorityHoldbackPolicy, {"minCeiling": 0.1, "maxCeiling": 1.1}, "<= 1.0", id="above 1"
        ),
        pytest.param(
            PriorityHoldbackPolicy, {"minCeiling": 0.1, "shape": "step"}, "Invalid enum", id="shape"
        ),
        pytest.param(
            PriorityHoldbackPolicy,
            {"minCeiling": 0.1, "ceilings": {"0": 1.0}},
            "ceilings has no effect; remove it or write `domain: explicit`",
            id="a list that nobody reads",
        ),
        pytest.param(
            PriorityHoldbackPolicy, {"domain": "explicit"}, "ceilings is missing", id="no list"
        ),
        pytest.param(
            PriorityHoldbackPolicy,
            {"domain": "explicit", "ceilings": {"0": 1.0}, "maxCeiling": 1.0},
            "maxCeiling has no effect with `domain: explicit`; remove it",
            id="a list and a highest ceiling",
        ),
        pytest.param(
            PriorityHoldbackPolicy,
            {"domain": "explicit", "ceilings": {"0": 0.5, "5": 0.4, "-1": 0.1}},
            r"ceilings\[0\] 0.5 must not be above ceilings\[5\] 0.4",
            id="a list that rises downwards",
        ),
        pytest.param(
            PriorityHoldbackPolicy,
            {"domain": "explicit", "ceilings": {"0": 1.5}},
            "<= 1.0",
            id="a listed ceiling above 1",
        ),
        pytest.param(
            PriorityHoldbackPolicy,
            {"domain": "explicit", "ceilings": {"high": 1.0}},
            "ceilings has the key `high`; write a priority, such as 100",
            id="a list by name",
        ),
        pytest.param(StaticUsageLimitPolicy, {"threshold": 0}, "> 0.0", id="never open"),
        pytest.param(StaticUsageLimitPolicy, {"threshold": nan}, "> 0.0", id="threshold no number"),
        pytest.param(
            SoftReflectiveCeilingPolicy, {"alpha": 1}, "unknown field `alpha`", id="no parameters"
        ),
    ],
)
def test_bad_parameters_are_refused(
    policy: type[Plugin], parameters: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        make_plugin(policy, parameters)


@pytest.mark.parametrize(
    ("saturation", "period"),
    [
        pytest.param(0.0, 1, id="idle"),
        pytest.param(0.49, 1, id="below the ceiling of 0.51"),
        pytest.param(0.59, 1, id="above it, round(1.44) is 1: always"),
        pytest.param(0.61, 2, id="round(1.56) is 2"),
        pytest.param(0.75, 3, id="0.75 / 0.25"),
        pytest.param(0.9, 9, id="0.9 / 0.1"),
    ],
)
def test_reflective_opens_the_low_band_once_in_a_period(saturation: float, period: int) -> None:
    policy = make_plugin(SoftReflectiveCeilingPolicy)
    asked = [policy.ceilings(saturation, (1, 0)) for _ in range(3 * period)]
    assert [high for high, _ in asked] == [1.0] * (3 * period)
    assert [low for _, low in asked] == [*[0.0] * (period - 1), 1.0] * 3


@pytest.mark.parametrize(
    ("saturation", "want"),
    [
        # ceilings at 0.4: 1, 0.8, 0.6; at 0.62: 1, 0.69, 0.38
        pytest.param(0.4, [1.0, 1.0, 1.0], id="below all ceilings"),
        pytest.param(0.62, [1.0, 1.0, 0.0], id="the lowest only now and then"),
        pytest.param(0.7, [1.0, 0.0, 0.0], id="both now and then"),
        pytest.param(1.0, [1.0, 0.0, 0.0], id="full"),
        pytest.param(1.7, [1.0, 0.0, 0.0], id="more than full"),
        pytest.param(inf, [1.0, 0.0, 0.0], id="without end"),
        pytest.param(nan, [1.0, 0.0, 0.0], id="no number"),
    ],
)
def test_reflective_gates_lower_bands_earlier(saturation: float, want: list[float]) -> None:
    policy = make_plugin(SoftReflectiveCeilingPolicy)
    assert policy.ceilings(saturation, (2, 1, 0)) == want


def test_reflective_is_never_open_when_full_and_goes_on_where_it_was_afterwards() -> None:
    policy = make_plugin(SoftReflectiveCeilingPolicy)
    assert policy.ceilings(0.75, (1, 0)) == [1.0, 0.0]
    assert [policy.ceilings(1.0, (1, 0)) for _ in range(9)] == [[1.0, 0.0]] * 9
    assert [policy.ceilings(0.75, (1, 0))[1] for _ in range(2)] == [0.0, 1.0]


def test_reflective_opens_a_band_that_is_alone_and_needs_none() -> None:
    policy = make_plugin(SoftReflectiveCeilingPolicy)
    assert policy.ceilings(1.5, (-1,)) == [1.0]
    assert policy.ceilings(1.5, ()) == []


def test_reflective_keeps_the_pace_of_a_band_when_others_come_and_go() -> None:
    policy = make_plugin(SoftReflectiveCeilingPolicy)
    opened = [policy.ceilings(0.75, (9, 0))[-1]]
    opened += [policy.ceilings(0.75, (9, 8, 7, 0))[-1]]
    opened += [policy.ceilings(0.75, (9, 0))[-1] for _ in range(4)]
    assert opened == [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]


def test_reflective_forgets_bands_that_are_gone() -> None:
    policy = make_plugin(SoftReflectiveCeilingPolicy)
    for gone in range(-1, -50, -1):
        policy.ceilings(0.75, (0, gone))
    assert len(policy._asked) <= 2


def holdback(domain: str) -> UsageLimitPolicy:
    return make_plugin(PriorityHoldbackPolicy, {"minCeiling": 0.3, "domain": domain})


@given(BANDS, st.floats(0.0, 2.0), st.sampled_from(["rank", "value"]))
def test_holdback_falls_from_its_highest_to_its_lowest(
    priorities: list[int], saturation: float, domain: str
) -> None:
    ceilings = holdback(domain).ceilings(saturation, priorities)
    assert len(ceilings) == len(priorities)
    assert ceilings == sorted(ceilings, reverse=True)
    assert ceilings[:1] == [1.0] * len(priorities[:1])
    if len(priorities) > 1:
        assert ceilings[-1] == pytest.approx(0.3)
        assert min(ceilings) >= 0.0


@given(st.lists(st.tuples(st.floats(allow_nan=True), BANDS), max_size=30))
def test_reflective_never_gates_the_highest_nor_opens_a_low_one_of_a_full_pool(
    asked: list[tuple[float, list[int]]],
) -> None:
    policy = make_plugin(SoftReflectiveCeilingPolicy)
    for saturation, priorities in asked:
        ceilings = policy.ceilings(saturation, priorities)
        assert len(ceilings) == len(priorities)
        assert set(ceilings) <= {0.0, 1.0}
        assert ceilings[:1] == [1.0] * len(priorities[:1])
        if not saturation < 1.0:
            assert not any(ceilings[1:])


@pytest.mark.parametrize("key", ["100", '"100"', "-1"], ids=["number", "text", "negative"])
def test_listed_ceilings_are_read_from_a_file(key: str) -> None:
    parameters = f"{{domain: explicit, ceilings: {{{key}: 0.5}}}}"
    text = f"{HEAD}plugins: [{{type: priority-holdback-policy, parameters: {parameters}}}]\n"
    graph = make_builder(seed=0).build(load_text(text, "f"))
    policy = graph.plugins["priority-holdback-policy"]
    assert isinstance(policy, UsageLimitPolicy)
    assert policy.ceilings(0.0, (int(key.strip('"')), -5)) == [0.5, 0.0]

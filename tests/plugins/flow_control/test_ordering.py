"""Ordering policies: the order of requests within a band."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from flow_control.waiting import FOREVER, Line
from hypothesis import given
from hypothesis import strategies as st

from epp.flow_control.plugins import OrderingPolicy
from epp.scheduling import Plugin
from epp.testing import check, make_plugin
from epp_plugins.flow_control.edf_ordering import EdfOrderingPolicy
from epp_plugins.flow_control.fcfs_ordering import FcfsOrderingPolicy
from epp_plugins.flow_control.global_strict_fairness import GlobalStrictFairnessPolicy
from epp_plugins.flow_control.slo_deadline_ordering import SloDeadlineOrderingPolicy

POLICIES = (FcfsOrderingPolicy, EdfOrderingPolicy, SloDeadlineOrderingPolicy)
TTFT = "x-llm-d-slo-ttft-ms"


def line(ordering: type[OrderingPolicy]) -> Line:
    return Line(make_plugin(ordering), make_plugin(GlobalStrictFairnessPolicy))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.type)
def test_the_class_is_sound_and_has_no_parameters(policy: type[Plugin]) -> None:
    check(policy)
    with pytest.raises(msgspec.ValidationError, match="unknown field `reverse`"):
        make_plugin(policy, {"reverse": True})


def test_fcfs_goes_by_when_a_request_began_to_wait_not_by_when_it_came() -> None:
    waiting = line(FcfsOrderingPolicy)
    waiting.enqueue("a", 2.0, request_id="late", received_at=0.0, ttl_seconds=1.0)
    waiting.enqueue("a", 1.0, request_id="early", received_at=0.5)
    waiting.enqueue("a", 1.0, request_id="same time, later arrival")
    assert waiting.dispatch_all() == ["early", "same time, later arrival", "late"]


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        pytest.param((0.0, 60.0), (10.0, 30.0), "second", id="40 comes before 60"),
        pytest.param((0.0, 60.0), (10.0, 60.0), "first", id="alike: by enqueue time"),
        pytest.param((0.0, FOREVER), (99.0, 60.0), "second", id="without an end: after all others"),
        pytest.param((0.0, 0.0), (99.0, 60.0), "second", id="an end of 0 is none"),
        pytest.param((0.0, -5.0), (99.0, 60.0), "second", id="nor is a negative one"),
        pytest.param((5.0, FOREVER), (4.0, FOREVER), "second", id="both without: by enqueue time"),
        pytest.param((10.0, 20.0), (0.0, 30.0), "second", id="same deadline: by enqueue time"),
    ],
)
def test_edf_goes_by_the_end_of_the_time_to_wait(
    first: tuple[float, float | None], second: tuple[float, float | None], want: str
) -> None:
    waiting = line(EdfOrderingPolicy)
    waiting.enqueue("a", first[0], ttl_seconds=first[1], request_id="first")
    waiting.enqueue("a", second[0], ttl_seconds=second[1], request_id="second")
    assert waiting.dispatch().request.request_id == want


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        # (received at, headers); deadlines: 0 + 2.0 and 1 + 0.5
        pytest.param((0.0, {TTFT: "2000"}), (1.0, {TTFT: "500"}), "second", id="earlier deadline"),
        pytest.param((0.0, {TTFT: "2000"}), (1.0, {TTFT: "1500"}), "first", id="later deadline"),
        pytest.param((0.0, {}), (9.0, {TTFT: "60000"}), "second", id="without one: last"),
        pytest.param((0.0, {TTFT: "soon"}), (9.0, {TTFT: "60000"}), "second", id="no number: last"),
        pytest.param((0.0, {TTFT: "-1"}), (9.0, {TTFT: "60000"}), "second", id="negative: last"),
        pytest.param((0.0, {TTFT: "1e999"}), (9.0, {TTFT: "9"}), "second", id="too large: last"),
        pytest.param((1.0, {TTFT: "soon"}), (0.0, {}), "second", id="both without: by arrival"),
        pytest.param((0.0, {TTFT: "600"}), (0.0, {TTFT: "500.5"}), "second", id="a fraction"),
        pytest.param((0.0, {TTFT: "600"}), (0.0, {"x-slo-ttft-ms": "5"}), "second", id="old name"),
        pytest.param((1.0, {TTFT: "500"}), (0.5, {TTFT: "1000"}), "second", id="same: by arrival"),
    ],
)
def test_slo_deadline_goes_by_when_the_first_token_is_due(
    first: tuple[float, Mapping[str, str]], second: tuple[float, Mapping[str, str]], want: str
) -> None:
    waiting = line(SloDeadlineOrderingPolicy)
    waiting.enqueue("a", 10.0, received_at=first[0], headers=first[1], request_id="first")
    waiting.enqueue("a", 10.0, received_at=second[0], headers=second[1], request_id="second")
    assert waiting.dispatch().request.request_id == want


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.type)
@given(
    asked=st.lists(
        st.tuples(
            st.floats(0.0, 1e6),
            st.none() | st.floats(-1.0, 1e6),
            st.floats(0.0, 1e6),
            st.dictionaries(st.sampled_from([TTFT, "x-slo-ttft-ms"]), st.text(max_size=8)),
        ),
        max_size=20,
    )
)
def test_any_requests_have_one_order_and_none_is_lost(
    policy: type[OrderingPolicy], asked: list[tuple[float, Any, float, dict[str, str]]]
) -> None:
    waiting = line(policy)
    queued = [
        waiting.enqueue(
            "ab"[number % 2], at, ttl_seconds=ttl, received_at=received, headers=headers
        )
        for number, (at, ttl, received, headers) in enumerate(asked)
    ]
    went = [waiting.dispatch() for _ in queued]
    assert went == sorted(queued, key=lambda each: (each.key, each.sequence))

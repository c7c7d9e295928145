"""Fairness policies without tokens: one queue for all, and round robin."""

from collections import Counter

import msgspec
import pytest
from flow_control.waiting import Line
from hypothesis import given
from hypothesis import strategies as st

from epp.flow_control.plugins import OrderingPolicy
from epp.scheduling import Plugin
from epp.testing import check, make_plugin
from epp_plugins.flow_control.edf_ordering import EdfOrderingPolicy
from epp_plugins.flow_control.fcfs_ordering import FcfsOrderingPolicy
from epp_plugins.flow_control.global_strict_fairness import GlobalStrictFairnessPolicy
from epp_plugins.flow_control.round_robin_fairness import RoundRobinFairnessPolicy

POLICIES = (GlobalStrictFairnessPolicy, RoundRobinFairnessPolicy)
FLOWS = st.sampled_from("abcde")


def strict(ordering: type[OrderingPolicy] = FcfsOrderingPolicy) -> Line:
    return Line(make_plugin(ordering), make_plugin(GlobalStrictFairnessPolicy))


def turns() -> Line:
    return Line(make_plugin(FcfsOrderingPolicy), make_plugin(RoundRobinFairnessPolicy))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.type)
def test_the_class_is_sound_and_has_no_parameters(policy: type[Plugin]) -> None:
    check(policy)
    with pytest.raises(msgspec.ValidationError, match="unknown field `weight`"):
        make_plugin(policy, {"weight": 1})


def test_global_strict_serves_the_first_of_all_flows() -> None:
    line = strict()
    for at, flow in enumerate("abbbac"):
        line.enqueue(flow, float(at))
    assert "".join(line.dispatch_all()) == "abbbac"


def test_global_strict_goes_by_the_order_of_the_band() -> None:
    line = strict(EdfOrderingPolicy)
    line.enqueue("a", 0.0, request_id="for ever")
    line.enqueue("a", 1.0, ttl_seconds=60.0, request_id="until 61")
    line.enqueue("b", 2.0, ttl_seconds=30.0, request_id="until 32")
    assert line.dispatch_all() == ["until 32", "until 61", "for ever"]


@given(st.lists(st.tuples(FLOWS, st.integers(0, 3), st.none() | st.integers(1, 3))))
def test_global_strict_is_one_queue_however_it_is_split(
    asked: list[tuple[str, int, int | None]],
) -> None:
    split, whole = strict(EdfOrderingPolicy), strict(EdfOrderingPolicy)
    for number, (flow, at, ttl) in enumerate(asked):
        for line, fairness_id in ((split, flow), (whole, "all")):
            line.enqueue(fairness_id, at, ttl_seconds=ttl, request_id=str(number))
    assert split.dispatch_all() == whole.dispatch_all()


def test_round_robin_gives_each_flow_one_request_in_turn() -> None:
    line = turns()
    for flow in "aaaabbc":
        line.enqueue(flow)
    assert "".join(line.dispatch_all()) == "abcabaa"


def test_round_robin_puts_newcomers_behind_all_who_wait() -> None:
    line = turns()
    for flow in "aab":
        line.enqueue(flow)
    assert line.dispatch().request.request_id == "a"
    for flow in "xyz":
        line.enqueue(flow)
    assert "".join(line.dispatch_all()) == "baxyz"


def test_round_robin_gives_a_flow_that_comes_back_no_better_place() -> None:
    line = turns()
    for flow in "abb":
        line.enqueue(flow)
    assert line.dispatch().request.request_id == "a"
    for flow in "ca":
        line.enqueue(flow)
    assert "".join(line.dispatch_all()) == "bcab"


def test_round_robin_takes_over_flows_that_waited_under_another_policy() -> None:
    line = strict()
    for flow in "bba":
        line.enqueue(flow)
    line.fairness = make_plugin(RoundRobinFairnessPolicy)
    assert "".join(line.dispatch_all()) == "bab"


@given(st.lists(st.tuples(st.booleans(), FLOWS), max_size=60))
def test_round_robin_serves_each_flow_within_one_cycle(steps: list[tuple[bool, str]]) -> None:
    line = turns()
    passed: dict[str, Counter[str]] = {}
    """Per flow that waits: how often others went since it came, or since its last turn."""
    for arrives, flow in steps:
        if arrives or not line.active():
            line.enqueue(flow)
            passed.setdefault(flow, Counter())
            continue
        went = line.dispatch().request.fairness_id
        still = {each.fairness_id for each in line.active()}
        passed[went] = Counter()
        passed = {each: counts for each, counts in passed.items() if each in still}
        for each, counts in passed.items():
            if each != went:
                counts[went] += 1
                assert counts[went] == 1, f"{went} went twice while {each} waited"

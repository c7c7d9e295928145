"""Eviction policies: which requests may be evicted, and in which order."""

from collections.abc import Mapping
from typing import Any
from unittest.mock import create_autospec

import pytest
from config.graphs import HEAD

from epp.building import make_builder
from epp.config import load_text
from epp.flow_control import InFlight, Revocable
from epp.scheduling import Plugin
from epp.testing import check, make_plugin, make_request
from epp_plugins.flow_control.priority_then_time_eviction import PriorityThenTimeEvictionOrder
from epp_plugins.flow_control.sheddable_eviction import SheddableEvictionFilter

POLICIES = (PriorityThenTimeEvictionOrder, SheddableEvictionFilter)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.type)
def test_the_class_is_sound(policy: type[Plugin]) -> None:
    check(policy)


@pytest.mark.parametrize(("priority", "may_be"), [(-7, True), (-1, True), (0, False), (3, False)])
def test_only_what_may_be_shed_may_be_evicted(priority: int, may_be: bool) -> None:
    request = make_request()
    request.priority = priority
    assert make_plugin(SheddableEvictionFilter).accepts(request) is may_be


def victim(priority: int, at: float) -> InFlight:
    revocable = create_autospec(Revocable, instance=True)
    revocable.request = make_request()
    revocable.request.priority = priority
    return InFlight(revocable, at)


@pytest.mark.parametrize(
    ("victims", "order"),
    [
        pytest.param([(-1, 5.0), (-3, 1.0), (-2, 9.0)], [1, 2, 0], id="the lowest priority"),
        pytest.param([(-1, 5.0), (-1, 1.0), (-1, 9.0)], [2, 0, 1], id="the newest of equal ones"),
        pytest.param([(-1, 9.0), (-2, 1.0), (-2, 2.0)], [2, 1, 0], id="priority before time"),
    ],
)
def test_who_is_first(victims: list[tuple[int, float]], order: list[int]) -> None:
    policy = make_plugin(PriorityThenTimeEvictionOrder)
    keys = [policy.key(victim(priority, at)) for priority, at in victims]
    assert sorted(range(len(keys)), key=keys.__getitem__) == order


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.type)
@pytest.mark.parametrize(
    ("parameters", "warned"), [({}, []), ({"x": 1}, ["plugins[0].parameters.x"])]
)
def test_parameters_are_ignored_with_a_warning_as_the_reference_ignores_them(
    policy: type[Plugin], parameters: Mapping[str, Any], warned: list[str]
) -> None:
    text = HEAD + f"plugins: [{{type: {policy.type}, parameters: {dict(parameters)}}}]\n"
    graph = make_builder(seed=0).build(load_text(text, "f"))
    assert [each.path for each in graph.warnings if "parameters" in each.path] == warned
    (plugin,) = graph.implementing(policy)
    assert plugin.name == policy.type

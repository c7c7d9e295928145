"""A shadow profile changes no real decision."""

from collections.abc import Sequence
from typing import ClassVar

import pytest
from config.graphs import Params, RandomOrder, Wrapping, build, load, make_registry

from epp.config import GraphBuilder, PluginGraph, PluginRegistry
from epp.request_control import PreRequest
from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest, SchedulingResult
from epp.testing import make_endpoint, make_request

PLUGINS = (
    "plugins:\n"
    "- {type: random-order-filter, name: dice}\n"
    "- {type: wrapping-filter, name: around, parameters: {to: dice}}\n"
    "- {type: keep-all-filter, name: plain}\n"
    "- {type: random-picker, name: picker}\n"
)
MEMBERS = "[{pluginRef: around}, {pluginRef: plain}, {pluginRef: picker}]"
REAL = PLUGINS + f"schedulingProfiles: [{{name: real, plugins: {MEMBERS}}}]\n"
SHADOWED = (
    PLUGINS
    + f"schedulingProfiles: [{{name: real, plugins: {MEMBERS}}},"
    + f" {{name: candidate, plugins: {MEMBERS}}}]\n"
    + "extensions: {shadow: [{profile: candidate, budgetMs: 1000}]}\n"
)


def decisions(graph: PluginGraph, *, shadows: bool) -> list[str]:
    endpoints = [make_endpoint(f"e{n}") for n in range(8)]
    chosen = []
    for _ in range(200):
        state = CycleState()
        result = graph.scheduler.schedule(make_request(), endpoints, state)
        chosen.append(result.endpoints[0].endpoint.name)
        if shadows:
            picks = [
                shadow.run(make_request(), endpoints, state, result) for shadow in graph.shadows
            ]
            assert len([pick for pick in picks if pick is not None]) == 1
    return chosen


def test_decisions_with_and_without_a_shadow_are_identical_by_seed() -> None:
    without = decisions(build(REAL), shadows=False)
    assert decisions(build(SHADOWED), shadows=True) == without
    assert len(set(without)) == 8


def test_shadow_is_no_profile_of_the_handler() -> None:
    graph = build(SHADOWED)
    assert list(graph.scheduler.profiles) == ["real"]
    assert [shadow.name for shadow in graph.shadows] == ["candidate"]


def test_only_what_draws_or_refers_to_what_draws_has_a_twin() -> None:
    graph = build(SHADOWED)
    twins = set(graph.instances) - set(graph.plugins)
    assert twins == {"dice@candidate", "around@candidate", "picker@candidate"}
    around = graph.instances["around@candidate"].plugin
    assert isinstance(around, Wrapping)
    assert around.inner is graph.instances["dice@candidate"].plugin
    real = graph.plugins["around"]
    assert isinstance(real, Wrapping)
    assert real.inner is graph.plugins["dice"]


def test_twin_serves_no_other_extension_point() -> None:
    graph = build(SHADOWED)
    assert [each.name for each in graph.implementing(RandomOrder)] == ["dice"]


@pytest.mark.parametrize(("policy", "left"), [("open", True), ("closed", False)])
def test_failure_policy_of_a_filter_is_that_of_its_twin(policy: str, left: bool) -> None:
    rails = f"guardRails: {{failurePolicy: {{around: {policy}}}}}"
    graph = build(SHADOWED.replace("{shadow", f"{{{rails}, shadow"))
    twin = graph.instances["around@candidate"].plugin
    assert isinstance(twin, Wrapping)
    guard = graph.guards.guard("Filter", twin)
    assert guard.fails_open is left


class Hook(Filter, PreRequest):
    """A filter that hears of picks."""

    type: ClassVar[str] = "hook-filter"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return list(endpoints)

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        """Hear of it."""


@pytest.mark.parametrize(
    ("real", "hooks"),
    [
        pytest.param("", ["random-picker", "single-profile-handler"], id="by the shadow alone"),
        pytest.param(
            "{pluginRef: hook}, ",
            ["hook", "random-picker", "single-profile-handler"],
            id="by both",
        ),
    ],
)
def test_what_only_a_shadow_names_hears_of_no_real_pick(real: str, hooks: list[str]) -> None:
    builder = GraphBuilder(PluginRegistry([*make_registry(), Hook]))
    graph = builder.build(
        load(
            "plugins: [{type: hook-filter, name: hook}, {type: random-picker}]\n"
            f"schedulingProfiles: [{{name: real, plugins: [{real}{{pluginRef: random-picker}}]}},"
            " {name: candidate, plugins: [{pluginRef: hook}, {pluginRef: random-picker}]}]\n"
            "extensions: {shadow: [{profile: candidate}]}\n"
        )
    )
    assert [hook.name for hook in graph.hooks] == hooks
    assert "hook" in graph.plugins

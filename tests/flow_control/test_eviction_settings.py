"""Settings of ``flowControl.enableEviction``."""

from typing import Any

import pytest
from config.graphs import HEAD

from epp.building import make_builder
from epp.config import ConfigError, PluginGraph, load_text
from epp.config.schema import EvictionEntry
from epp.flow_control import EvictionSettings, FlowSettings
from epp.flow_control.building import flow_settings

BUILDER = make_builder(seed=0)
ON = "featureGates: [flowControl]\nflowControl: {enableEviction: true}\n"
OFF = "featureGates: [flowControl]\n"
TUNED = "extensions: {flowControl: {eviction: {%s}}}\n"
ACTIONS = "extensions: {sessions: {actions: [%s]}}\n"


def build(text: str) -> PluginGraph:
    return BUILDER.build(load_text(HEAD + text, "f"))


def settings(text: str, **said: float) -> FlowSettings:
    found = flow_settings(build(text), **said)
    assert found is not None
    return found


def eviction(text: str, **said: float) -> EvictionSettings:
    found = settings(text, **said).eviction
    assert found is not None
    return found


def test_nobody_is_evicted_unless_it_is_on() -> None:
    assert settings(OFF).eviction is None
    assert build(OFF).effective.extensions.flow_control.eviction is None


def test_defaults_are_the_references_and_written_out() -> None:
    found = eviction(ON)
    assert found.filter.plugin.type == "sheddable-eviction-filter"
    assert found.order.plugin.type == "priority-then-time-eviction-order-policy"
    assert (found.min_run_seconds, found.max_per_decision) == (0.0, 2)
    assert found.confirmation_seconds == 10.0
    assert build(ON).effective.extensions.flow_control.eviction == EvictionEntry(
        filter_plugin_ref="sheddable-eviction-filter",
        order_plugin_ref="priority-then-time-eviction-order-policy",
    )


CONCURRENCY = """\
featureGates: [flowControl]
plugins: [{type: concurrency-detector}]
flowControl: {enableEviction: true, saturationDetector: {pluginRef: concurrency-detector}}
"""


@pytest.mark.parametrize(
    ("text", "refresh", "grace"),
    [
        # 0.05 s until the next page, 0.2 s until it is stale, 0.25 s to spare.
        pytest.param(ON, 0.05, 0.5, id="of pages"),
        pytest.param(ON, 1.0, 1.45, id="of rare pages"),
        pytest.param(CONCURRENCY, 1.0, 0.01, id="of what this process has in flight"),
        pytest.param(ON + TUNED % "grace: 2s", 1.0, 2.0, id="as it says"),
        pytest.param(ON + TUNED % "grace: 0s", 1.0, 0.0, id="none"),
    ],
)
def test_grace_is_as_long_as_the_detector_needs(text: str, refresh: float, grace: float) -> None:
    assert eviction(text, refresh_seconds=refresh).grace_seconds == pytest.approx(grace)


@pytest.mark.parametrize(
    ("text", "grace"),
    [
        # 0.05 s until the next page, 2 s until it is stale, 0.25 s to spare.
        pytest.param(ON, 2.3, id="of pages"),
        pytest.param(CONCURRENCY, 0.01, id="of what this process has in flight"),
        pytest.param(ON + TUNED % "grace: 1s", 1.0, id="as it says"),
    ],
)
def test_grace_follows_the_age_at_which_pages_are_stale(text: str, grace: float) -> None:
    assert eviction(text, staleness_seconds=2.0).grace_seconds == pytest.approx(grace)


@pytest.mark.parametrize(
    ("said", "field", "value"),
    [
        ("minRunTime: 1m", "min_run_seconds", 60.0),
        ("maxPerDecision: 7", "max_per_decision", 7),
        ("confirmationTimeout: 250ms", "confirmation_seconds", 0.25),
    ],
)
def test_each_figure_is_read(said: str, field: str, value: Any) -> None:
    assert getattr(eviction(ON + TUNED % said), field) == value


def test_policies_may_have_names_of_their_own_and_only_these_are_asked() -> None:
    text = ON + TUNED % "filterPluginRef: mine, orderPluginRef: newest"
    graph = build(
        "plugins: [{type: sheddable-eviction-filter, name: mine},"
        " {type: priority-then-time-eviction-order-policy, name: newest},"
        " {type: sheddable-eviction-filter, name: forgotten}]\n" + text
    )
    found = flow_settings(graph)
    assert found is not None
    assert found.eviction is not None
    assert (found.eviction.filter.plugin.name, found.eviction.order.plugin.name) == (
        "mine",
        "newest",
    )
    warnings = [warning.text("f") for warning in graph.warnings]
    (unasked,) = [line for line in warnings if "never used" in line]
    assert unasked == (
        "f:3:122: plugins[2]: `forgotten` is never used: `extensions.flowControl.eviction` does"
        " not name it"
    )


def test_actions_of_sessions_are_taken_in_their_order() -> None:
    assert settings(OFF).actions == ("allocate",)
    assert settings(ON + ACTIONS % "preempt, allocate, reclaim").actions == (
        *("preempt", "allocate", "reclaim"),
    )


def test_what_tunes_it_is_warned_of_while_it_is_off() -> None:
    (warning,) = build(OFF + TUNED % "grace: 1s").warnings
    assert warning.text("f") == (
        "f:4:38: extensions.flowControl.eviction: is not in effect: `flowControl.enableEviction`"
        " is off"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            OFF + ACTIONS % "allocate, reclaim",
            "f:4:45: extensions.sessions.actions[1]: `reclaim` evicts requests in flight, which is"
            " off; set `flowControl.enableEviction: true`, or remove the action",
            id="reclaim while it is off",
        ),
        pytest.param(
            OFF + ACTIONS % "preempt, allocate",
            "f:4:35: extensions.sessions.actions[0]: `preempt` evicts requests in flight, which is"
            " off; set `flowControl.enableEviction: true`, or remove the action",
            id="preempt while it is off",
        ),
        pytest.param(
            ON + TUNED % "maxPerDecision: 0",
            "f:5:55: extensions.flowControl.eviction.maxPerDecision: expected a whole number >= 1",
            id="none per decision",
        ),
        pytest.param(
            ON + TUNED % "minRunTime: 5",
            "f:5:51: extensions.flowControl.eviction.minRunTime: `5` is no duration, as it has"
            " no unit; write `5s` or `5ms`",
            id="no unit",
        ),
        pytest.param(
            ON + TUNED % "minimumRunTime: 5s",
            "f:5:39: extensions.flowControl.eviction.minimumRunTime: unknown field"
            " `minimumRunTime`; did you mean `minRunTime`?",
            id="unknown field",
        ),
        pytest.param(
            ON + TUNED % "orderPluginRef: oldest",
            "f:5:55: extensions.flowControl.eviction.orderPluginRef: no eviction policy is named"
            " `oldest`; defined: `priority-then-time-eviction-order-policy`,"
            " `sheddable-eviction-filter`",
            id="unknown policy",
        ),
        pytest.param(
            ON + TUNED % "orderPluginRef: sheddable-eviction-filter",
            "f:5:55: extensions.flowControl.eviction.orderPluginRef: `sheddable-eviction-filter`"
            " (sheddable-eviction-filter) does not implement EvictionOrder;"
            " there is none in `plugins`",
            id="a filter as order",
        ),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(text)
    assert str(caught.value).split("\n") == [said]

"""Configurations to plugin graphs: defaults, order, references, guard rails."""

from collections.abc import Callable
from typing import ClassVar

import msgspec
import pytest
import yaml
from config.graphs import SECOND, Params, Wrapping, build, load, make_builder, make_registry

from epp.building import make_builder as make_real_builder
from epp.config import (
    ConfigError,
    GraphBuilder,
    PluginGraph,
    PluginRegistry,
    default_config,
    load_text,
)
from epp.data_layer import EndpointDiscovery
from epp.request_control import DataProducer
from epp.request_control.plugins import DataKey
from epp.scheduling import CycleState, LLMRequest, NullObserver, Plugin, ProfileHandler
from epp.testing import make_endpoint, make_request


def weights(graph: PluginGraph, profile: str = "default") -> dict[str, float]:
    scorers = graph.scheduler.profiles[profile].scorers
    return {each.scorer.name: each.weight for each in scorers}


# --- defaults -------------------------------------------------------------------------------------


def test_default_configuration_has_its_weights_and_automatic_plugins() -> None:
    graph = make_real_builder(seed=1).build(default_config())
    assert weights(graph) == {
        "queue-scorer": 2.0,
        "kv-cache-utilization-scorer": 2.0,
        "prefix-cache-scorer": 3.0,
    }
    assert graph.scheduler.profiles["default"].picker.name == "max-score-picker"
    assert [p.type for p in graph.implementing(ProfileHandler)] == ["single-profile-handler"]
    order = list(graph.plugins)
    assert order.index("token-producer") < order.index("approx-prefix-cache-producer")
    assert order.index("approx-prefix-cache-producer") < order.index("prefix-cache-scorer")
    assert graph.discovery is None
    (binding,) = graph.sources
    assert binding.source.name == "metrics-data-source"
    assert [each.name for each in binding.extractors] == ["core-metrics-extractor"]


def test_without_profiles_one_profile_has_every_filter_scorer_and_picker_in_file_order() -> None:
    graph = build(
        "plugins: [{type: keep-all-filter, name: z}, {type: queue-scorer},"
        " {type: keep-all-filter, name: a}, {type: lora-affinity-scorer, name: lora},"
        " {type: last-picker}]\n"
    )
    (profile,) = graph.scheduler.profiles.values()
    assert [each.name for each in profile.filters] == ["z", "a"]
    assert weights(graph) == {"queue-scorer": 1.0, "lora": 1.0}
    assert profile.picker.name == "last-picker"


def test_profile_keeps_weights_and_a_weight_left_out_is_one() -> None:
    graph = build(
        "plugins: [{type: queue-scorer}, {type: lora-affinity-scorer},"
        " {type: kv-cache-utilization-scorer}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: 0.5},"
        " {pluginRef: lora-affinity-scorer, weight: 0}, {pluginRef: kv-cache-utilization-scorer}]}]"
    )
    assert weights(graph, "a") == {
        "queue-scorer": 0.5,
        "lora-affinity-scorer": 0.0,
        "kv-cache-utilization-scorer": 1.0,
    }


def test_profile_without_a_picker_takes_the_first_one_configured() -> None:
    graph = build(
        "plugins: [{type: last-picker, name: z}, {type: random-picker, name: a}]\n"
        "schedulingProfiles: [{name: a}]\n"
    )
    assert graph.scheduler.profiles["a"].picker.name == "z"


def test_weight_of_a_filter_is_reported_and_changes_nothing() -> None:
    graph = build(
        "plugins: [{type: keep-all-filter}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: keep-all-filter, weight: 2}]}]\n"
    )
    (warning,) = graph.warnings
    assert warning.path == "schedulingProfiles[0].plugins[0].weight"
    assert warning.line == 4
    assert "no effect, as it is no scorer" in warning.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", [("metrics-data-source", ["core-metrics-extractor"])], id="nothing"),
        pytest.param("dataLayer: {injectDefaults: false}\n", [], id="no defaults wanted"),
        pytest.param(
            "plugins: [{type: metrics-data-source, name: mine, parameters: {port: 1}},"
            " {type: core-metrics-extractor, name: core}]\n"
            "dataLayer: {sources: [{pluginRef: mine, extractors: [{pluginRef: core}]}]}\n",
            [("mine", ["core"])],
            id="one of the type under another name",
        ),
        pytest.param(
            "plugins: [{type: models-data-source}, {type: models-data-extractor},"
            " {type: core-metrics-extractor, name: core}]\n"
            "dataLayer: {sources: [{pluginRef: models-data-source,"
            " extractors: [{pluginRef: models-data-extractor}]}]}\n",
            [
                ("models-data-source", ["models-data-extractor"]),
                ("metrics-data-source", ["core"]),
            ],
            id="another source, and an extractor that is configured",
        ),
    ],
)
def test_metrics_are_scraped_unless_that_is_configured_otherwise(
    text: str, expected: list[tuple[str, list[str]]]
) -> None:
    graph = make_real_builder().build(load(text))
    assert [
        (each.source.name, [extractor.name for extractor in each.extractors])
        for each in graph.sources
    ] == expected


def test_producers_are_added_for_keys_that_nobody_writes_and_stand_before_their_readers() -> None:
    graph = build("plugins: [{type: reading-scorer, name: a}]\n")
    order = [name for name in graph.plugins if name in {"a", "first-producer", "second-producer"}]
    assert order == ["first-producer", "second-producer", "a"]


def test_configured_producer_takes_the_place_of_the_default_one() -> None:
    graph = build(
        "plugins: [{type: reading-scorer}, {type: second-producer, name: mine},"
        " {type: first-producer, name: other}]\n"
    )
    assert "second-producer" not in graph.plugins
    assert list(graph.plugins)[:3] == ["other", "mine", "reading-scorer"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        (
            "plugins: [{type: reading-scorer, name: a}, {type: keep-all-filter,"
            " parameters: {size: 3}}]\n"
        ),
        (
            "plugins: [{type: random-order-filter}]\n"
            "schedulingProfiles: [{name: a},"
            " {name: b, plugins: [{pluginRef: random-order-filter}]}]\n"
            "extensions: {shadow: [{profile: b}]}\n"
        ),
    ],
    ids=["nothing", "producers", "shadow"],
)
def test_effective_configuration_has_every_default_and_means_the_same(text: str) -> None:
    builder = make_builder(kinds={"discovery": EndpointDiscovery})
    graph = builder.build(load(text))
    again = builder.build(
        load_text(yaml.safe_dump(msgspec.to_builtins(graph.effective)), "effective"), graph
    )
    assert again.effective == graph.effective
    assert set(again.plugins) == set(graph.plugins)
    assert all(again.plugins[name] is plugin for name, plugin in graph.plugins.items())
    assert list(again.scheduler.profiles) == list(graph.scheduler.profiles)


# --- references -----------------------------------------------------------------------------------


def test_plugin_referred_to_is_made_first_wherever_it_stands() -> None:
    graph = build(
        "plugins: [{type: wrapping-filter, name: outer, parameters: {to: middle}},"
        " {type: wrapping-filter, name: middle, parameters: {to: inner}},"
        " {type: keep-all-filter, name: inner}]\n"
    )
    outer, middle = graph.plugins["outer"], graph.plugins["middle"]
    assert isinstance(outer, Wrapping)
    assert isinstance(middle, Wrapping)
    assert outer.inner is middle
    assert middle.inner is graph.plugins["inner"]
    assert graph.instances["outer"].depends_on == ("middle",)


def test_plugin_that_no_configuration_names_is_made_or_refused_with_its_name() -> None:
    builder = make_builder()
    assert builder.make("keep-all-filter", "extra", {"size": 2}).name == "extra"
    with pytest.raises(ConfigError, match="extra: size: expected a whole number"):
        builder.make("keep-all-filter", "extra", {"size": "x"})


# --- guard rails ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "left"), [("open", 1), ("closed", 0)])
def test_failure_policy_decides_what_a_failing_filter_passes(policy: str, left: int) -> None:
    graph = build(
        "plugins: [{type: raising-filter}]\n"
        f"extensions: {{guardRails: {{failurePolicy: {{raising-filter: {policy}}}}}}}\n"
    )
    (profile,) = graph.scheduler.profiles.values()
    result = profile.run(make_request(), [make_endpoint("e")], CycleState())
    assert len(result.endpoints) == left


class Watch(NullObserver):
    def __init__(self) -> None:
        self.disabled: list[tuple[str, int]] = []
        self.timed: set[tuple[str, str]] = set()

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        self.timed.add((extension_point, plugin.name))
        return super().timer(extension_point, plugin)

    def plugin_disabled(self, plugin: Plugin, failures: int) -> None:
        self.disabled.append((plugin.name, failures))


def test_plugin_is_left_alone_after_as_many_failures_as_the_configuration_says() -> None:
    watch = Watch()
    graph = make_builder().build(
        load("plugins: [{type: raising-filter}]\nextensions: {guardRails: {disableAfter: 3}}\n"),
        observer=watch,
    )
    for _ in range(5):
        graph.scheduler.schedule(make_request(), [make_endpoint("e")])
    assert watch.disabled == [("raising-filter", 3)]
    assert watch.timed == {
        ("Filter", "raising-filter"),
        ("Picker", "max-score-picker"),
        ("ProfileHandler", "single-profile-handler"),
    }


class Looking(DataProducer):
    """Reads the second key if somebody writes it."""

    type: ClassVar[str] = "looking-producer"
    optional_reads: ClassVar[tuple[DataKey, ...]] = (SECOND,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        pass


def test_key_that_is_read_if_there_orders_its_writer_first_and_makes_none() -> None:
    registry = PluginRegistry([*make_registry(), Looking])
    builder = GraphBuilder(registry)
    alone = builder.build(load("plugins: [{type: looking-producer}]\n"))
    assert "second-producer" not in alone.plugins
    both = builder.build(load("plugins: [{type: looking-producer}, {type: second-producer}]\n"))
    order = list(both.plugins)
    assert order.index("second-producer") < order.index("looking-producer")


@pytest.mark.parametrize(
    ("plugin", "column"),
    [
        pytest.param("token-producer", 54, id="a producer"),
        pytest.param("openai-parser", 54, id="the parser"),
        pytest.param("single-profile-handler", 54, id="a profile handler"),
    ],
)
def test_what_does_nothing_in_a_profile_is_warned_of_and_left_out(plugin: str, column: int) -> None:
    graph = build(
        f"plugins: [{{type: {plugin}}}]\n"
        f"schedulingProfiles: [{{name: a, plugins: [{{pluginRef: {plugin}}}]}}]\n"
    )
    (warning,) = graph.warnings
    assert warning.text("f") == (
        f"f:4:{column}: schedulingProfiles[0].plugins[0].pluginRef: `{plugin}` ({plugin}) does"
        " nothing in a profile, as it is neither filter, scorer nor picker"
    )
    (profile,) = graph.effective.scheduling_profiles
    assert [each.plugin_ref for each in profile.plugins] == ["max-score-picker"]


@pytest.mark.parametrize(
    ("extractor", "warnings"),
    [
        pytest.param("gpu-heat", [], id="somebody writes it"),
        pytest.param(
            "heat",
            [
                (
                    "f:3:11: plugins[0]: `endpoint-attribute-filter` looks for the endpoint"
                    " attribute `gpu-heat/core-metrics-extractor`, which nobody writes"
                )
            ],
            id="nobody does",
        ),
    ],
)
def test_attribute_that_nobody_writes_is_warned_of(extractor: str, warnings: list[str]) -> None:
    graph = make_real_builder(0).build(
        load(
            "plugins: [{type: endpoint-attribute-filter, parameters: {attribute: gpu-heat,"
            " algorithm: {type: threshold, threshold: {operator: LessThan, value: 80}}}},"
            " {type: core-metrics-extractor, parameters: {engineConfigs: [{name: vllm,"
            f" customMetrics: [{{attributeKey: {extractor}, metricSpec: heat}}]}}]}}}}]\n"
        )
    )
    assert [each.text("f") for each in graph.warnings] == warnings


@pytest.mark.parametrize(
    ("parameters", "matches", "warnings"),
    [
        pytest.param(
            "{prefixMatchInfoProducerName: mine}", ["prefix-matches/mine"], [], id="it is named"
        ),
        pytest.param(
            "{}",
            ["prefix-matches/mine", "prefix-matches"],
            [
                (
                    "f:3:11: plugins[0]: `mine` produces `prefix-matches/mine`, which no plugin"
                    " reads: none names this producer"
                )
            ],
            id="nobody names it, so the default one is made",
        ),
    ],
)
def test_producer_under_another_name_is_one_of_its_own(
    parameters: str, matches: list[str], warnings: list[str]
) -> None:
    graph = build(
        "plugins: [{type: approx-prefix-cache-producer, name: mine},"
        f" {{type: prefix-cache-scorer, parameters: {parameters}}}]\n"
    )
    written = [key.name for each in graph.implementing(DataProducer) for key in each.writes]
    assert [each for each in written if each.startswith("prefix")] == matches
    assert [each.text("f") for each in graph.warnings] == warnings

"""Configuration texts to plugin graphs, and what each faulty one is told."""

import random
from pathlib import Path

import pytest

from epp.config import (
    DEFAULT_CONFIG,
    ConfigError,
    GraphBuilder,
    PluginGraph,
    PluginRegistry,
    load_file,
    load_text,
)
from epp.scheduling import CycleState, Picker, ProfileHandler, ScoredEndpoint
from epp.testing import make_endpoint, make_request

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
SAMPLES = sorted((Path(__file__).parents[2] / "deploy" / "config").glob("*.yaml"))


def build(text: str, *, seed: int | None = None) -> PluginGraph:
    def rng(name: str) -> random.Random:
        return random.Random(None if seed is None else f"{seed}/{name}")

    builder = GraphBuilder(PluginRegistry.from_entry_points(), services={"rng": rng})
    return builder.build(load_text(text, "test.yaml"), "test.yaml")


def weights(graph: PluginGraph, profile: str = "default") -> dict[str, float]:
    scorers = graph.scheduler.profiles[profile].scorers
    return {each.scorer.name: each.weight for each in scorers}


def test_default_configuration_builds_with_its_weights_and_automatic_plugins() -> None:
    graph = build(DEFAULT_CONFIG)
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


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_sample_loads_and_builds(path: Path) -> None:
    config = load_file(path)
    graph = GraphBuilder(PluginRegistry.from_entry_points()).build(config, str(path))
    for entry in config.plugins:
        assert graph.plugins[entry.name or entry.type].type == entry.type


def test_samples_were_found() -> None:
    assert SAMPLES


FAULTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "malformed YAML": (HEAD + "plugins:\n- {type: a\nx: [", ("not valid YAML", "line ", "column ")),
    "duplicate key": (HEAD + "kind: x\n", ("duplicate key 'kind'", "line 3", "column 1")),
    "duplicate key deep inside": (
        HEAD + "plugins:\n- {type: queue-scorer, type: x}\n",
        ("duplicate key 'type'", "line 4"),
    ),
    "key that is a list": (HEAD + "? [a]\n: b\n", ("a key must be a scalar", "line 3")),
    "date that is none": (HEAD + "featureGates: [2024-99-99]\n", ("not valid YAML", "month")),
    "control character": (HEAD + "plugins: '\x00'\n", ("not valid YAML",)),
    "no mapping": ("- a\n", ("expected a mapping", "EndpointPickerConfig")),
    "empty": ("", ("expected a mapping",)),
    "unknown top-level field": (HEAD + "plugin: []\n", ("unknown field `plugin`",)),
    "missing kind": ("apiVersion: llm-d.ai/v1alpha1\n", ("missing required field `kind`",)),
    "wrong type of a field": (HEAD + "plugins: 3\n", ("Expected `array`", "`$.plugins`")),
    "unknown plugin type": (
        HEAD + "plugins: [{type: queue-scorerr}]\n",
        ("unknown plugin type 'queue-scorerr'", "did you mean 'queue-scorer'?", "known: "),
    ),
    "unknown plugin type like no other": (
        HEAD + "plugins: [{type: zzzzzz}]\n",
        ("unknown plugin type 'zzzzzz'; known: ",),
    ),
    "unknown parameter": (
        HEAD + "plugins: [{type: max-score-picker, name: mine, parameters: {max: 1}}]\n",
        ("plugin 'mine' (max-score-picker)", "unknown field `max`"),
    ),
    "parameter out of range": (
        HEAD + "plugins: [{type: prefix-cache-scorer, parameters: {matchLengthWeight: 1.5}}]\n",
        ("plugin 'prefix-cache-scorer' (prefix-cache-scorer)", "<= 1.0", "`$.matchLengthWeight`"),
    ),
    "duplicate plugin name": (
        HEAD + "plugins: [{type: queue-scorer}, {type: random-picker, name: queue-scorer}]\n",
        ("2 plugins are named 'queue-scorer'",),
    ),
    "duplicate profile name": (
        HEAD + "schedulingProfiles: [{name: a}, {name: a}]\n",
        ("2 scheduling profiles are named 'a'",),
    ),
    "undefined pluginRef": (
        HEAD + "plugins: [{type: queue-scorer}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: nope}]}]\n",
        ("scheduling profile 'a' refers to plugin 'nope'", "not defined; defined: queue-scorer"),
    ),
    "undefined discovery": (
        HEAD + "dataLayer: {discovery: {pluginRef: nope}}\n",
        ("dataLayer refers to plugin 'nope'", "defined: none"),
    ),
    "two pickers in a profile": (
        HEAD + "plugins: [{type: random-picker}, {type: max-score-picker}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: random-picker},"
        " {pluginRef: max-score-picker}]}]\n",
        ("scheduling profile 'a' has 2 pickers: 'random-picker', 'max-score-picker'",),
    ),
    "two profile handlers": (
        HEAD + "plugins: [{type: single-profile-handler},"
        " {type: single-profile-handler, name: other}]\n",
        ("multiple profile handlers found: 'single-profile-handler', 'other'",),
    ),
    "two profiles without a handler": (
        HEAD + "schedulingProfiles: [{name: a}, {name: b}]\n",
        ("2 scheduling profiles need a profile handler",),
    ),
    "two profiles with the handler of one": (
        HEAD + "plugins: [{type: single-profile-handler}]\n"
        "schedulingProfiles: [{name: a}, {name: b}]\n",
        ("2 scheduling profiles need a profile handler",),
    ),
    "a producer in a profile": (
        HEAD + "plugins: [{type: token-producer}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: token-producer}]}]\n",
        ("'token-producer' (token-producer) is neither filter, scorer nor picker",),
    ),
    "wrong kind": (
        "apiVersion: llm-d.ai/v1alpha1\nkind: Pod\n",
        ("kind is 'Pod', expected 'EndpointPickerConfig'",),
    ),
    "wrong apiVersion": (
        "apiVersion: v1\nkind: EndpointPickerConfig\n",
        ("apiVersion is 'v1'", "llm-d.ai/v1alpha1 or inference.networking.x-k8s.io/v1alpha1"),
    ),
    "feature gate": (HEAD + "featureGates: [flowControl]\n", ("feature gate 'flowControl'",)),
    **{
        f"unsupported section {name}": (
            HEAD + f"{name}: {{}}\n",
            (f"section '{name}' is not supported yet; remove it",),
        )
        for name in ("flowControl", "requestHandler", "saturationDetector", "parser")
    },
    **{
        f"weight {weight}": (
            HEAD + "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins:"
            f" [{{pluginRef: queue-scorer, weight: {weight}}}]}}]\n",
            ("scheduling profile 'a': weight of 'queue-scorer' is", "0 or more"),
        )
        for weight in ("-1", ".nan", ".inf")
    },
}


@pytest.mark.parametrize(("text", "parts"), FAULTS.values(), ids=FAULTS)
def test_fault_is_refused_with_file_and_reason(text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        build(text)
    said = str(caught.value)
    assert said.startswith("test.yaml: ")
    for part in parts:
        assert part in said


def test_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match="cannot read the configuration file") as caught:
        load_file(path)
    assert str(path) in str(caught.value)


def test_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(HEAD.encode() + b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="utf-8") as caught:
        load_file(path)
    assert str(path) in str(caught.value)


def test_older_api_version_is_accepted() -> None:
    text = DEFAULT_CONFIG.replace("llm-d.ai/", "inference.networking.x-k8s.io/")
    assert weights(build(text)) == weights(build(DEFAULT_CONFIG))


def test_json_and_merge_keys_are_accepted() -> None:
    assert load_text('{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}', "x")
    merged = load_text(HEAD + "plugins:\n- &a {type: queue-scorer}\n- {<<: *a, name: other}\n", "x")
    assert [(p.type, p.name) for p in merged.plugins] == [
        ("queue-scorer", ""),
        ("queue-scorer", "other"),
    ]


def test_without_profiles_one_profile_has_every_scorer_and_picker() -> None:
    graph = build(
        HEAD + "plugins: [{type: queue-scorer}, {type: lora-affinity-scorer, name: lora},"
        " {type: random-picker, name: dice}]\n"
    )
    assert list(graph.scheduler.profiles) == ["default"]
    assert weights(graph) == {"queue-scorer": 1.0, "lora": 1.0}
    assert graph.scheduler.profiles["default"].picker.name == "dice"


def test_profile_keeps_weights_and_a_weight_left_out_is_one() -> None:
    graph = build(
        HEAD + "plugins: [{type: queue-scorer}, {type: lora-affinity-scorer},"
        " {type: kv-cache-utilization-scorer}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: 0.5},"
        " {pluginRef: lora-affinity-scorer, weight: 0}, {pluginRef: kv-cache-utilization-scorer}]}]"
    )
    assert weights(graph, "a") == {
        "queue-scorer": 0.5,
        "lora-affinity-scorer": 0.0,
        "kv-cache-utilization-scorer": 1.0,
    }


def picks(seed: int | None) -> list[str]:
    graph = build(HEAD + "plugins: [{type: random-picker}]\n", seed=seed)
    (picker,) = graph.implementing(Picker)
    scored = [ScoredEndpoint(make_endpoint(f"e{n}"), 1.0) for n in range(8)]
    request = make_request()
    return [picker.pick(request, scored, CycleState())[0].endpoint.name for _ in range(30)]


def test_seed_makes_picks_repeatable() -> None:
    assert picks(7) == picks(7)
    assert picks(7) != picks(8)
    assert len(set(picks(7))) > 1


def test_type_registered_twice_is_refused() -> None:
    registry = PluginRegistry.from_entry_points()
    (first, *_) = registry

    class Other(first):  # type: ignore[misc, valid-type] # a base chosen at run time
        pass

    registry.add(first)
    with pytest.raises(ConfigError, match=f"'{first.type}' is already {first.__qualname__}"):
        registry.add(Other)

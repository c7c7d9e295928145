"""Configuration texts to typed configurations, and the error for each faulty text."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from config.graphs import HEAD

from epp.config import ConfigError, LoadedConfig, checks, default_config, load_file, load_text
from epp.config.fault_texts import Fault
from epp.config.schema import (
    DEFAULT_CONFIG,
    DiscoveryEntry,
    ParserRef,
    PluginEntry,
    ProfilePlugin,
    ReferredPlugin,
    SessionPluginEntry,
    SessionsEntry,
)
from epp.flow_control.sessions.registry import ACTIONS


def refusals(text: str) -> list[str]:
    """Return the lines that a text is refused with; each problem is one of them."""
    with pytest.raises(ConfigError) as caught:
        load_text(text, "f")
    lines = str(caught.value).split("\n")
    assert lines == [problem.text("f") for problem in caught.value.problems]
    return lines


def warnings(config: LoadedConfig) -> list[str]:
    return [warning.text(config.source) for warning in config.warnings]


WHOLE = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates:
- flowControl=false
- haPopulateNonLeaderDatastore
plugins:
- name: my-instance
  type: queue-scorer
  parameters: {}
- type: metrics-data-source
- type: core-metrics-extractor
- type: file-discovery
  parameters: {path: e.yaml}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: my-instance
    weight: 2.0
dataLayer:
  injectDefaults: false
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
  discovery: {pluginRef: file-discovery}
  peerDiscovery: {pluginRef: my-instance}
  crossReplicaSyncInterval: 200ms
flowControl:
  maxBytes: "10Gi"
  maxRequests: 20k
  defaultRequestTTL: 60s
  noEndpointRequestTTL: 60s
  defaultPriorityBand: {maxRequests: 100}
  defaultNegativePriorityBand: {maxRequests: 100}
  priorityBands:
  - priority: 100
    maxBytes: "1G"
    maxRequests: "5k"
    fairnessPolicyRef: global-strict-fairness-policy
    orderingPolicyRef: fcfs-ordering-policy
  usageLimitPolicyPluginRef: static-usage-limit-policy
  enableEviction: true
requestHandler:
  parsers:
  - pluginRef: openai-parser
extensions:
  guardRails: {failurePolicy: {my-instance: open}, disableAfter: 3, slowCallMs: 5}
"""


def test_every_section_of_the_reference_is_read() -> None:
    config = load_text(WHOLE, "f")
    file = config.file
    assert file.plugins[0] == PluginEntry("queue-scorer", "my-instance", {})
    assert file.plugins[3] == PluginEntry("file-discovery", "file-discovery", {"path": "e.yaml"})
    (profile,) = file.scheduling_profiles
    assert (profile.name, profile.plugins) == ("default", (ProfilePlugin("my-instance", 2.0),))
    assert file.data_layer.inject_defaults is False
    (source,) = file.data_layer.sources
    assert source.plugin_ref == "metrics-data-source"
    assert source.extractors == (ReferredPlugin("core-metrics-extractor"),)
    assert file.data_layer.discovery == DiscoveryEntry("file-discovery")
    assert file.flow_control is not None
    assert file.flow_control.max_bytes == "10Gi"
    assert file.flow_control.default_request_ttl == "60s"
    assert file.flow_control.priority_bands[0].priority == 100
    assert file.request_handler.parsers == (ParserRef("openai-parser"),)
    rails = file.extensions.guard_rails
    assert (rails.failure_policy, rails.disable_after, rails.slow_call_ms) == (
        {"my-instance": "open"},
        3,
        5.0,
    )


def test_what_has_no_effect_is_warned_of_line_by_line() -> None:
    off = "is not in effect: the feature gate `flowControl` is off"
    assert warnings(load_text(WHOLE, "f")) == [
        "f:26:3: dataLayer.peerDiscovery: has no effect",
        f"f:29:3: flowControl.maxBytes: {off}",
        f"f:30:3: flowControl.maxRequests: {off}",
        f"f:31:3: flowControl.defaultRequestTTL: {off}",
        f"f:32:3: flowControl.noEndpointRequestTTL: {off}",
        f"f:33:3: flowControl.defaultPriorityBand: {off}",
        f"f:34:3: flowControl.defaultNegativePriorityBand: {off}",
        f"f:35:3: flowControl.priorityBands: {off}",
        f"f:41:3: flowControl.usageLimitPolicyPluginRef: {off}",
        f"f:42:3: flowControl.enableEviction: {off}",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            HEAD.replace("llm-d.ai", "inference.networking.x-k8s.io"),
            "f:1:13: apiVersion: is deprecated; write `llm-d.ai/v1alpha1`",
        ),
        (
            HEAD + "plugins:\n- type: by-label-selector\n",
            (
                "f:4:9: plugins[0].type: type `by-label-selector` is deprecated; use"
                " `label-selector-filter`"
            ),
        ),
        (
            HEAD + "parser: {pluginRef: openai-parser}\n",
            "f:3:1: parser: is deprecated; use `requestHandler.parsers`",
        ),
    ],
)
def test_what_is_deprecated_is_warned_of(text: str, said: str) -> None:
    assert warnings(load_text(text, "f")) == [said]


@pytest.mark.parametrize(
    "text",
    ["flowControl: {}", "flowControl:", "flowControl: {enableEviction: false, priorityBands: []}"],
)
def test_flow_control_that_says_nothing_is_not_warned_of(text: str) -> None:
    assert warnings(load_text(HEAD + text, "f")) == []


def test_plugin_without_a_name_is_named_by_its_type_as_written() -> None:
    config = load_text(HEAD + "plugins: [{type: tokenizer}, {type: a, name: ''}]\n", "f")
    assert config.file.plugins == (
        PluginEntry("token-producer", "tokenizer"),
        PluginEntry("a", "a"),
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("", [], id="none"),
        pytest.param("parser: {pluginRef: a}", ["a"], id="the deprecated section"),
        pytest.param("requestHandler: {parsers: [{pluginRef: a}, {pluginRef: b}]}", ["a", "b"]),
        pytest.param(
            "parser: {pluginRef: a}\nrequestHandler: {parsers: [{pluginRef: b}]}",
            ["b"],
            id="both: the new one",
        ),
        pytest.param(
            "parser: {pluginRef: a}\nrequestHandler: {parsers: []}", ["a"], id="an empty list"
        ),
    ],
)
def test_parsers_are_those_of_the_request_handler(text: str, names: list[str]) -> None:
    config = load_text(HEAD + text, "f")
    assert [each.plugin_ref for each in config.file.request_handler.parsers] == names
    assert config.file.parser is None


@pytest.mark.parametrize(
    ("gates", "sessions", "warned"),
    [
        pytest.param([], {"plugins": {"priority": {}}}, True, id="plugins, the gate is off"),
        pytest.param([], {"actions": ["allocate", "preempt"]}, True, id="actions, the gate is off"),
        pytest.param([], {"plugins": {}, "actions": ["allocate"]}, False, id="what is so anyway"),
        pytest.param(["flowControl"], {"plugins": {"priority": {}}}, False, id="the gate is on"),
        pytest.param(
            ["flowControl", "flowControl=false"],
            {"plugins": {"priority": {}}},
            True,
            id="the last word on the gate is off",
        ),
    ],
)
def test_sessions_without_flow_control_are_warned_of(
    gates: list[str], sessions: dict[str, Any], warned: bool
) -> None:
    file = {"featureGates": gates, "extensions": {"sessions": sessions}}
    fault = Fault(
        "extensions.sessions",
        "is not in effect: the feature gate `flowControl` is off",
        on_key=True,
    )
    assert (fault in checks.warnings(file)) is warned


def test_sessions_are_read_with_their_defaults() -> None:
    text = "extensions: {sessions: {plugins: {priority: {}, p: {enabled: false, priority: -3}}}}\n"
    sessions = load_text(HEAD + text, "f").file.extensions.sessions
    assert sessions == SessionsEntry(
        actions=("allocate",),
        plugins={
            "priority": SessionPluginEntry(enabled=True, priority=0, arguments={}),
            "p": SessionPluginEntry(enabled=False, priority=-3),
        },
    )
    assert load_text(HEAD, "f").file.extensions.sessions == SessionsEntry()


def test_the_actions_of_a_configuration_are_those_of_sessions() -> None:
    (of_a_tuple, _) = get_args(get_type_hints(SessionsEntry)["actions"])
    assert set(get_args(of_a_tuple)) == set(ACTIONS)


def test_null_counts_as_absent() -> None:
    text = "plugins:\nfeatureGates: ~\nschedulingProfiles:\ndataLayer: null\nextensions:\n"
    assert load_text(HEAD + text, "f").file == load_text(HEAD, "f").file


def test_json_and_merge_keys_are_read() -> None:
    as_json = '{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}'
    assert load_text(as_json, "f").file == load_text(HEAD, "f").file
    text = HEAD + "plugins:\n- &a {type: queue-scorer}\n- {<<: *a, name: other}\n"
    assert [entry.name for entry in load_text(text, "f").file.plugins] == ["queue-scorer", "other"]


def test_default_configuration_is_the_references() -> None:
    config = default_config()
    assert [entry.type for entry in config.file.plugins] == [
        "queue-scorer",
        "kv-cache-utilization-scorer",
        "prefix-cache-scorer",
        "metrics-data-source",
        "core-metrics-extractor",
    ]
    (profile,) = config.file.scheduling_profiles
    assert [member.weight for member in profile.plugins] == [2, 2, 3]
    assert (config.source, config.warnings) == ("built-in default", ())
    assert config.digest == sha256(DEFAULT_CONFIG.encode()).hexdigest()


def test_loaded_file_knows_its_folder_and_the_places_of_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "epp.yaml"
    path.write_text(WHOLE)
    config = load_file(path)
    assert (config.source, config.directory) == (str(path), tmp_path)
    assert config.digest == load_text(WHOLE, "x").digest
    problem = config.problem("plugins[3].parameters.path", "is gone")
    assert problem.text("f") == "f:13:22: plugins[3].parameters.path: is gone"
    assert config.problem("plugins[1].parameters.port", "x").line == 10
    assert config.problem("dataLayer", "x", on_key=True).line == 19


def profile_of(*members: str) -> str:
    return (
        HEAD
        + "plugins:\n- type: queue-scorer\nschedulingProfiles:\n- name: a\n  plugins:\n"
        + "".join(f"  - {member}\n" for member in members)
    )


FAULTS: dict[str, tuple[str, list[str]]] = {
    "empty": (
        "",
        ["f:1:1: expected a mapping with `kind: EndpointPickerConfig` at the top level"],
    ),
    "list": (
        "# none\n- a\n",
        ["f:2:1: expected a mapping with `kind: EndpointPickerConfig` at the top level"],
    ),
    "malformed": (
        HEAD + "plugins: ]",
        [
            (
                "f:3:10: not valid YAML: while parsing a block node, expected the node content,"
                " but found ']'"
            )
        ],
    ),
    "no kind": (
        "apiVersion: llm-d.ai/v1alpha1\n",
        ["f:1:1: required field `kind` is missing"],
    ),
    "other kind": (
        "apiVersion: llm-d.ai/v1alpha1\nkind: Pod\n",
        ["f:2:7: kind: must be `EndpointPickerConfig`, not `Pod`"],
    ),
    "other apiVersion": (
        "kind: EndpointPickerConfig\napiVersion: v1\n",
        [
            (
                "f:2:13: apiVersion: must be `llm-d.ai/v1alpha1` or `llm-d.ai/v1` or"
                " `inference.networking.x-k8s.io/v1alpha1`, not `v1`"
            )
        ],
    ),
    "unknown section": (
        HEAD + "plugin: []\n",
        ["f:3:1: plugin: unknown field `plugin`; did you mean `plugins`?"],
    ),
    "duplicate key": (
        HEAD + "plugins:\n- {type: queue-scorer, type: x}\n",
        ["f:4:24: plugins[0].type: duplicate key `type`; it is also on line 4"],
    ),
    "section of the wrong type": (
        HEAD + "plugins: 3\n",
        ["f:3:10: plugins: expected a list, got `3`"],
    ),
    "plugin without a type": (
        HEAD + "plugins:\n- name: a\n- type:\n",
        [
            "f:4:3: plugins[0]: required field `type` is missing",
            "f:5:3: plugins[1]: required field `type` is missing",
        ],
    ),
    "parameters that are a list": (
        HEAD + "plugins:\n- type: a\n  parameters: [b]\n",
        ["f:5:15: plugins[0].parameters: expected a mapping, got a list"],
    ),
    "duplicate names of plugins": (
        HEAD + "plugins: [{type: a}, {type: b, name: a}, {type: a}]\n",
        [
            "f:3:38: plugins[1].name: another plugin is named `a`; names are unique",
            "f:3:49: plugins[2].type: another plugin is named `a`; names are unique",
        ],
    ),
    "duplicate names of profiles": (
        HEAD + "schedulingProfiles: [{name: a}, {name: a}]\n",
        ["f:3:40: schedulingProfiles[1].name: another profile is named `a`; names are unique"],
    ),
    "profile without a name": (
        HEAD + "schedulingProfiles: [{plugins: []}]\n",
        ["f:3:22: schedulingProfiles[0]: required field `name` is missing"],
    ),
    "profile entry without a plugin": (
        profile_of("weight: 1"),
        ["f:8:5: schedulingProfiles[0].plugins[0]: required field `pluginRef` is missing"],
    ),
    "profile entry with an empty plugin": (
        profile_of("pluginRef: ''"),
        ["f:8:16: schedulingProfiles[0].plugins[0].pluginRef: expected a text of length >= 1"],
    ),
    "profile of an undefined plugin": (
        profile_of("pluginRef: queue-scorrer"),
        [
            (
                "f:8:16: schedulingProfiles[0].plugins[0].pluginRef: no plugin is named"
                " `queue-scorrer`; did you mean `queue-scorer`?"
            )
        ],
    ),
    **{
        f"weight {weight}": (
            profile_of(f"{{pluginRef: queue-scorer, weight: {weight}}}"),
            [
                (
                    f"f:8:39: schedulingProfiles[0].plugins[0].weight: weight is {said}; it must"
                    " be a finite number"
                )
            ],
        )
        for weight, said in (
            ("-.inf", "`-inf`"),
            (".inf", "`inf`"),
            ("high", "the text `high`"),
            ("'2'", "the text `2`"),
        )
    },
    "weight .nan": (
        profile_of("{pluginRef: queue-scorer, weight: .nan}"),
        ["f:8:39: schedulingProfiles[0].plugins[0].weight: must be a number, not .nan"],
    ),
    "undefined discovery": (
        HEAD + "dataLayer: {discovery: {pluginRef: nope}}\n",
        ["f:3:36: dataLayer.discovery.pluginRef: no plugin is named `nope`; defined: none"],
    ),
    "undefined source and extractor": (
        HEAD + "dataLayer:\n  sources:\n  - pluginRef: a\n    extractors: [{pluginRef: b}]\n",
        [
            "f:5:16: dataLayer.sources[0].pluginRef: no plugin is named `a`; defined: none",
            (
                "f:6:30: dataLayer.sources[0].extractors[0].pluginRef: no plugin is named `b`;"
                " defined: none"
            ),
        ],
    ),
    "syncer": (
        HEAD + "plugins: [{type: a}]\ndataLayer: {crossReplicaSyncerPluginRef: a}\n",
        [
            (
                "f:4:42: dataLayer.crossReplicaSyncerPluginRef: no plugin syncs replicas; remove"
                " it, and use --replica-state"
            )
        ],
    ),
    "feature gates": (
        HEAD
        + "featureGates:\n- flowControl\n- flowControl=true\n- flowControl=on\n- flowcontrol\n"
        + "- 'flowControl =true'\n- 7\n",
        [
            (
                "f:6:3: featureGates[2]: feature gate `flowControl` is `on`; it must be true or"
                " false"
            ),
            (
                "f:7:3: featureGates[3]: unknown feature gate `flowcontrol`; did you mean"
                " `flowControl`?"
            ),
            (
                "f:8:3: featureGates[4]: unknown feature gate `flowControl `; did you mean"
                " `flowControl`?"
            ),
            "f:9:3: featureGates[5]: expected a text, got a whole number; put it in quotes",
        ],
    ),
    "flow control": (
        HEAD
        + "flowControl:\n  maxBytes: 10Gib\n  defaultRequestTTL: 60\n  priorityBands:\n"
        + "  - {priority: high, orderingPolicyRef: fifo}\n  - 7\n  enableEvictions: true\n",
        [
            (
                "f:4:13: flowControl.maxBytes: `10Gib` is not a quantity of 0 or more; write it as"
                " 5000, 20k or 10Gi"
            ),
            (
                "f:5:22: flowControl.defaultRequestTTL: `60` is no duration, as it has no unit;"
                " write `60s` or `60ms`"
            ),
            ("f:7:16: flowControl.priorityBands[0].priority: expected a whole number, got a text"),
            (
                "f:7:41: flowControl.priorityBands[0].orderingPolicyRef: no policy is named"
                " `fifo`; defined: `fcfs-ordering-policy`, `global-strict-fairness-policy`,"
                " `static-usage-limit-policy`; others need an entry in `plugins`"
            ),
            "f:8:5: flowControl.priorityBands[1]: expected a mapping, got `7`",
            (
                "f:9:3: flowControl.enableEvictions: unknown field `enableEvictions`; did you mean"
                " `enableEviction`?"
            ),
        ],
    ),
    "saturation detector in either place": (
        HEAD
        + "saturationDetector: {pluginRef: utilization-detector}\n"
        + "flowControl: {saturationDetector: {pluginRef: nope}}\n",
        [
            (
                "f:4:47: flowControl.saturationDetector.pluginRef: no plugin is named `nope`;"
                " defined: `utilization-detector`; others need an entry in `plugins`"
            ),
        ],
    ),
    "shadows": (
        HEAD
        + "schedulingProfiles: [{name: a}]\nextensions:\n  shadow:\n"
        + "  - {profile: a, sample: 2}\n  - {profile: a, budgetMs: 0}\n  - {profile: b}\n",
        [
            "f:5:3: extensions.shadow: every profile is a shadow; leave one that decides",
            "f:6:26: extensions.shadow[0].sample: expected a number <= 1.0",
            "f:7:15: extensions.shadow[1].profile: profile `a` is a shadow already",
            "f:7:28: extensions.shadow[1].budgetMs: expected a number > 0.0",
            "f:8:15: extensions.shadow[2].profile: no profile is named `b`; defined: `a`",
        ],
    ),
    "guard rails": (
        HEAD
        + "plugins: [{type: a}]\nextensions:\n  guardRails:\n    disableAfter: 0\n"
        + "    failurePolicy: {a: opened, b: open}\n    slowCallMs: fast\n",
        [
            "f:6:19: extensions.guardRails.disableAfter: expected a whole number >= 1",
            (
                "f:7:24: extensions.guardRails.failurePolicy.a: must be `open` or `closed`, not"
                " `opened`"
            ),
            ("f:7:32: extensions.guardRails.failurePolicy.b: no plugin is named `b`; defined: `a`"),
            "f:8:17: extensions.guardRails.slowCallMs: expected a number, got a text",
        ],
    ),
    "unknown extension": (
        HEAD + "extensions: {staleness: fade}\n",
        [
            (
                "f:3:14: extensions.staleness: unknown field `staleness`; known:"
                " `allowExperimentalPlugins`, `flowControl`, `guardRails`, `sessions`, `shadow`"
            )
        ],
    ),
    "sessions": (
        HEAD
        + "extensions:\n  sessions:\n    actions: [alocate, reclaim, reclaim]\n"
        + "    plugins:\n      p: {priorty: 1, enabled: 2, arguments: []}\n",
        [
            (
                "f:5:14: extensions.sessions.actions: `allocate` is missing; without it no queued"
                " request is ever dispatched"
            ),
            (
                "f:5:15: extensions.sessions.actions[0]: must be `allocate` or `reclaim` or"
                " `preempt`, not `alocate`"
            ),
            (
                "f:5:33: extensions.sessions.actions[2]: action `reclaim` is listed twice; once is"
                " enough"
            ),
            (
                "f:7:11: extensions.sessions.plugins.p.priorty: unknown field `priorty`; did you"
                " mean `priority`?"
            ),
            (
                "f:7:32: extensions.sessions.plugins.p.enabled: expected true or false, got a"
                " whole number"
            ),
            "f:7:46: extensions.sessions.plugins.p.arguments: expected a mapping, got a list",
        ],
    ),
}


@pytest.mark.parametrize(("text", "said"), FAULTS.values(), ids=FAULTS)
def test_every_fault_is_reported_with_line_column_and_path(text: str, said: list[str]) -> None:
    assert refusals(text) == said


def test_five_faults_of_five_kinds_are_reported_at_once() -> None:
    text = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowcontrol]
plugins:
- type: queue-scorer
  paramaters: {}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: kv-scorer, weight: .inf}
"""
    assert refusals(text) == [
        (
            "f:3:16: featureGates[0]: unknown feature gate `flowcontrol`; did you mean"
            " `flowControl`?"
        ),
        "f:6:3: plugins[0].paramaters: unknown field `paramaters`; did you mean `parameters`?",
        "f:7:9: plugins[1].type: another plugin is named `queue-scorer`; names are unique",
        (
            "f:11:17: schedulingProfiles[0].plugins[0].pluginRef: no plugin is named `kv-scorer`;"
            " defined: `queue-scorer`"
        ),
        (
            "f:11:36: schedulingProfiles[0].plugins[0].weight: weight is `inf`; it must be a"
            " finite number"
        ),
    ]


def test_refused_file_is_reported_with_its_plugins_faults_too() -> None:
    seen: list[tuple[str, Mapping[str, Any]]] = []

    def inspect(plugin_type: str, parameters: Mapping[str, Any]) -> Iterator[Fault]:
        seen.append((plugin_type, parameters))
        yield Fault("parameters.x", "is odd", on_key=True)

    text = HEAD + "plugins: [{type: a, parameters: {x: 1}}, {type: b, parameters: 3}, {}, 7]\n"
    with pytest.raises(ConfigError) as caught:
        load_text(text, "f", inspect=inspect)
    assert seen == [("a", {"x": 1}), ("b", {})]
    said = [problem.text("f") for problem in caught.value.problems]
    assert said[0] == "f:3:34: plugins[0].parameters.x: is odd"
    # The second plugin's `x` would stand where its parameters, which are none, do.
    assert said[2] == "f:3:64: plugins[1].parameters.x: is odd"
    assert len(said) == 5


def test_sound_file_is_not_inspected() -> None:
    def inspect(plugin_type: str, parameters: Mapping[str, Any]) -> list[Fault]:
        raise AssertionError((plugin_type, parameters))

    assert load_text(HEAD + "plugins: [{type: a}]\n", "f", inspect=inspect)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read the configuration file {path}: no such file or directory"),
        (
            b"# caf\xe9\n",
            (
                "cannot read the configuration file {path}: 'utf-8' codec can't decode byte 0xe9 in"
                " position 5: invalid continuation byte"
            ),
        ),
        (b"#" * (1024 * 1024 + 1), "{path}: larger than 1024 KiB"),
    ],
)
def test_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "epp.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_file(path)
    assert str(caught.value) == said.format(path=path)

"""``k8s-notification-source``: its parameters, its extractors, and configuration errors."""

from typing import Any, ClassVar

import pytest
from config.graphs import load
from data_layer.object_feed import GADGET, ObjectDiary, Params, changed, deleted

from epp.building import make_builder
from epp.config import ConfigError, PluginGraph, PluginRegistry
from epp.data_layer import ObjectKind, polled
from epp.testing import check, make_plugin
from epp_plugins.data_sources.k8s_notifications import K8sNotificationSource

SOURCE = "k8s-notification-source"
PODS = f"{{type: {SOURCE}, name: pods, parameters: {{version: v1, kind: Pod}}}}"
GADGETS = (
    f"{{type: {SOURCE}, name: gadgets,"
    " parameters: {group: example.com, version: v1alpha1, kind: Gadget}}"
)
SCREENER = (
    "{type: disaggregatedset-rollout-screener, parameters: {scope: {labelSelector: app=x},"
    " revisionGating: {mode: sum, requireRoles: {values: [decode]}}}}"
)


def build(plugins: str, sources: str = "", discovery: str = "") -> PluginGraph:
    registry = PluginRegistry.from_entry_points()
    registry.add(ObjectDiary)
    text = (
        f"plugins: [{plugins}]\n"
        f"dataLayer: {{injectDefaults: false, sources: [{sources}]{discovery}}}\n"
    )
    return make_builder(0, registry).build(load(text))


def listed(source: str, *listeners: str) -> str:
    extractors = ", ".join(f"{{pluginRef: {each}}}" for each in listeners)
    return f"{{pluginRef: {source}, extractors: [{extractors}]}}"


def test_the_class_is_sound_and_passes_every_change_on() -> None:
    check(K8sNotificationSource)
    parameters = {"group": "example.com", "version": "v1alpha1", "kind": "Gadget"}
    plugin = make_plugin(K8sNotificationSource, parameters)
    assert plugin.object_kind == GADGET
    for event in (changed("a"), deleted("a")):
        assert plugin.notify_object(event) is event


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kind": "Pod"}, "missing required field `version`"),
        ({"version": "v1"}, "missing required field `kind`"),
        ({"version": "v1", "kind": ""}, r"length >= 1 - at `\$\.kind`"),
        ({"version": "", "kind": "Pod"}, r"length >= 1 - at `\$\.version`"),
        ({"version": "v1", "kind": "Pod", "namespace": "x"}, "unknown field `namespace`"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plugin(K8sNotificationSource, parameters)


def test_the_core_group_is_the_default() -> None:
    plugin = make_plugin(K8sNotificationSource, {"version": "v1", "kind": "Pod"})
    assert plugin.object_kind == ObjectKind("", "v1", "Pod")


def test_configurations_of_the_go_epp_load() -> None:
    graph = build(
        f"{PODS}, {GADGETS}, {{type: topology-extractor}}, {SCREENER}, {{type: object-diary}}",
        f"{listed('pods')}, {listed('gadgets', 'object-diary')}",
    )
    assert [binding.source.name for binding in graph.sources] == ["pods", "gadgets"]
    assert polled(graph.sources) == []
    assert not graph.warnings


def test_every_reader_of_pods_may_be_listed() -> None:
    readers = ("topology-extractor", "disaggregatedset-rollout-screener")
    plugins = f"{PODS}, {{type: topology-extractor}}, {SCREENER}"
    assert not build(plugins, listed("pods", *readers)).warnings


@pytest.mark.parametrize(
    ("plugins", "sources", "message"),
    [
        pytest.param(
            f"{PODS}, {{type: object-diary}}",
            listed("pods", "object-diary"),
            "dataLayer.sources[0].extractors[0].pluginRef: `object-diary` cannot be an extractor"
            " here: it reads objects of kind Gadget (example.com/v1alpha1), not Pod (v1)",
            id="another kind",
        ),
        pytest.param(
            f"{PODS}, {{type: core-metrics-extractor}}",
            listed("pods", "core-metrics-extractor"),
            "`core-metrics-extractor` (core-metrics-extractor) does not implement ObjectListener",
            id="an extractor of pages",
        ),
        pytest.param(
            "{type: metrics-data-source}, {type: object-diary}",
            listed("metrics-data-source", "object-diary"),
            "`object-diary` (object-diary) does not implement Extractor",
            id="a listener of a page",
        ),
    ],
)
def test_what_cannot_be_an_extractor_is_refused(plugins: str, sources: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(plugins, sources)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("object_kind", "Pod", "`object_kind` must be set, to an `ObjectKind` or None"),
        ("object_kind", ..., "`object_kind` must be set, to an `ObjectKind` or None"),
        ("object_fields", "spec.nodeName", "`object_fields` must be a tuple of paths"),
        ("object_fields", ("spec.",), "`object_fields` must be a tuple of paths"),
        ("object_fields", (1,), "`object_fields` must be a tuple of paths"),
    ],
)
def test_a_listener_that_does_not_say_what_it_reads_is_refused(
    attribute: str, value: object, message: str
) -> None:
    class Vague(ObjectDiary):
        type: ClassVar[str] = "vague"

        def __init__(self, name: str, params: Params) -> None:
            super().__init__(name, params)
            if value is ...:
                delattr(self, attribute)
            else:
                setattr(self, attribute, value)

    registry = PluginRegistry.from_entry_points()
    registry.add(Vague)
    with pytest.raises(ConfigError, match=r"plugins\[0\]: `vague` cannot be used") as caught:
        make_builder(0, registry).build(load("plugins: [{type: vague}]\n"))
    assert message in str(caught.value)


def test_a_source_that_nothing_names_is_reported() -> None:
    (warning,) = build(PODS).warnings
    assert "`pods` is never used: `dataLayer.sources` does not name it" in warning.message


def test_with_a_discovery_a_check_warns_of_those_that_need_objects(tmp_path: Any) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text("endpoints: [{name: a, address: 10.0.0.1, port: '8000'}]\n")
    discovered = f"{{type: file-discovery, parameters: {{path: {file}}}}}"
    disabled = SCREENER.replace("mode: sum", "mode: disabled").replace(
        "{type", "{name: ungated, type"
    )
    graph = build(
        f"{PODS}, {{type: topology-extractor}}, {SCREENER}, {disabled}, {discovered}",
        listed("pods"),
        ", discovery: {pluginRef: file-discovery}",
    )
    end = (
        " gets no Kubernetes objects: with `dataLayer.discovery` (`file-discovery`) the Kubernetes"
        " API is not used"
    )
    assert [(each.path, each.message) for each in graph.warnings] == [
        ("plugins[0]", f"`pods`{end}"),
        ("plugins[2]", f"`disaggregatedset-rollout-screener`{end}"),
    ]

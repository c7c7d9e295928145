"""``endpoint-notification-source`` passes each change of the pool to its extractors once."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import pytest
from config.graphs import load

from epp.building import make_builder
from epp.config import ConfigError, PluginGraph, PluginRegistry
from epp.data_layer import EndpointEvent, EndpointSource, EndpointSpec, EndpointStore, polled
from epp.data_layer.notifications import Notifications
from epp.data_layer.plugins import EndpointChange, EndpointListener
from epp.scheduling import Endpoint
from epp.testing import check, make_endpoint, make_plugin
from epp_plugins.data_sources.endpoint_notifications import EndpointNotificationSource

SOURCE = "endpoint-notification-source"


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class Diary(EndpointListener):
    """Writes down what it hears."""

    type: ClassVar[str] = "diary"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self.heard: list[str] = []

    def endpoint_added(self, endpoint: Endpoint) -> None:
        self.heard.append(f"+{endpoint.name}")

    def endpoint_changed(self, endpoint: Endpoint) -> None:
        self.heard.append(f"~{endpoint.name}")

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self.heard.append(f"-{endpoint.name}")


class Choosy(EndpointSource):
    """Passes on what has the label ``zone``; fails where that is ``broken``."""

    type: ClassVar[str] = "choosy-source"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def notify(self, event: EndpointEvent) -> EndpointEvent | None:
        if event.endpoint.labels.get("zone") == "broken":
            raise RuntimeError("no such zone")
        return event if "zone" in event.endpoint.labels else None


def build(plugins: str, sources: str, previous: PluginGraph | None = None) -> PluginGraph:
    registry = PluginRegistry.from_entry_points()
    registry.add(Diary)
    registry.add(Choosy)
    text = f"plugins: [{plugins}]\ndataLayer: {{injectDefaults: false, sources: [{sources}]}}\n"
    return make_builder(0, registry).build(load(text), previous)


def listed(source: str = SOURCE, *listeners: str) -> str:
    extractors = ", ".join(f"{{pluginRef: {each}}}" for each in listeners)
    return f"{{pluginRef: {source}, extractors: [{extractors}]}}"


def use(notifications: Notifications, graph: PluginGraph) -> Diary:
    notifications.use(graph.implementing(EndpointListener), graph.sources)
    diary = graph.plugins["diary"]
    assert isinstance(diary, Diary)
    return diary


def report(store: EndpointStore, *specs: EndpointSpec) -> None:
    store.replace_endpoints("test", specs)


def spec(name: str, **labels: str) -> EndpointSpec:
    return EndpointSpec(name, "10.0.0.1:8000", labels)


BOTH = f"{{type: {SOURCE}}}, {{type: diary}}"


def test_the_class_is_sound_and_passes_every_change_on() -> None:
    check(EndpointNotificationSource)
    plugin = make_plugin(EndpointNotificationSource)
    for change in EndpointChange:
        event = EndpointEvent(change, make_endpoint())
        assert plugin.notify(event) is event


@pytest.mark.parametrize(
    ("plugins", "sources"),
    [
        pytest.param(BOTH, listed(SOURCE, "diary"), id="listed"),
        pytest.param(BOTH, listed(), id="declared, but not listed"),
        pytest.param(
            f"{BOTH}, {{type: {SOURCE}, name: b}}",
            f"{listed(SOURCE, 'diary')}, {listed('b', 'diary')}",
            id="listed twice",
        ),
        pytest.param("{type: diary}", "", id="without a source"),
    ],
)
def test_a_listener_hears_each_change_once(plugins: str, sources: str) -> None:
    store = EndpointStore()
    report(store, spec("a"))
    diary = use(Notifications(store), build(plugins, sources))
    report(store, spec("a", zone="1"), spec("b"))
    report(store, spec("b"))
    assert diary.heard == ["+a", "~a", "+b", "-a"]


def test_a_source_of_ones_own_may_keep_changes_back_and_its_failure_is_its_own() -> None:
    store = EndpointStore()
    graph = build("{type: choosy-source}, {type: diary}", listed("choosy-source", "diary"))
    diary = use(Notifications(store), graph)
    report(store, spec("a"), spec("b", zone="1"), spec("c", zone="broken"), spec("d", zone="2"))
    assert diary.heard == ["+b", "+d"]
    assert [each.name for each in store.snapshot] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", listed(SOURCE, "diary"), id="listed by the reload"),
        pytest.param(listed(SOURCE, "diary"), "", id="not listed any more"),
        pytest.param(listed(SOURCE, "diary"), listed(SOURCE, "diary"), id="as before"),
    ],
)
def test_a_listener_that_a_reload_keeps_is_not_notified_again(before: str, after: str) -> None:
    store = EndpointStore()
    notifications = Notifications(store)
    report(store, spec("a"))
    first = build(BOTH, before)
    diary = use(notifications, first)
    assert use(notifications, build(BOTH, after, first)) is diary
    report(store, spec("a"), spec("b"))
    assert diary.heard == ["+a", "+b"]


def test_a_listener_that_a_reload_drops_hears_no_more() -> None:
    store = EndpointStore()
    notifications = Notifications(store)
    first = build(BOTH, listed(SOURCE, "diary"))
    diary = use(notifications, first)
    notifications.use([], [])
    report(store, spec("a"))
    assert diary.heard == []


FAULTS: Sequence[tuple[str, str, str]] = [
    (
        f"{{type: {SOURCE}}}, {{type: core-metrics-extractor}}",
        listed(SOURCE, "core-metrics-extractor"),
        "`core-metrics-extractor` (core-metrics-extractor) does not implement EndpointListener",
    ),
    (
        "{type: metrics-data-source}, {type: diary}",
        listed("metrics-data-source", "diary"),
        "`diary` (diary) does not implement Extractor",
    ),
]


@pytest.mark.parametrize(
    ("plugins", "sources", "message"),
    FAULTS,
    ids=["an extractor of pages", "a listener of a page"],
)
def test_what_cannot_be_notified_is_refused(plugins: str, sources: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(plugins, sources)
    assert message in str(caught.value)


def test_parameters_are_ignored_with_a_warning_as_the_reference_ignores_them() -> None:
    graph = build(f"{{type: {SOURCE}, parameters: {{kind: Pod}}}}, {{type: diary}}", listed())
    (warning,) = (each.message for each in graph.warnings if "kind" in each.message)
    assert "has no effect" in warning


def test_a_source_that_nothing_names_is_reported() -> None:
    (warning,) = build(f"{{type: {SOURCE}}}", "").warnings
    assert f"`{SOURCE}` is never used: `dataLayer.sources` does not name it" in warning.message


def test_guide_with_the_source_loads() -> None:
    graph = build(
        f"{{type: {SOURCE}}}, {{type: topology-extractor}}, {{type: inflight-load-producer}}",
        listed(SOURCE, "topology-extractor", "inflight-load-producer"),
    )
    assert [binding.source.name for binding in graph.sources] == [SOURCE]
    assert polled(graph.sources) == []
    assert not graph.warnings

"""A configured plugin that can never be called is reported, and a used one is not."""

from typing import ClassVar

import pytest
from config.graphs import KeepAll, build, load, make_registry

from epp.building import make_builder
from epp.config import PluginGraph, default_config
from epp.data_layer import Extractor
from epp.data_layer.plugins import Page
from epp.request_control.plugins import PreRequest
from epp.scheduling import CycleState, Endpoint, LLMRequest, SchedulingResult


class Hooked(KeepAll, PreRequest):
    """A filter that hears of every decision, wherever it is named."""

    type: ClassVar[str] = "hooked-filter"

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        """Forget it."""


class Extracting(KeepAll, Extractor):
    """A filter that gets its values itself."""

    type: ClassVar[str] = "extracting-filter"

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        """Forget it."""


def build_real(text: str) -> PluginGraph:
    registry = make_registry()
    registry.add(Hooked)
    registry.add(Extracting)
    return make_builder(0, registry).build(load(text))


PROFILE = "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}]\n"
NO_PROFILE = "no profile names it"

UNASKED: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "filter": (
        "plugins: [{type: queue-scorer}, {type: keep-all-filter, name: keep}]\n" + PROFILE,
        [("plugins[1]", f"`keep` is never used: {NO_PROFILE}")],
    ),
    "scorer and composite filter": (
        "plugins: [{type: decision-tree-filter, name: tree, parameters: {filter:"
        " low-queue-filter}}, {type: low-queue-filter}, {type: lora-affinity-scorer},"
        " {type: queue-scorer}]\n" + PROFILE,
        [
            ("plugins[0]", f"`tree` is never used: {NO_PROFILE}"),
            (
                "plugins[2]",
                f"`lora-affinity-scorer` is never used: {NO_PROFILE}",
            ),
        ],
    ),
    "second picker": (
        "plugins: [{type: queue-scorer}, {type: last-picker}, {type: random-picker}]\n" + PROFILE,
        [("plugins[2]", f"`random-picker` is never used: {NO_PROFILE}")],
    ),
    "extractor and source": (
        "plugins: [{type: models-data-source}, {type: models-data-extractor, name: models}]\n",
        [
            (
                "plugins[0]",
                "`models-data-source` is never used: `dataLayer.sources` does not name it",
            ),
            (
                "plugins[1]",
                "`models` is never used: no entry of `dataLayer.sources` lists it",
            ),
        ],
    ),
    "discovery": (
        "plugins: [{type: file-discovery, name: found, parameters: {path: e.yaml}}]\n",
        [
            (
                "plugins[0]",
                "`found` is never used: `dataLayer.discovery` does not name it",
            )
        ],
    ),
    "two roles and a place for neither": (
        "plugins: [{type: queue-scorer}, {type: extracting-filter}]\n" + PROFILE,
        [
            (
                "plugins[1]",
                (
                    f"`extracting-filter` is never used: {NO_PROFILE} and no entry"
                    " of `dataLayer.sources` lists it"
                ),
            )
        ],
    ),
}

ASKED: dict[str, str] = {
    "no profiles, so that the default one has all": (
        "plugins: [{type: keep-all-filter}, {type: queue-scorer}, {type: random-picker}]\n"
    ),
    "picker of a profile that names none": (
        "plugins: [{type: queue-scorer}, {type: last-picker}]\n" + PROFILE
    ),
    "shadow profile alone": (
        "plugins: [{type: queue-scorer}, {type: random-order-filter}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]},"
        " {name: b, plugins: [{pluginRef: random-order-filter}]}]\n"
        "extensions: {shadow: [{profile: b}]}\n"
    ),
    "reference of another plugin": (
        "plugins: [{type: keep-all-filter, name: inner},"
        " {type: wrapping-filter, parameters: {to: inner}}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: wrapping-filter}]}]\n"
    ),
    "hook beside the filter": (
        "plugins: [{type: queue-scorer}, {type: hooked-filter}]\n" + PROFILE
    ),
    "one role of two": (
        "plugins: [{type: extracting-filter}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: extracting-filter}]}]\n"
    ),
    "handler, producer and parser": (
        "plugins: [{type: queue-scorer}, {type: single-profile-handler}, {type: token-producer},"
        " {type: openai-parser}]\n" + PROFILE
    ),
    "sources that defaults name": (
        "plugins: [{type: metrics-data-source, name: m}, {type: core-metrics-extractor, name: c}]\n"
    ),
    "discovery": (
        "plugins: [{type: file-discovery, parameters: {path: e.yaml}}]\n"
        "dataLayer: {discovery: {pluginRef: file-discovery}}\n"
    ),
}


@pytest.mark.parametrize(("text", "said"), UNASKED.values(), ids=UNASKED)
def test_plugin_that_can_never_be_asked_is_warned_of(
    text: str, said: list[tuple[str, str]]
) -> None:
    graph = build_real(text)
    assert [(each.path, each.message) for each in graph.warnings] == said
    assert all(each.line == 3 for each in graph.warnings)


@pytest.mark.parametrize("text", ASKED.values(), ids=ASKED)
def test_plugin_that_is_asked_is_not_warned_of(text: str) -> None:
    assert build_real(text).warnings == ()


def test_default_configuration_has_no_warning() -> None:
    assert make_builder(0).build(default_config()).warnings == ()


def test_role_that_the_builder_does_not_know_is_taken_for_one_that_is_asked() -> None:
    assert build("plugins: [{type: models-data-extractor}]\n").warnings == ()

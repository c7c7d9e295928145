"""The saturation detector that a configuration selects."""

from collections.abc import Sequence
from typing import ClassVar

import pytest
from config.graphs import HEAD

from epp.building import make_builder
from epp.config import ConfigError, PluginRegistry, load_text
from epp.flow_control import SaturationDetector
from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest
from epp_plugins import PLUGINS
from epp_plugins.scorers.queue_depth import Params

BUILDER_SEED = 0


class Gauge(Filter, SaturationDetector):
    """A detector that is a filter as well."""

    type: ClassVar[str] = "gauge-detector"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        return 0.0

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return list(endpoints)


BUILDER = make_builder(BUILDER_SEED, PluginRegistry([*PLUGINS, Gauge]))
OWN = "plugins: [{type: queue-scorer}, {type: gauge-detector, name: mine}]\n"


@pytest.mark.parametrize(
    ("text", "detector", "warnings"),
    [
        pytest.param("", "utilization-detector", [], id="none named"),
        pytest.param(
            "flowControl: {saturationDetector: {pluginRef: utilization-detector}}\n",
            "utilization-detector",
            [],
            id="the default one, which needs no entry",
        ),
        pytest.param(
            OWN + "flowControl: {saturationDetector: {pluginRef: mine}}\n",
            "mine",
            [],
            id="one of the file",
        ),
        pytest.param(
            OWN + "saturationDetector: {pluginRef: mine}\n",
            "mine",
            ["saturationDetector: is deprecated; use `flowControl.saturationDetector`"],
            id="in the deprecated place",
        ),
        pytest.param(
            OWN
            + "saturationDetector: {pluginRef: mine}\n"
            + "flowControl: {saturationDetector: {pluginRef: utilization-detector}}\n",
            "utilization-detector",
            [
                "saturationDetector: is deprecated; use `flowControl.saturationDetector`",
                (
                    "plugins[1]: `mine` is never used: no profile names it and"
                    " `flowControl.saturationDetector` does not name it"
                ),
            ],
            id="in both places, where the present one goes first",
        ),
    ],
)
def test_detector_in_force(text: str, detector: str, warnings: list[str]) -> None:
    graph = BUILDER.build(load_text(HEAD + text, "f"))
    assert graph.detector is graph.plugins[detector]
    section = graph.effective.flow_control
    assert section is not None
    assert section.saturation_detector is not None
    assert section.saturation_detector.plugin_ref == detector
    found = [*graph.config.warnings, *graph.warnings]
    assert [each.text("f").split(": ", 1)[1] for each in found] == warnings


def test_detector_filters_only_where_a_profile_names_it() -> None:
    named = "flowControl: {saturationDetector: {pluginRef: mine}}\n"
    graph = BUILDER.build(load_text(HEAD + OWN + named, "f"))
    assert graph.scheduler.profiles["default"].filters == ()
    profile = "schedulingProfiles: [{name: p, plugins: [{pluginRef: mine}]}]\n"
    graph = BUILDER.build(load_text(HEAD + OWN + named + profile, "f"))
    assert [each.name for each in graph.scheduler.profiles["p"].filters] == ["mine"]


def test_what_is_no_detector_is_refused() -> None:
    text = OWN + "flowControl: {saturationDetector: {pluginRef: queue-scorer}}\n"
    with pytest.raises(ConfigError) as caught:
        BUILDER.build(load_text(HEAD + text, "f"))
    assert str(caught.value) == (
        "f:4:47: flowControl.saturationDetector.pluginRef: `queue-scorer` (queue-scorer) does"
        " not implement SaturationDetector; candidates: `mine`"
    )


def test_without_an_installed_default_there_is_no_detector() -> None:
    registry = PluginRegistry([each for each in PLUGINS if each.type != "utilization-detector"])
    assert make_builder(0, registry).build(load_text(HEAD, "f")).detector is None

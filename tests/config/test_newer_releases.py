"""Configurations of other releases of the reference: version v1, and newer names."""

import pytest
from config.graphs import HEAD

from epp.building import make_builder
from epp.config import ConfigError, load_text

V1 = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
FILE = "plugins: [{type: file-discovery, name: found, parameters: {path: e.yaml}}]\n"
BY_ENDPOINTS = FILE + "dataLayer: {discovery: {endpoints: {pluginRef: found}}}\n"
BY_REFERENCE = FILE + "dataLayer: {discovery: {pluginRef: found}}\n"
NEWER = "newer than v0.10 of the Go EPP, which this endpoint picker follows"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        make_builder(0).build(load_text(text, "f"))
    return str(caught.value).splitlines()


@pytest.mark.parametrize("text", [V1 + BY_ENDPOINTS, V1 + BY_REFERENCE, HEAD + BY_REFERENCE])
def test_the_plugin_that_finds_endpoints_is_named_by_either_version(text: str) -> None:
    graph = make_builder(0).build(load_text(text, "f"))
    assert graph.discovery is graph.plugins["found"]
    assert graph.warnings == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            HEAD + BY_ENDPOINTS,
            "f:4:25: dataLayer.discovery.endpoints: `endpoints` is of `apiVersion: llm-d.ai/v1`;"
            " give `pluginRef` here",
            id="the new place in an older version",
        ),
        pytest.param(
            V1 + FILE + "dataLayer: {discovery: {pluginRef: found, endpoints: {pluginRef: found}}}",
            "f:4:43: dataLayer.discovery.endpoints: `pluginRef` and `endpoints` name the plugin"
            " twice; leave one",
            id="named twice",
        ),
        pytest.param(
            V1 + "dataLayer: {discovery: {}}",
            "f:3:24: dataLayer.discovery: required field `pluginRef` is missing",
            id="not named",
        ),
        pytest.param(
            V1 + "plugins: [{type: queue-scorer}]\n"
            "dataLayer: {discovery: {endpoints: {pluginRef: queue-scorer}}}",
            "f:4:48: dataLayer.discovery.endpoints.pluginRef: `queue-scorer` (queue-scorer) does"
            " not implement EndpointDiscovery; there is none in `plugins`",
            id="no discovery",
        ),
        pytest.param(
            V1 + "dataLayer: {discovery: {endpoints: {pluginRef: nope}}}",
            "f:3:48: dataLayer.discovery.endpoints.pluginRef: no plugin is named `nope`; defined:"
            " none",
            id="not defined",
        ),
        pytest.param(
            HEAD + "plugins: [{type: prefix-cache-affinity-filter, parameters:"
            " {maxTokensInFlightPenalty: 64000}}]",
            "f:3:61: plugins[0].parameters.maxTokensInFlightPenalty: unknown field"
            f" `maxTokensInFlightPenalty`; it is {NEWER}; leave it out and bound the wait with"
            " `maxTTFTPenaltyMs`",
            id="a newer parameter",
        ),
        pytest.param(
            HEAD + "plugins: [{type: program-aware-fairness, parameters: {strategy:"
            " turn-priority}}]",
            "f:3:65: plugins[0].parameters.strategy: must be `las`, not `turn-priority`: that is"
            f" {NEWER}",
            id="a newer value",
        ),
        pytest.param(
            HEAD + "featureGates: [flowControl]\nflowControl: {priorityBands:"
            " [{priority: 1, defaultRequestTTL: 5s}]}",
            "f:4:45: flowControl.priorityBands[0].defaultRequestTTL: unknown field"
            f" `defaultRequestTTL`; it is {NEWER}; give `requestTTL` under"
            " `extensions.flowControl.priorityBands[]`",
            id="a newer field",
        ),
        *(
            pytest.param(
                HEAD + f"plugins: [{{type: {name}}}]",
                f"f:3:18: plugins[0].type: plugin type `{name}` is {NEWER}; remove what uses it",
                id=name,
            )
            for name in (
                "lmetric-scorer",
                "latency-observer-producer-hub",
                "latency-observation-scorer-hub",
                "header-phase-profile-handler",
            )
        ),
    ],
)
def test_what_cannot_be_taken_says_why(text: str, expected: str) -> None:
    assert expected in problems(text)

"""Parsers in the configuration: their selection and order, and errors in the list."""

import pytest
from config.graphs import HEAD, load

from epp.building import make_builder
from epp.config import ConfigError, PluginGraph, load_text
from epp.config.supported import DEFAULT_PARSERS

BUILDER = make_builder(seed=0)
BOTH = "requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: passthrough-parser}]}\n"


def built(text: str) -> PluginGraph:
    return BUILDER.build(load(text))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("", [*DEFAULT_PARSERS], id="none listed"),
        pytest.param("plugins: [{type: openai-parser}]\n", [*DEFAULT_PARSERS], id="an entry alone"),
        pytest.param(BOTH, ["openai-parser", "passthrough-parser"], id="types without entries"),
        pytest.param(
            "requestHandler: {parsers: [{pluginRef: mine}]}\n"
            "plugins: [{type: openai-parser, name: mine}]\n",
            ["mine"],
            id="a name",
        ),
        pytest.param("parser: {pluginRef: openai-parser}\n", ["openai-parser"], id="deprecated"),
    ],
)
def test_parsers_are_those_listed_or_the_default_ones(text: str, names: list[str]) -> None:
    graph = built(text)
    assert [each.name for each in graph.parsers] == names
    assert [each.plugin_ref for each in graph.effective.request_handler.parsers] == names
    assert all(graph.plugins[name] in graph.parsers for name in names)
    assert graph.warnings == ()


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        pytest.param(
            "requestHandler: {parsers: [{pluginRef: passthrough-parser},"
            " {pluginRef: openai-parser}]}\n",
            "requestHandler.parsers[1].pluginRef",
            (
                "`openai-parser` is never used here: `passthrough-parser` before it takes every"
                " request that no other parser claims"
            ),
            id="after the one of everything",
        ),
        pytest.param(
            "requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: openai-parser}]}\n",
            "requestHandler.parsers[1].pluginRef",
            "`openai-parser` is never used here: it is listed before",
            id="twice",
        ),
        pytest.param(
            "requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: b}]}\n"
            "plugins: [{type: openai-parser, name: b}]\n",
            "requestHandler.parsers[1].pluginRef",
            "`b` is never used here: `openai-parser` of the same type is listed before it",
            id="two of a type",
        ),
        pytest.param(
            "requestHandler: {parsers: [{pluginRef: openai-parser}]}\n"
            "plugins: [{type: passthrough-parser}]\n",
            "plugins[0]",
            "`passthrough-parser` is never used: `requestHandler.parsers` does not name it",
            id="not listed",
        ),
    ],
)
def test_parser_that_can_never_be_asked_is_warned_of(text: str, path: str, message: str) -> None:
    graph = built(text)
    assert (path, message) in [(each.path, each.message) for each in graph.warnings]
    assert len(graph.parsers) == 1


def test_every_fault_of_the_list_is_reported_with_its_place() -> None:
    with pytest.raises(ConfigError) as refused:
        BUILDER.build(
            load_text(
                HEAD
                + "plugins:\n- {type: random-picker, parameters: {a: 1}, name: b}\n"
                + "- type: openai-parser\n- type: queue-scorer\n"
                + "requestHandler:\n  parsers:\n  - pluginRef: queue-scorer\n"
                + "  - pluginRef: random-picker\n  - pluginRef: openai-parse\n",
                "f",
            )
        )
    assert [each.text("f") for each in refused.value.problems] == [
        "f:4:38: plugins[0].parameters.a: unknown field `a`; known: `maxNumOfEndpoints`",
        "f:9:16: requestHandler.parsers[0].pluginRef: `queue-scorer` (queue-scorer) is no parser",
        "f:10:16: requestHandler.parsers[1].pluginRef: `random-picker` is no parser",
        (
            "f:11:16: requestHandler.parsers[2].pluginRef: no parser is named `openai-parse`; did"
            " you mean `openai-parser`?"
        ),
    ]


def test_fault_of_the_deprecated_section_is_reported_there() -> None:
    with pytest.raises(ConfigError, match=r"test.yaml:3:21: parser.pluginRef: no parser is named"):
        built("parser: {pluginRef: nope}\n")

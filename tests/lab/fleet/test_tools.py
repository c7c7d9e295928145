"""The tool that a fake server calls, and the arguments of the call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epp.lab.fleet.errors import VllmApiError
from epp.lab.fleet.tools import Choice, Tool, call_of

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [Tool("weather", CITY), Tool("time", {})]


@pytest.mark.parametrize(
    ("tools", "choice", "after_result", "called"),
    [
        pytest.param(TOOLS, Choice.AUTO, False, "weather", id="the first one with auto"),
        pytest.param(TOOLS, Choice.AUTO, True, None, id="none after a result"),
        pytest.param(TOOLS, Choice.REQUIRED, True, "weather", id="required after a result"),
        pytest.param(TOOLS, Choice.NONE, False, None, id="none with none"),
        pytest.param(TOOLS, "time", True, "time", id="the named one"),
        pytest.param([], Choice.AUTO, False, None, id="none without tools"),
    ],
)
def test_a_tool_is_called(
    *, tools: list[Tool], choice: Choice | str, after_result: bool, called: str | None
) -> None:
    call = call_of(tools, choice, after_result=after_result)
    assert (call.name if call else None) == called


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        pytest.param(TOOLS, "stocks", "`stocks`", id="not offered"),
        pytest.param([], Choice.REQUIRED, "requires tools", id="none offered"),
    ],
)
def test_a_tool_that_cannot_be_called_is_an_error(
    tools: list[Tool], choice: Choice | str, message: str
) -> None:
    with pytest.raises(VllmApiError, match=message) as raised:
        call_of(tools, choice, after_result=False)
    assert raised.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        pytest.param({}, {}, id="no arguments"),
        pytest.param(CITY, {"city": "words"}, id="a string"),
        pytest.param(
            {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
            {"a": "words", "b": ""},
            id="two optional strings",
        ),
        pytest.param(
            {"properties": {"a": {"type": "string"}, "b": {}}, "required": ["b"]},
            {"b": "words"},
            id="a required argument",
        ),
        pytest.param(
            {
                "properties": {
                    "unit": {"type": "string", "enum": ["km", "mi"]},
                    "kind": {"const": 3},
                    "days": {"type": "integer"},
                    "exact": {"type": ["boolean", "null"]},
                    "stops": {"type": "array"},
                    "from": {"type": "object", "properties": {"zip": {"type": "number"}}},
                }
            },
            {
                "unit": "km",
                "kind": 3,
                "days": 0,
                "exact": False,
                "stops": [],
                "from": {"zip": 0},
            },
            id="other types",
        ),
        pytest.param({"properties": [], "required": 3}, {}, id="an invalid schema"),
        pytest.param(
            {"properties": {'a "name"': {"type": "string"}}}, {'a "name"': "words"}, id="quotes"
        ),
    ],
)
def test_arguments_are_of_the_schema(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    call = call_of([Tool("any", schema)], Choice.AUTO, after_result=False)
    assert call is not None
    assert json.loads(call.arguments("words")) == arguments
    in_pieces = call.before + call.text("wo") + call.text("rds") + call.after
    assert in_pieces == call.arguments("words")

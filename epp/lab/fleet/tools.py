"""Tool definitions of a request, and the tool call in its response.

A fake server calls a tool whenever the request allows it, except after a tool result, so that a
client's loop of calls and results ends. The generated text becomes the first string argument; other
arguments get a simple value that their schema allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from epp.lab.fleet.errors import VllmApiError

_PLAIN: dict[str, object] = {
    "integer": 0,
    "number": 0,
    "boolean": False,
    "array": [],
    "null": None,
}


class Choice(Enum):
    """Whether a response calls a tool; each API has its own names for these."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a request defines."""

    name: str
    schema: dict[str, Any]
    """JSON schema of its arguments."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call, sent instead of text."""

    name: str
    """Name of the tool."""
    before: str
    """JSON of the arguments before the generated text."""
    after: str
    """JSON after it; "" if no argument takes text, and `before` is complete."""

    def text(self, generated: str) -> str:
        """Return the part of the arguments for a piece of generated text."""
        return generated if self.after else ""

    def arguments(self, generated: str) -> str:
        """Return the complete arguments as JSON."""
        return f"{self.before}{self.text(generated)}{self.after}"


def call_of(tools: Sequence[Tool], choice: Choice | str, *, after_result: bool) -> ToolCall | None:
    """Return the tool call to respond with; None for text.

    Args:
        tools: The tools that the request defines.
        choice: Its tool choice, or the name of a required tool.
        after_result: Whether its last message is a tool result.

    Raises:
        ApiError: The request requires a tool that it does not define.
    """
    if isinstance(choice, str):
        named = next((tool for tool in tools if tool.name == choice), None)
        if named is None:
            raise VllmApiError(
                f"tool_choice names `{choice}`, which is not in tools.", param="tool_choice"
            )
        return _call(named)
    if choice is Choice.REQUIRED and not tools:
        raise VllmApiError("tool_choice requires tools.", param="tool_choice")
    if not tools or choice is Choice.NONE or (choice is Choice.AUTO and after_result):
        return None
    return _call(tools[0])


def _call(tool: Tool) -> ToolCall:
    properties = _object(tool.schema.get("properties"))
    values = _values(tool.schema)
    place = next((name for name in values if _is_text(_object(properties.get(name)))), None)
    if place is None:
        return ToolCall(tool.name, msgspec.json.encode(values).decode(), "")
    del values[place]
    members = msgspec.json.encode(values).decode()[1:-1]
    comma = "," if members else ""
    return ToolCall(tool.name, f'{{{members}{comma}{msgspec.json.encode(place).decode()}:"', '"}')


def _values(schema: dict[str, Any]) -> dict[str, Any]:
    properties = _object(schema.get("properties"))
    names = schema.get("required")
    wanted = names if isinstance(names, list) else properties
    return {str(name): _plain(_object(properties.get(name))) for name in wanted}


def _plain(schema: dict[str, Any]) -> object:
    if "const" in schema:
        return schema["const"]
    choices, kind = schema.get("enum"), schema.get("type")
    if isinstance(choices, list) and choices:
        return choices[0]
    if isinstance(kind, list) and kind:
        kind = kind[0]
    return _values(schema) if kind == "object" else _PLAIN.get(str(kind), "")


def _is_text(schema: dict[str, Any]) -> bool:
    return schema.get("type", "string") == "string" and _plain(schema) == ""


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

"""Request bodies of the Anthropic API: messages, and counting their tokens."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from epp.lab.fleet.bodies import Content, DecodedBody, rendered_chat, rendered_content
from epp.lab.fleet.tools import Choice, Tool, ToolCall, call_of

_CHOICES = {"auto": Choice.AUTO, "any": Choice.REQUIRED, "none": Choice.NONE}


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: Content


class _Tool(msgspec.Struct):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None


class _ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""


class CountBody(DecodedBody, kw_only=True):
    """`/v1/messages/count_tokens`."""

    id_prefix: ClassVar[str] = "chatcmpl-"  # as in vLLM, which uses its chat API

    messages: list[_Message]
    system: Content = None
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None

    def prompt(self) -> bytes:
        system = rendered_content(self.system)
        turns = [("system", system)] if system else []
        turns += [(each.role, rendered_content(each.content)) for each in self.messages]
        return rendered_chat(turns, self.tools)

    def limit(self) -> int:
        return 1


class MessagesBody(CountBody, kw_only=True):
    """`/v1/messages`."""

    max_tokens: int

    def limit(self) -> int:
        return self.max_tokens

    def call(self) -> ToolCall | None:
        wanted = self.tool_choice or _ToolChoice("auto")
        return call_of(
            [Tool(each.name, each.input_schema) for each in self.tools or ()],
            wanted.name if wanted.type == "tool" else _CHOICES[wanted.type],
            after_result=bool(self.messages) and _brings_result(self.messages[-1].content),
        )


def _brings_result(content: Content) -> bool:
    return isinstance(content, list) and any(part.get("type") == "tool_result" for part in content)

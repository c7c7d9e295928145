"""Request bodies of the OpenAI APIs: completions, chat completions, responses and embeddings."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from epp.lab.fleet.bodies import (
    DEFAULT_MAX_TOKENS,
    Content,
    DecodedBody,
    rendered_chat,
    rendered_content,
    rendered_json,
    rendered_prompt,
)
from epp.lab.fleet.errors import VllmApiError
from epp.lab.fleet.tools import Choice, Tool, ToolCall, call_of


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Generation(DecodedBody, kw_only=True):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    stream_options: _StreamOptions | None = None

    def limit(self) -> int:
        if self.n not in {None, 1}:
            raise VllmApiError("The fake server supports only one choice: n must be 1.", param="n")
        given = self.max_completion_tokens
        given = self.max_tokens if given is None else given
        return DEFAULT_MAX_TOKENS if given is None else given

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage event."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionsBody(_Generation, kw_only=True):
    """`/v1/completions`."""

    id_prefix: ClassVar[str] = "cmpl-"

    prompt_: str | list[str | int] = msgspec.field(name="prompt")

    def prompt(self) -> bytes:
        return rendered_prompt(self.prompt_)


class _Message(msgspec.Struct):
    role: str
    content: Content = None
    tool_calls: list[dict[str, Any]] | None = None

    def text(self) -> str:
        calls = rendered_json(self.tool_calls) if self.tool_calls else ""
        return rendered_content(self.content) + calls


class _Function(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None
    description: str | None = None


class _ChatTool(msgspec.Struct):
    function: _Function
    type: str = "function"


class _NamedFunction(msgspec.Struct):
    name: str


class _ChatToolChoice(msgspec.Struct):
    function: _NamedFunction


_Mode = Literal["none", "auto", "required"]


class ChatBody(_Generation, kw_only=True):
    """`/v1/chat/completions`."""

    id_prefix: ClassVar[str] = "chatcmpl-"

    messages: list[_Message]
    tools: list[_ChatTool] | None = None
    tool_choice: _Mode | _ChatToolChoice | None = None

    def prompt(self) -> bytes:
        return rendered_chat([(each.role, each.text()) for each in self.messages], self.tools)

    def call(self) -> ToolCall | None:
        wanted = self.tool_choice
        offered = [each.function for each in self.tools or ()]
        return call_of(
            [Tool(each.name, each.parameters or {}) for each in offered],
            wanted.function.name
            if isinstance(wanted, _ChatToolChoice)
            else Choice(wanted or "auto"),
            after_result=bool(self.messages) and self.messages[-1].role == "tool",
        )


class _FunctionChoice(msgspec.Struct):
    name: str
    type: Literal["function"] = "function"


class ResponsesBody(DecodedBody, kw_only=True):
    """`/v1/responses`; tools other than functions are never called."""

    id_prefix: ClassVar[str] = "resp_"

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = True
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: _Mode | _FunctionChoice = "auto"

    def prompt(self) -> bytes:
        turns = [("system", self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return rendered_chat([*turns, ("user", self.input)], self.tools)
        return rendered_chat([*turns, *map(_turn, self.input)], self.tools)

    def limit(self) -> int:
        given = self.max_output_tokens
        return DEFAULT_MAX_TOKENS if given is None else given

    def call(self) -> ToolCall | None:
        wanted = self.tool_choice
        functions = [each for each in self.tools if each.get("type") == "function"]
        items = self.input if isinstance(self.input, list) else []
        return call_of(
            [
                Tool(each.name, each.parameters or {})
                for each in msgspec.convert(functions, list[_Function])
            ],
            wanted.name if isinstance(wanted, _FunctionChoice) else Choice(wanted),
            after_result=bool(items) and items[-1].get("type") == "function_call_output",
        )


def _turn(item: dict[str, Any]) -> tuple[str, str]:
    content = msgspec.convert(item.get("content"), Content)
    if content is None:
        return str(item.get("type")), rendered_json(item)
    return str(item.get("role")), rendered_content(content)


class EmbeddingsBody(DecodedBody, kw_only=True):
    """`/v1/embeddings`; the engine computes all inputs as one prompt."""

    id_prefix: ClassVar[str] = "embd-"

    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=65_536)] | None = None

    def inputs(self) -> list[bytes]:
        """Return the inputs; the response has a vector for each.

        Raises:
            ApiError: There is no input.
        """
        given = self.input
        if not given:
            raise VllmApiError("input must not be empty.", param="input")
        if isinstance(given, str):
            return [given.encode()]
        if all(isinstance(each, int) for each in given):
            given = [[each for each in given if isinstance(each, int)]]
        return [rendered_prompt(list(each) if isinstance(each, list) else [each]) for each in given]

    def prompt(self) -> bytes:
        return b"".join(self.inputs())

    def limit(self) -> int:
        return 1  # one step computes the prompt; its token is not sent

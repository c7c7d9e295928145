"""Calls to a vLLM renderer: the path and the body for each request.

The renderer applies the chat template and the tokenizer of one model, so the body names that model
and not the client's. Messages, tools and template options of a chat are sent unchanged. A request
of the Anthropic API is converted to a chat as vLLM converts it.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from epp.scheduling import LLMRequest
from epp_plugins.data_producers.raw_lists import MAX_ELEMENTS, first_elements

CHAT_PATH: Final = "/v1/chat/completions/render"
COMPLETION_PATH: Final = "/v1/completions/render"

_CHAT = ("/chat/completions", "/chat/completions/render")
_COMPLETION = ("/completions", "/completions/render", "VllmEngine/Generate")
_ANTHROPIC = ("/messages", "/messages/count_tokens")
_BILLING = "x-anthropic-billing-header"
_YIELD_BYTES: Final = 64 * 1024
"""JSON converted before control returns to the event loop, about 0.5 ms."""

_json = msgspec.json.encode


class UnreadableRequestError(Exception):
    """The request cannot be converted to a render call."""


class Question:
    """The call for one request.

    Attributes:
        path: Path below the renderer's URL.
    """

    __slots__ = ("_model", "_request", "path")

    def __init__(self, request: LLMRequest, model: str, path: str) -> None:
        self._request = request
        self._model = model or request.target_model
        self.path = path

    async def body(self) -> bytes:
        """Return the JSON to send.

        Raises:
            UnreadableRequestError: The request's JSON is not valid for its API.
        """
        request = self._request
        if self.path == COMPLETION_PATH:
            return self._of(b'"prompt":', request.prompt)
        if _is(request, _ANTHROPIC):
            try:
                return await self._converted()
            except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
                # The text of the error may quote the prompt.
                raise UnreadableRequestError(type(error).__name__) from None
        parts = [b'"messages":', request.prompt]
        if request.tools:
            parts += [b',"tools":', request.tools]
        if request.template:
            parts += [b",", request.template]
        return self._of(*parts)

    def _of(self, *members: bytes) -> bytes:
        return b"".join((b'{"model":', _json(self._model), b",", *members, b"}"))

    async def _converted(self) -> bytes:
        request = self._request
        tools, system = _tools_and_system(request.tools.decode("utf-8", "surrogatepass"))
        messages: list[bytes] = []
        if text := _system_text(system):
            messages.append(_json({"role": "system", "content": text}))
        raws = first_elements(request.prompt)
        if len(raws) == MAX_ELEMENTS:
            raise UnreadableRequestError(f"the request has {MAX_ELEMENTS} messages or more")
        done = 0
        for raw in raws:
            messages += [_json(each) for each in _messages(msgspec.json.decode(raw))]
            done += memoryview(raw).nbytes
            if done >= _YIELD_BYTES:
                done = 0
                await asyncio.sleep(0)
        parts = [b'"messages":[', b",".join(messages), b"]"]
        if tools:
            parts += [b',"tools":', _json([_tool(each) for each in tools])]
        return self._of(*parts)


def question_of(request: LLMRequest, model: str) -> Question | None:
    """Return the render call for ``request``; None if renderers do not support its kind."""
    if _is(request, _CHAT) or _is(request, _ANTHROPIC):
        return Question(request, model, CHAT_PATH)
    return Question(request, model, COMPLETION_PATH) if _is(request, _COMPLETION) else None


def _is(request: LLMRequest, endings: tuple[str, ...]) -> bool:
    return request.path.partition("?")[0].endswith(endings)


def _tools_and_system(text: str) -> tuple[list[Any], Any]:
    """Split the concatenation that ``anthropic-parser`` wrote; either part may be missing."""
    if not text:
        return [], None
    first, end = json.JSONDecoder().raw_decode(text)
    rest = text[end:].strip()
    if rest:
        return first, json.loads(rest)
    is_system = isinstance(first, str) or all("text" in block for block in first)
    return ([], first) if is_system else (first, None)


def _system_text(system: str | list[dict[str, Any]] | None) -> str:
    """Return the system prompt without the billing header, which differs in every request."""
    if isinstance(system, str):
        return system
    texts = [block["text"] for block in system or () if block.get("type", "text") == "text"]
    return "".join(text for text in texts if not text.startswith(_BILLING))


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {}}
    if "description" in tool:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _messages(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Convert a message of the Anthropic API to chat messages; tool results come first."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in content:
        kind = block["type"]
        if kind == "text":
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": _address(block["source"])}})
        elif kind == "tool_use":
            # With Python's spaces: vLLM writes the arguments this way before it applies the
            # template.
            arguments = json.dumps(block.get("input") or {})
            function = {"name": block["name"], "arguments": arguments}
            calls.append({"id": block.get("id", ""), "type": "function", "function": function})
        elif kind == "tool_result":
            yield {
                "role": "tool",
                "tool_call_id": block.get("tool_use_id", ""),
                "content": _result_text(block.get("content")),
            }
    if not parts and not calls:
        return
    is_one_text = len(parts) == 1 and parts[0]["type"] == "text"
    chat: dict[str, Any] = {"role": role}
    if parts:
        chat["content"] = parts[0]["text"] if is_one_text else parts
    if calls:
        chat["tool_calls"] = calls
    yield chat


def _address(source: dict[str, Any]) -> str:
    if source["type"] == "base64":
        return f"data:{source.get('media_type', 'image/jpeg')};base64,{source['data']}"
    return str(source["url"])


def _result_text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content or () if block.get("type") == "text")

"""The common part of all request bodies, and functions that render their prompts."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from epp.lab.fleet.errors import VllmApiError
from epp.lab.fleet.kv_cache import BYTES_PER_TOKEN
from epp.lab.fleet.tools import ToolCall

DEFAULT_MAX_TOKENS = 16

Content = str | list[dict[str, Any]] | None
"""Text, or parts: text, images, audio, tool results."""


class DecodedBody(msgspec.Struct, kw_only=True):
    """A decoded body; each API has its own subclass."""

    id_prefix: ClassVar[str]
    """Prefix of the response's id."""

    model: str | None = None
    stream: bool | None = False
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int | None = None

    def prompt(self) -> bytes:
        """Return the rendered prompt.

        Raises:
            ApiError: The fake server does not support this kind of prompt.
        """
        raise NotImplementedError

    def limit(self) -> int:
        """Return the maximum number of generated tokens.

        Raises:
            ApiError: The request asks for more than one choice.
        """
        raise NotImplementedError

    def call(self) -> ToolCall | None:
        """Return the tool call to respond with; None for text.

        Raises:
            ApiError: The request requires a tool that it does not define.
        """
        return None


def rendered_prompt(prompt: str | list[str | int]) -> bytes:
    """Return a prompt; each token id becomes `BYTES_PER_TOKEN` bytes, that is, one token."""
    if isinstance(prompt, str):
        return prompt.encode()
    if len(prompt) == 1 and isinstance(prompt[0], str):
        return prompt[0].encode()
    parts: list[bytes] = []
    for token in prompt:
        if not isinstance(token, int):
            raise VllmApiError(
                "The fake server supports only one prompt per request.", param="prompt"
            )
        parts.append((token % 2 ** (8 * BYTES_PER_TOKEN)).to_bytes(BYTES_PER_TOKEN, "big"))
    return b"".join(parts)


def rendered_chat(turns: list[tuple[str, str]], tools: object = None) -> bytes:
    """Return the prompt of a chat in the fake template.

    The prompt of the next turn begins with this one and the response, so that prefixes repeat.

    Args:
        turns: Role and text of each message.
        tools: Tools that the request defines.
    """
    offered = [f"<|tools|>\n{rendered_json(tools)}\n"] if tools else []
    parts = [f"<|{role}|>\n{text}\n" for role, text in turns]
    return "".join([*offered, *parts, "<|assistant|>\n"]).encode()


def rendered_content(content: Content) -> str:
    """Return the text of a message; a part without text, such as an image, is rendered as JSON."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content]
        return "".join(
            text if isinstance(text, str) else rendered_json(part)
            for text, part in zip(texts, content, strict=True)
        )
    return content or ""


def rendered_json(value: object) -> str:
    """Return a part of a request as JSON."""
    return msgspec.json.encode(value).decode()

"""What the bodies of all requests share, and how a fake server makes a prompt of them."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from epp.lab.fleet.errors import ApiError
from epp.lab.fleet.kv_cache import BYTES_PER_TOKEN
from epp.lab.fleet.tools import ToolCall

DEFAULT_MAX_TOKENS = 16

Content = str | list[dict[str, Any]] | None
"""Text, or parts: text, images, sound, results of tools."""


class Body(msgspec.Struct, kw_only=True):
    """A decoded body; each API has a class of its own."""

    id_prefix: ClassVar[str]
    """What the answer's id begins with."""

    model: str | None = None
    stream: bool | None = False
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int | None = None

    def prompt(self) -> bytes:
        """Return what the model reads.

        Raises:
            ApiError: It is of a kind that the fake server does not take.
        """
        raise NotImplementedError

    def limit(self) -> int:
        """Return the most tokens of the answer.

        Raises:
            ApiError: It asks for more than one answer.
        """
        raise NotImplementedError

    def call(self) -> ToolCall | None:
        """Return the tool's call that is the answer; None for an answer in words.

        Raises:
            ApiError: It wants a tool that it does not offer.
        """
        return None


def rendered_prompt(prompt: str | list[str | int]) -> bytes:
    """Return a prompt; a token id becomes `BYTES_PER_TOKEN` bytes, so that ids count as given."""
    if isinstance(prompt, str):
        return prompt.encode()
    if len(prompt) == 1 and isinstance(prompt[0], str):
        return prompt[0].encode()
    parts: list[bytes] = []
    for token in prompt:
        if not isinstance(token, int):
            raise ApiError("The fake server takes one prompt per request.", param="prompt")
        parts.append((token % 2 ** (8 * BYTES_PER_TOKEN)).to_bytes(BYTES_PER_TOKEN, "big"))
    return b"".join(parts)


def rendered_chat(turns: list[tuple[str, str]], tools: object = None) -> bytes:
    """Return the fake chat template of turns, each a role and its text.

    The next turn begins with the whole of this one and its answer.
    """
    offered = [f"<|tools|>\n{rendered_json(tools)}\n"] if tools else []
    parts = [f"<|{role}|>\n{text}\n" for role, text in turns]
    return "".join([*offered, *parts, "<|assistant|>\n"]).encode()


def rendered_content(content: Content) -> str:
    """Return the text of a message; images and the like count by the length of their JSON."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content]
        return "".join(
            text if isinstance(text, str) else rendered_json(part)
            for text, part in zip(texts, content, strict=True)
        )
    return content or ""


def rendered_json(value: object) -> str:
    """Return the JSON of a part of a request."""
    return msgspec.json.encode(value).decode()

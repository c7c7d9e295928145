"""The requests a fake server understands: JSON bodies in, `ApiRequest` or `ApiError` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from epp.lab.fleet.errors import ApiError, UnknownModelError
from epp.lab.fleet.kv_cache import BYTES_PER_TOKEN
from epp.lab.fleet.sequence import GenerationRequest

DEFAULT_MAX_TOKENS = 16


class ApiKind(Enum):
    """Which of the two generation APIs; the value is the prefix of its answer ids."""

    CHAT = "chatcmpl"
    COMPLETIONS = "cmpl"


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Body(msgspec.Struct, kw_only=True):
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    n: int | None = 1
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    ignore_eos: bool = False
    seed: int | None = None


class _CompletionsBody(_Body):
    prompt: str | list[str | int]


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _ChatBody(_Body):
    messages: list[_Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """A checked request: what the engine needs, and how the client wants the answer."""

    kind: ApiKind
    """The API."""
    model: str
    """Model or adapter name, repeated in the answer."""
    generation: GenerationRequest
    """What the engine gets."""
    stream: bool
    """Answer with server-sent events."""
    include_usage: bool
    """Add a usage event at the end of a stream."""


class ApiParser:
    """Reads requests for one server."""

    def __init__(self, *, model: str, adapters: Sequence[str], max_model_len: int) -> None:
        self.model = model
        """Name of the base model."""
        self.adapters = tuple(adapters)
        """Names of the adapters."""
        self.max_model_len = max_model_len
        """Longest prompt and output together, tokens."""
        self._completions = msgspec.json.Decoder(_CompletionsBody)
        self._chat = msgspec.json.Decoder(_ChatBody)

    def parse(self, kind: ApiKind, body: bytes, request_id: str) -> ApiRequest:
        """Read a body.

        Raises:
            UnknownModelError: it names a model that is not served.
            ApiError: it is not JSON, lacks a field, or prompt and output are too long.
        """
        parsed: _ChatBody | _CompletionsBody
        try:
            if kind is ApiKind.CHAT:
                parsed = self._chat.decode(body)
                prompt = _render_chat(parsed.messages)
            else:
                parsed = self._completions.decode(body)
                prompt = _render_prompt(parsed.prompt)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(str(error)) from error
        model = parsed.model or self.model
        if model != self.model and model not in self.adapters:
            aliases = ", ".join((self.model, *self.adapters))
            raise UnknownModelError(
                f"The model `{model}` does not exist. Valid aliases: {aliases}.", param="model"
            )
        if parsed.n not in {None, 1}:
            raise ApiError("The fake server generates one choice: n must be 1.", param="n")
        options = parsed.stream_options
        return ApiRequest(
            kind=kind,
            model=model,
            stream=bool(parsed.stream),
            include_usage=options is not None and options.include_usage,
            generation=self._generation(parsed, prompt, f"{kind.value}-{request_id}"),
        )

    def _generation(self, body: _Body, prompt: bytes, answer_id: str) -> GenerationRequest:
        max_tokens = (
            body.max_completion_tokens
            if body.max_completion_tokens is not None
            else body.max_tokens
        )
        generation = GenerationRequest(
            id=answer_id,
            prompt=prompt,
            max_tokens=DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
            min_tokens=body.min_tokens,
            adapter=body.model if body.model in self.adapters else None,
            ignore_eos=body.ignore_eos,
            seed=body.seed,
        )
        if generation.max_tokens < 1:
            raise ApiError(
                f"max_tokens must be at least 1, got {generation.max_tokens}.", param="max_tokens"
            )
        if not 0 <= generation.min_tokens <= generation.max_tokens:
            raise ApiError(
                f"min_tokens must be between 0 and max_tokens={generation.max_tokens}, "
                f"got {generation.min_tokens}.",
                param="min_tokens",
            )
        limit, tokens = self.max_model_len, generation.prompt_tokens
        advice = "Please reduce the length of the input prompt"
        if tokens >= limit:
            raise ApiError(
                f"This model's maximum context length is {limit} tokens. However, your prompt "
                f"contains at least {tokens} input tokens, which exceeds this limit even without "
                f"any output tokens. {advice}. (parameter=input_tokens, value={tokens})",
                param="input_tokens",
            )
        if tokens + generation.max_tokens > limit:
            raise ApiError(
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{generation.max_tokens} output tokens and your prompt contains at least "
                f"{tokens} input tokens, for a total of at least {tokens + generation.max_tokens} "
                f"tokens. {advice} or the number of requested output tokens. "
                f"(parameter=input_tokens, value={tokens})",
                param="input_tokens",
            )
        return generation


def _render_prompt(prompt: str | list[str | int]) -> bytes:
    """Prompt text; a token id becomes `BYTES_PER_TOKEN` bytes, so that ids count as given."""
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


def _render_chat(messages: list[_Message]) -> bytes:
    """The fake chat template; the next turn begins with the whole of this one and its answer."""
    parts = [f"<|{message.role}|>\n{_content(message)}\n" for message in messages]
    return "".join([*parts, "<|assistant|>\n"]).encode()


def _content(message: _Message) -> str:
    content = message.content
    if isinstance(content, list):
        # Images and the like count by the length of their JSON.
        texts = [part.get("text") for part in content]
        return "".join(
            text if isinstance(text, str) else msgspec.json.encode(part).decode()
            for text, part in zip(texts, content, strict=True)
        )
    return content or ""

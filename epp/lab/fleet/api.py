"""Parse JSON request bodies into an `ApiRequest` or raise an `VllmApiError`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from epp.lab.fleet.anthropic_bodies import CountBody, MessagesBody
from epp.lab.fleet.bodies import DecodedBody
from epp.lab.fleet.errors import UnknownModelError, VllmApiError
from epp.lab.fleet.openai_bodies import ChatBody, CompletionsBody, EmbeddingsBody, ResponsesBody
from epp.lab.fleet.sequence import GenerationRequest
from epp.lab.fleet.sglang_format import GENERATE, GenerateBody
from epp.lab.fleet.tools import ToolCall

COUNT_TOKENS = b"/v1/messages/count_tokens"
BODIES: dict[bytes, type[DecodedBody]] = {
    GENERATE: GenerateBody,
    b"/v1/chat/completions": ChatBody,
    b"/v1/completions": CompletionsBody,
    b"/v1/embeddings": EmbeddingsBody,
    b"/v1/messages": MessagesBody,
    b"/v1/responses": ResponsesBody,
}
"""Body types of the requests that use the engine, by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """A validated request."""

    body: DecodedBody
    """The decoded body."""
    model: str
    """Model or adapter name, repeated in the response."""
    generation: GenerationRequest
    """The request to the engine."""
    call: ToolCall | None
    """The tool call to respond with; None for text."""

    @property
    def id(self) -> str:
        """Id of the response."""
        return self.generation.id


class ApiParser:
    """Parses the requests to one server."""

    def __init__(self, *, model: str, adapters: Sequence[str], max_model_len: int) -> None:
        self.model = model
        """Name of the base model."""
        self.adapters = tuple(adapters)
        """Names of the adapters."""
        self.max_model_len = max_model_len
        """Maximum tokens of prompt and output together."""
        types = (*BODIES.items(), (COUNT_TOKENS, CountBody))
        self._decoders = {path: msgspec.json.Decoder(each) for path, each in types}

    def parse(self, path: bytes, body: bytes, request_id: str) -> ApiRequest:
        """Parse the body of a request for `path`.

        Raises:
            UnknownModelError: It names a model that is not served.
            ApiError: It is not JSON, lacks a field, or prompt and output are too long.
        """
        try:
            parsed = self._decoders[path].decode(body)
            prompt = parsed.prompt()
            call = parsed.call()
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise VllmApiError(str(error)) from error
        model = parsed.model or self.model
        if model != self.model and model not in self.adapters:
            aliases = ", ".join((self.model, *self.adapters))
            raise UnknownModelError(
                f"The model `{model}` does not exist. Valid aliases: {aliases}.", param="model"
            )
        generation = self._generation(parsed, prompt, f"{parsed.id_prefix}{request_id}")
        return ApiRequest(body=parsed, model=model, generation=generation, call=call)

    def _generation(self, body: DecodedBody, prompt: bytes, response_id: str) -> GenerationRequest:
        generation = GenerationRequest(
            id=response_id,
            prompt=prompt,
            max_tokens=body.limit(),
            min_tokens=body.min_tokens,
            adapter=body.model if body.model in self.adapters else None,
            ignore_eos=body.ignore_eos,
            seed=body.seed,
        )
        if generation.max_tokens < 1:
            raise VllmApiError(
                f"max_tokens must be at least 1, got {generation.max_tokens}.", param="max_tokens"
            )
        if not 0 <= generation.min_tokens <= generation.max_tokens:
            raise VllmApiError(
                f"min_tokens must be between 0 and max_tokens={generation.max_tokens}, "
                f"got {generation.min_tokens}.",
                param="min_tokens",
            )
        limit, tokens = self.max_model_len, generation.prompt_tokens
        advice = "Please reduce the length of the input prompt"
        if tokens >= limit:
            raise VllmApiError(
                f"This model's maximum context length is {limit} tokens. However, your prompt "
                f"contains at least {tokens} input tokens, which exceeds this limit even without "
                f"any output tokens. {advice}. (parameter=input_tokens, value={tokens})",
                param="input_tokens",
            )
        if tokens + generation.max_tokens > limit:
            raise VllmApiError(
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{generation.max_tokens} output tokens and your prompt contains at least "
                f"{tokens} input tokens, for a total of at least {tokens + generation.max_tokens} "
                f"tokens. {advice} or the number of requested output tokens. "
                f"(parameter=input_tokens, value={tokens})",
                param="input_tokens",
            )
        return generation

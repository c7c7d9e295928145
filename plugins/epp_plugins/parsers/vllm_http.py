"""``vllmhttp-parser``: reads vLLM requests with token ids, ``/inference/v1/generate``.

The prompt is the raw JSON of ``token_ids``, from which ``token-producer`` gets exact counts and
blocks. ``sampling_params.max_tokens``, ``stream`` and ``cache_salt`` are read, too. ``model`` is
optional, as in vLLM, and empty if missing; a rewrite replaces or adds it. The media of placeholder
ids (``features``) are not read.

Usage is the last ``usage`` of the response. vLLM sends it in streams only, and only if the request
asks for it (``stream_options.include_usage``).

Reads:  ``/inference/v1/generate``.
Writes: model, prompt, cache salt, stream and maximum output tokens of the request; the usage of its
        response.
Example::

    plugins:
      - type: vllmhttp-parser
    requestHandler:
      parsers:
        - pluginRef: vllmhttp-parser
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from epp.parsing.plugins import HttpCall, Parser, ResponseReader
from epp.scheduling import LLMRequest
from epp_plugins.parsers.json_bodies import ABSENT, Body, decoded, model_of, request_of, required
from epp_plugins.parsers.model_names import with_model
from epp_plugins.parsers.sampling import max_tokens_of
from epp_plugins.parsers.usage import OpenAiResponse, readable


class _Generate(Body):
    token_ids: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT


_decoder = msgspec.json.Decoder(_Generate)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``vllmhttp-parser``: none."""


class VllmHttpParser(Parser):
    """Reads requests to vLLM whose prompts are token ids."""

    type: ClassVar[str] = "vllmhttp-parser"
    claims: ClassVar[tuple[str, ...]] = ("/inference/v1/generate",)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def parse(self, call: HttpCall) -> LLMRequest:
        body = decoded(_decoder, call.body)
        return request_of(
            call,
            body,
            prompt=required(body.token_ids, "token_ids"),
            max_output_tokens=max_tokens_of(body.sampling_params),
            model=model_of(body.model, call, is_optional=True),
        )

    def rewrite(self, request: LLMRequest, body: bytes, model: str) -> bytes | None:
        return with_model(body, model)

    def response_reader(
        self, request: LLMRequest, headers: Mapping[str, str]
    ) -> ResponseReader | None:
        return OpenAiResponse() if readable(headers) else None

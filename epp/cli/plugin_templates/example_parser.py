"""``example-parser``: reads requests to a re-ranking API, ``/rerank``.

Reads:  ``/rerank``.
Writes: model and prompt of the request; the usage of its response.
Example::

    plugins:
      - type: file:example_parser.py:ExampleParser
    requestHandler:
      parsers:
        - pluginRef: file:example_parser.py:ExampleParser
        - pluginRef: openai-parser    # a list replaces the parsers that are there by default
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from epp.parsing.plugins import HttpCall, ParseError, Parser, ResponseReader, Usage
from epp.scheduling import LLMRequest

_LONGEST_RESPONSE = 1 << 20
"""The usage of longer responses is not read, which limits the memory."""


class _Body(msgspec.Struct):
    """The fields that scheduling needs; others are ignored."""

    model: str
    documents: msgspec.Raw


class _Counts(msgspec.Struct):
    prompt_tokens: int


class _Response(msgspec.Struct):
    usage: _Counts


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-parser``: none."""


class ExampleParser(Parser):
    """Reads requests to a re-ranking API."""

    type: ClassVar[str] = "example-parser"
    claims: ClassVar[tuple[str, ...]] = ("/rerank",)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def parse(self, call: HttpCall) -> LLMRequest:
        try:
            body = msgspec.json.decode(call.body, type=_Body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ParseError(f"this is no request to /rerank: {error}") from None
        return LLMRequest(
            request_id=call.request_id,
            target_model=body.model,
            model=body.model,
            path=call.path,
            headers=call.headers,
            prompt=bytes(body.documents),
            body_bytes=len(call.body),
        )

    def response_reader(
        self, request: LLMRequest, headers: Mapping[str, str]
    ) -> ResponseReader | None:
        return _WholeResponse()


class _WholeResponse:
    """Buffers a response until its end, and then reads the usage."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def feed(self, chunk: bytes) -> None:
        if len(self._kept) <= _LONGEST_RESPONSE:
            self._kept += chunk

    def usage(self) -> Usage | None:
        try:
            response = msgspec.json.decode(self._kept, type=_Response)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return Usage(prompt_tokens=response.usage.prompt_tokens)

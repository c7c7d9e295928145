"""``anthropic-parser``: reads requests of the Anthropic API: messages and token counting.

The prompt is the raw JSON of ``messages``. ``tools`` and ``system``, in this order, become the
request's tools, which precede the prompt: so both count as tokens, and requests with different
system prompts share no blocks of the prefix cache. ``stream`` and ``max_tokens`` are read, too. An
image counts as its JSON text.

Usage is that of the response, or of its events ``message_start`` and ``message_delta`` together,
where counts of the later event replace those of the earlier one. Prompt tokens are the sum of
``input_tokens``, ``cache_read_input_tokens`` (the cached ones) and ``cache_creation_input_tokens``,
because the first does not include tokens read from or written to the cache. ``count_tokens`` has no
usage.

Reads:  ``/messages`` and ``/messages/count_tokens``.
Writes: model, prompt, tools, stream and maximum output tokens of the request; the usage of its
        response.
Example::

    plugins:
      - type: anthropic-parser
    requestHandler:
      parsers:
        - pluginRef: anthropic-parser
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from epp.parsing.plugins import HttpCall, Parser, ResponseReader, Usage
from epp.scheduling import LLMRequest
from epp_plugins.parsers.json_bodies import (
    ABSENT,
    Body,
    decoded,
    optional,
    output_limit,
    request_of,
    required,
    tools_of,
)
from epp_plugins.parsers.model_names import with_model
from epp_plugins.parsers.usage import UsageScan, first_count, readable

_COUNT_TOKENS: Final = "/messages/count_tokens"


class _Messages(Body):
    messages: msgspec.Raw = ABSENT
    system: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    max_tokens: msgspec.Raw = ABSENT


_decoder = msgspec.json.Decoder(_Messages)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``anthropic-parser``: none."""


class AnthropicParser(Parser):
    """Reads requests of the Anthropic API."""

    type: ClassVar[str] = "anthropic-parser"
    claims: ClassVar[tuple[str, ...]] = ("/messages", _COUNT_TOKENS)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def parse(self, call: HttpCall) -> LLMRequest:
        body = decoded(_decoder, call.body)
        return request_of(
            call,
            body,
            prompt=required(body.messages, "messages"),
            tools=tools_of(body.tools) + optional(body.system),
            max_output_tokens=output_limit(len(call.body), body.max_tokens),
        )

    def rewrite(self, request: LLMRequest, body: bytes, model: str) -> bytes | None:
        return with_model(body, model)

    def response_reader(
        self, request: LLMRequest, headers: Mapping[str, str]
    ) -> ResponseReader | None:
        if request.path.partition("?")[0].endswith(_COUNT_TOKENS) or not readable(headers):
            return None
        return _Response(of_events="event-stream" in headers.get("content-type", "").lower())


class _Counts(msgspec.Struct):
    input_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    output_tokens: Any = None


_decode_counts = msgspec.json.Decoder(_Counts).decode


class _Response(UsageScan):
    __slots__ = ("_of_events",)

    def __init__(self, *, of_events: bool) -> None:
        super().__init__()
        self._of_events = of_events

    def usage(self) -> Usage | None:
        self.end()
        # The first one counts in events only: in a JSON body it may be an argument of a tool call.
        found = (self.last, self.first) if self._of_events else (self.last,)
        parts = [counts for each in found if (counts := _counts(each))]
        fresh = first_count(*(each.input_tokens for each in parts))
        output = first_count(*(each.output_tokens for each in parts))
        if fresh is None and output is None:
            return None
        read = first_count(*(each.cache_read_input_tokens for each in parts)) or 0
        written = first_count(*(each.cache_creation_input_tokens for each in parts)) or 0
        return Usage((fresh or 0) + read + written, output or 0, read)


def _counts(found: bytes) -> _Counts | None:
    try:
        return _decode_counts(found)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

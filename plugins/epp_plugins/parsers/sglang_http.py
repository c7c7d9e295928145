"""``sglanghttp-parser``: reads requests to SGLang's own API, ``/generate``.

The prompt is the raw JSON of ``input_ids``, from which ``token-producer`` gets exact counts and
blocks, otherwise that of ``text``; with ``input_embeds`` instead there is no prompt. ``stream``,
``sampling_params.max_new_tokens`` and ``extra_key`` (the cache salt) are read, too. Requests of
this API name no model, so the model is empty and the body is never rewritten. Other paths that end
with ``/generate`` are refused.

Usage is that of the response's last ``meta_info`` with a ``finish_reason``. For several prompts,
the last one counts. A ``meta_info`` of more than 64 KiB, which log probabilities can cause, is not
read.

Reads:  ``/generate``.
Writes: prompt, cache salt, stream and maximum output tokens of the request; the usage of its
        response.
Example::

    plugins:
      - type: sglanghttp-parser
    requestHandler:
      parsers:
        - pluginRef: sglanghttp-parser
"""

import json
from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from epp.parsing.plugins import HttpCall, ParseError, Parser, ResponseReader, Usage
from epp.scheduling import LLMRequest
from epp_plugins.parsers.json_bodies import ABSENT, Body, decoded, optional, request_of
from epp_plugins.parsers.sampling import max_tokens_of
from epp_plugins.parsers.usage import first_count, readable

_PATHS: Final = frozenset({"/generate", "/generate/"})


class _Generate(Body):
    input_ids: msgspec.Raw = ABSENT
    text: msgspec.Raw = ABSENT
    input_embeds: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT
    cache_salt: msgspec.Raw = msgspec.field(default=ABSENT, name="extra_key")


_decoder = msgspec.json.Decoder(_Generate)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``sglanghttp-parser``: none."""


class SglangHttpParser(Parser):
    """Reads requests to SGLang's own API."""

    type: ClassVar[str] = "sglanghttp-parser"
    claims: ClassVar[tuple[str, ...]] = ("/generate",)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def parse(self, call: HttpCall) -> LLMRequest:
        path = call.path.partition("?")[0]
        if path not in _PATHS:
            raise ParseError(f"the path {path!r} is not supported: SGLang has /generate")
        body = decoded(_decoder, call.body)
        prompt = optional(body.input_ids) or optional(body.text)
        if not prompt and not optional(body.input_embeds):
            raise ParseError(
                "the request body must have a field 'input_ids', 'text' or 'input_embeds'"
            )
        return request_of(
            call,
            body,
            prompt=prompt,
            max_output_tokens=max_tokens_of(body.sampling_params),
            model="",
        )

    def response_reader(
        self, request: LLMRequest, headers: Mapping[str, str]
    ) -> ResponseReader | None:
        return _Response() if readable(headers) else None


_KEY: Final = b'"meta_info"'
_MAX_KEPT_BYTES: Final = 64 * 1024
_decode_leading = json.JSONDecoder().raw_decode


class _Response:
    """Keeps the text after the last ``meta_info``: each event of a stream has a longer one."""

    __slots__ = ("_kept", "_tail")

    def __init__(self) -> None:
        self._kept: bytearray | None = None
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        data = self._tail + chunk if self._tail else chunk
        at = data.rfind(_KEY)
        if at >= 0:
            at += len(_KEY)
            self._kept = bytearray(data[at : at + _MAX_KEPT_BYTES])
        elif self._kept is not None:
            self._kept += chunk[: _MAX_KEPT_BYTES - len(self._kept)]
        # The key itself may be split; a part of it has only one quotation mark, the first.
        quote = data.rfind(b'"', 1 - len(_KEY))
        self._tail = data[quote:] if quote >= 0 and _KEY.startswith(data[quote:]) else b""

    def usage(self) -> Usage | None:
        if self._kept is None:
            return None
        # latin-1 takes all bytes, and no number has others than ASCII.
        colon, _, rest = self._kept.decode("latin-1").partition(":")
        try:
            info = _decode_leading(rest.lstrip(" \t\r\n"))[0]
        except (ValueError, RecursionError):
            return None
        if colon.strip(" \t\r\n") or not isinstance(info, dict):
            return None
        if info.get("finish_reason") is None:
            return None
        prompt = first_count(info.get("prompt_tokens"))
        completion = first_count(info.get("completion_tokens"))
        if prompt is None and completion is None:
            return None
        return Usage(prompt or 0, completion or 0, first_count(info.get("cached_tokens")) or 0)

"""``vllmgrpc-parser``: reads requests to vLLM's engine over gRPC, ``VllmEngine``.

``Generate`` and ``Embed`` are supported. The prompt is the list of token ids, converted to JSON for
``token-producer``, so that counts and blocks are exact; or the text, as a JSON string. Only the
first 1048576 ids are read. These messages name no model, so the model is empty and they are never
rewritten.

A message that is compressed (``grpc-encoding``) or has more than 4 MiB is not read: the request is
scheduled by load only, without a prompt. The media of placeholder ids (``mm_inputs``) are not read
either.

Usage is that of the response's last ``complete``, otherwise of its last ``chunk``; for ``Embed`` it
is ``prompt_tokens``. Compressed messages, and messages of more than 1 MiB that arrive in pieces,
are not read.

Reads:  ``/vllm.grpc.engine.VllmEngine/Generate`` and ``/Embed``.
Writes: prompt, stream and maximum output tokens of the request; the usage of its response.
Example::

    plugins:
      - type: vllmgrpc-parser
    requestHandler:
      parsers:
        - pluginRef: vllmgrpc-parser
"""

from collections.abc import Mapping
from typing import ClassVar, Final, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from epp.parsing.plugins import H2C, HttpCall, ParseError, Parser, ResponseReader, Usage
from epp.pb.vllm.grpc.engine.vllm_engine_pb2 import (
    EmbedRequest,
    EmbedResponse,
    GenerateRequest,
    GenerateResponse,
    TokenizedInput,
)
from epp.scheduling import LLMRequest
from epp_plugins.parsers.grpc_frames import GrpcFrames, message_of

_MAX_IDS: Final = 1024 * 1024
"""Limit of token ids read of a prompt: they take 50 ms, and no served model reads more."""

_MAX_MESSAGE_BYTES: Final = 4 << 20
"""Limit of a decoded message: an id of one byte takes four decoded, and twice that meanwhile."""

_EMBED: Final = "VllmEngine/Embed"
_COMPLETE: Final = 0x12
"""First byte of a complete response: field 2, length-delimited."""

_json = msgspec.json.encode

_Response = TypeVar("_Response", EmbedResponse, GenerateResponse)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``vllmgrpc-parser``: none."""


class VllmGrpcParser(Parser):
    """Reads requests to vLLM's gRPC engine."""

    type: ClassVar[str] = "vllmgrpc-parser"
    app_protocols: ClassVar[tuple[str, ...]] = (H2C,)
    claims: ClassVar[tuple[str, ...]] = ("VllmEngine/Generate", _EMBED)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def parse(self, call: HttpCall) -> LLMRequest:
        request = LLMRequest(
            request_id=call.request_id,
            target_model="",
            path=call.path,
            headers=call.headers,
            body_bytes=len(call.body),
        )
        message = message_of(call.body)
        if message is None or len(message) > _MAX_MESSAGE_BYTES:
            return request
        try:
            if _is_embed(call.path):
                embed = EmbedRequest.FromString(message)
                if not embed.HasField("tokenized"):
                    raise ParseError("the EmbedRequest must have `tokenized`")
                request.prompt = _ids(embed.tokenized)
                return request
            generate = GenerateRequest.FromString(message)
        except DecodeError:
            raise ParseError("the request body is no message that its path takes") from None
        if generate.HasField("tokenized"):
            request.prompt = _ids(generate.tokenized)
        elif generate.HasField("text"):
            request.prompt = _json(generate.text)
        else:
            raise ParseError("the GenerateRequest must have `tokenized` or `text`")
        request.stream = generate.stream
        if generate.sampling_params.HasField("max_tokens"):
            request.max_output_tokens = generate.sampling_params.max_tokens
        return request

    def response_reader(
        self, request: LLMRequest, headers: Mapping[str, str]
    ) -> ResponseReader | None:
        return _EmbedReader() if _is_embed(request.path) else _GenerateReader()


def _is_embed(path: str) -> bool:
    return path.partition("?")[0].endswith(_EMBED)


def _ids(tokens: TokenizedInput) -> bytes:
    return _json(tokens.input_ids[:_MAX_IDS])


class _EmbedReader:
    __slots__ = ("_frames", "_last")

    def __init__(self) -> None:
        self._frames = GrpcFrames()
        self._last = b""

    def feed(self, chunk: bytes) -> None:
        if messages := self._frames.messages(chunk):
            self._last = messages[-1]

    def usage(self) -> Usage | None:
        response = _read(EmbedResponse, self._last)
        return Usage(response.prompt_tokens) if response.prompt_tokens else None


class _GenerateReader:
    """Holds the last message of each kind; only those are decoded, and only at the end."""

    __slots__ = ("_chunk", "_complete", "_frames")

    def __init__(self) -> None:
        self._frames = GrpcFrames()
        self._chunk = b""
        self._complete = b""

    def feed(self, chunk: bytes) -> None:
        for message in self._frames.messages(chunk):
            if message[0] == _COMPLETE:
                self._complete = message
            else:
                self._chunk = message

    def usage(self) -> Usage | None:
        complete = _read(GenerateResponse, self._complete).complete
        chunk = _read(GenerateResponse, self._chunk).chunk
        for counts in (complete, chunk):
            if counts.prompt_tokens or counts.completion_tokens:
                return Usage(counts.prompt_tokens, counts.completion_tokens, counts.cached_tokens)
        return None


def _read(kind: type[_Response], message: bytes) -> _Response:
    try:
        return kind.FromString(message)
    except DecodeError:
        return kind()

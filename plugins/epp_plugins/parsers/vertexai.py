"""``vertexai-parser``: reads Vertex AI's ``PredictionService`` over gRPC, with OpenAI bodies.

The message is an envelope, ``http_body``, around JSON. That of ``ChatCompletions`` is read like
``/chat/completions`` by ``openai-parser``; that of ``RawPredict`` and ``StreamRawPredict`` like
``/responses``, otherwise like ``/chat/completions`` or ``/completions``. Path and body are never
rewritten.

A compressed message (``grpc-encoding``) is not read: the request is scheduled by load only, without
model and prompt.

Usage is the last ``usage`` in the bodies of the response. Compressed messages, and messages of more
than 1 MiB that arrive in pieces, are not read.

Reads:  ``PredictionService/ChatCompletions``, ``/RawPredict`` and ``/StreamRawPredict``, in any
        package.
Writes: the same as ``openai-parser``; the usage of the response.
Example::

    plugins:
      - type: vertexai-parser
    requestHandler:
      parsers:
        - pluginRef: vertexai-parser
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Final

import msgspec
from google.protobuf.message import DecodeError

from epp.parsing.plugins import H2C, HttpCall, ParseError, Parser, ResponseReader, Usage
from epp.pb.vertexai.prediction_pb2 import HttpBody, PredictRequest
from epp.scheduling import LLMRequest
from epp_plugins.parsers import openai
from epp_plugins.parsers.grpc_frames import GrpcFrames, message_of
from epp_plugins.parsers.usage import OpenAiResponse

_CHAT: Final = "/chat/completions"
_CHAT_COMPLETIONS: Final = "PredictionService/ChatCompletions"
_RAW: Final = ("/responses", _CHAT, "/completions")


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``vertexai-parser``: none."""


class VertexAiParser(Parser):
    """Reads OpenAI bodies in the envelope of Vertex AI."""

    type: ClassVar[str] = "vertexai-parser"
    app_protocols: ClassVar[tuple[str, ...]] = (H2C,)
    claims: ClassVar[tuple[str, ...]] = (
        _CHAT_COMPLETIONS,
        "PredictionService/RawPredict",
        "PredictionService/StreamRawPredict",
    )

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._openai = openai.OpenAiParser(name, openai.Params())

    def parse(self, call: HttpCall) -> LLMRequest:
        message = message_of(call.body)
        if message is None:
            return LLMRequest(
                request_id=call.request_id,
                target_model="",
                path=call.path,
                headers=call.headers,
                body_bytes=len(call.body),
            )
        try:
            envelope = PredictRequest.FromString(message)
        except DecodeError:
            raise ParseError("the request body is no message that its path takes") from None
        if not envelope.HasField("http_body"):
            raise ParseError("the request must have `http_body`")
        request = self._read(replace(call, body=envelope.http_body.data))
        request.body_bytes = len(call.body)
        return request

    def _read(self, call: HttpCall) -> LLMRequest:
        is_chat = call.path.partition("?")[0].endswith(_CHAT_COMPLETIONS)
        first: ParseError | None = None
        for call.claim in (_CHAT,) if is_chat else _RAW:
            try:
                return self._openai.parse(call)
            except ParseError as error:
                first = first or error
        assert first is not None, "at least one API was tried"  # noqa: S101
        raise first

    def response_reader(
        self, request: LLMRequest, headers: Mapping[str, str]
    ) -> ResponseReader | None:
        return _Response()


class _Response:
    __slots__ = ("_bodies", "_frames")

    def __init__(self) -> None:
        self._frames = GrpcFrames()
        self._bodies = OpenAiResponse()

    def feed(self, chunk: bytes) -> None:
        for message in self._frames.messages(chunk):
            try:
                body = HttpBody.FromString(message)
            except DecodeError:
                continue
            self._bodies.feed(body.data)

    def usage(self) -> Usage | None:
        return self._bodies.usage()

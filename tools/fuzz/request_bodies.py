"""Requests for every parser: each is parsed correctly or refused with a message.

Python's own ``json`` reads the whole document a second time and must find the same meaning.
"""

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import zstandard

from epp.ext_proc.processing_response import refused
from epp.parsing import BodyLimits, ParsedRequest, ParseError, Parser, RequestParser
from epp.request_control import BadRequestError
from epp.scheduling import CycleState, GuardRails, LLMRequest, NullObserver
from epp_plugins.data_producers.media_parts import MAX_MEDIA_TOKENS
from epp_plugins.data_producers.token import Params as TokenParams
from epp_plugins.data_producers.token import TokenProducer
from epp_plugins.parsers import (
    anthropic,
    openai,
    passthrough,
    sglang_http,
    vertexai,
    vllm_grpc,
    vllm_http,
)
from epp_plugins.state_keys import TOKENIZED_PROMPT
from tools.fuzz.json_text import JsonText
from tools.fuzz.tape import Tape

PARSERS: tuple[Parser, ...] = (
    openai.OpenAiParser("openai", openai.Params()),
    anthropic.AnthropicParser("anthropic", anthropic.Params()),
    vllm_http.VllmHttpParser("vllm-http", vllm_http.Params()),
    sglang_http.SglangHttpParser("sglang", sglang_http.Params()),
    vllm_grpc.VllmGrpcParser("vllm-grpc", vllm_grpc.Params()),
    vertexai.VertexAiParser("vertex", vertexai.Params()),
    passthrough.PassthroughParser("passthrough", passthrough.Params()),
)
_GRPC = "grpc"
PATHS: tuple[str, ...] = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/conversations",
    "/v1/images/generations",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/inference/v1/generate",
    "/generate",
    f"/vllm.{_GRPC}.engine.VllmEngine/Generate",
    f"/vllm.{_GRPC}.engine.VllmEngine/Embed",
    f"/{_GRPC}.PredictionService/ChatCompletions",
    f"/{_GRPC}.PredictionService/RawPredict",
    "/v1/completions/render?x=/v1/messages",
    "/v1/generate",
    "/upload",
    "",
)
ENCODINGS = ("", "gzip", "zstd", "identity", "x-gzip", "br", " GZip ")
MAX_BODY_BYTES = 20_000
_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "x-gzip": gzip.compress,
}
_FIELDS: Mapping[str, str] = {
    "/v1/completions": "prompt",
    "/v1/chat/completions": "messages",
    "/v1/embeddings": "input",
    "/v1/images/generations": "prompt",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
    "/inference/v1/generate": "token_ids",
}
"""Name of the field with the prompt, by path."""
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def _raw(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the values of ``body`` unparsed; lone surrogates are U+FFFD, as in a rewritten key."""
    return _decode_raw(_HALF_PAIR.sub(rb"\\ufffd", body))


_is_ambiguous = re.compile(rb"\\|[0-9.][eE]|[0-9]{19}|[^\x20-\x7e\s]").search
"""Escapes, and numbers that some readers accept and others do not."""


_request_parser = RequestParser.of(
    PARSERS, GuardRails(observer=NullObserver(), disable_after=1 << 30)
)
_tokens = TokenProducer("tokens", TokenParams())


def check_request(path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | None:
    """Read a request as the director does; None if it is refused."""
    all_headers = {":path": path, **headers}
    try:
        reading = _request_parser.parse(
            "r-1",
            all_headers,
            body,
            may_lack_model="x-model" in headers,
            limits=BodyLimits(MAX_BODY_BYTES),
        )
    except ParseError as error:
        _check_refusal(str(error), path)
        return None
    _check_fields(reading.request)
    _check_meaning(path, reading)
    _check_rewritten(reading)
    _check_tokens(reading.request)
    return reading


def _check_refusal(text: str, path: str) -> None:
    """Check that a refusal can be sent to the client, and does not repeat much of its input."""
    assert len(refused(BadRequestError(text), "r-1")) < 2000 + 10 * len(path)


def _check_fields(request: LLMRequest) -> None:
    assert isinstance(request.model, str)
    assert isinstance(request.prompt, bytes)
    assert isinstance(request.tools, bytes)
    assert isinstance(request.cache_salt, str)
    assert isinstance(request.stream, bool)
    limit = request.max_output_tokens
    assert limit is None or (type(limit) is int and abs(limit) < 1 << 63)


def _check_meaning(path: str, reading: ParsedRequest) -> None:
    field = _FIELDS.get(path)
    if field is None or reading.parser is None or _is_ambiguous(reading.body):
        return
    meant = json.loads(reading.body)
    model = meant.get("model")
    assert reading.request.model == (model if isinstance(model, str) else "")
    assert json.loads(reading.request.prompt) == meant[field]
    assert reading.request.stream is (meant.get("stream") is True)


def _check_rewritten(reading: ParsedRequest) -> None:
    try:
        body = reading.rewrite('n"ew')
    except ParseError:
        return
    if body is not None:
        assert _raw(body) == _raw(reading.body) | {"model": msgspec.Raw(b'"n\\"ew"')}


def _check_tokens(request: LLMRequest) -> None:
    state = CycleState()
    _tokens.prepare(request, state)
    found = state.read(TOKENIZED_PROMPT)
    if found is None:
        assert not request.prompt
        return
    assert found.count == -(-len(found.data) // 4)
    at = 0
    for feature in found.features:
        assert feature.offset >= at
        assert feature.length > 0
        at = feature.offset + feature.length
    assert at <= found.count
    assert sum(each.length for each in found.features) <= MAX_MEDIA_TOKENS + len(found.features)


# --- from an input ----------------------------------------------------------------------------


def raw_request(tape: Tape) -> None:
    """Check a request whose path and encoding are numbers on the tape; the rest is the body."""
    path, encoding = tape.choice(PATHS), tape.choice(ENCODINGS)
    how = tape.number(4)
    body = tape.rest()
    if _GRPC in path and how & 1:
        body = framed(body)
    if encode := _ENCODERS.get(encoding) if how & 2 else None:
        body = encode(body)
    check_request(path, _headers(encoding), body)


def built_request(tape: Tape) -> None:
    """Check a body with the fields that its path requires, and random others."""
    path = tape.choice(PATHS)
    text = JsonText(tape)
    fields = [("model", b'"m"')] if tape.flip(4) else []
    if field := _FIELDS.get(path):
        fields.append((field, media_messages(tape, text) if tape.flip() else text.value(1)))
    body = text.object(0, *fields)
    if _GRPC in path:
        body = framed(_field(2, _field(2, body)) if "Predict" in path else body)
    encoding = tape.choice(ENCODINGS) if tape.flip(4) else ""
    encode = _ENCODERS.get(encoding)
    headers = _headers(encoding) | ({"x-model": "y"} if tape.flip() else {})
    sent = encode(body) if encode else body
    reading = check_request(path, headers, sent)
    if reading is not None and encode and reading.parser is not None and path in _FIELDS:
        assert reading.body == body


def media_messages(tape: Tape, text: JsonText) -> bytes:
    """Return messages with pictures, videos and sounds."""
    parts: list[bytes] = []
    for _ in range(tape.number(4)):
        kind = tape.choice(("image_url", "video_url", "audio_url", "input_audio", "text"))
        content: Any = {"url": "data:image/jpeg;base64," + b64encode(tape.take(60)).decode()}
        if kind == "input_audio":
            content = {"data": "UklGRg==", "format": "wav"}
        parts.append(json.dumps({"type": kind, kind: content}).encode())
        if tape.flip(4):
            parts.append(text.value(2))
    return b'[{"role":"user","content":[' + b",".join(parts) + b"]}]"


def _headers(encoding: str) -> dict[str, str]:
    return {"content-encoding": encoding} if encoding else {}


def framed(message: bytes) -> bytes:
    """Return ``message`` with the prefix of gRPC."""
    return b"\0" + len(message).to_bytes(4) + message


def _field(number: int, value: bytes) -> bytes:
    size, digits = len(value), bytearray()
    while size > 0x7F:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number * 8 + 2, *digits, size)) + value

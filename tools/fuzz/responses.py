"""Responses of model servers: results must not depend on how a response is split into chunks.

Readers and :class:`ModelNames` parse pieces as they pass and keep little; this module reads the
whole document with Python's own ``json``, and must find the same.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from epp.ext_proc.model_names import ModelNames
from epp.parsing.plugins import ResponseReader, Usage
from epp.pb.vertexai.prediction_pb2 import HttpBody
from epp.pb.vllm.grpc.engine.vllm_engine_pb2 import EmbedResponse, GenerateResponse
from epp.testing import make_request
from epp_plugins.parsers.grpc_frames import GrpcFrames
from epp_plugins.parsers.usage import OpenAiResponse
from tools.fuzz.json_text import JsonText
from tools.fuzz.request_bodies import PARSERS, framed
from tools.fuzz.tape import Tape

SERVED, ASKED = "served", "asked"
KINDS = ("application/json", "text/event-stream", "application/grpc", "")
PATHS = (
    "/v1/completions",
    "/v1/messages",
    "/inference/v1/generate",
    "/generate",
    "/vllm.grpc.engine.VllmEngine/Generate",
    "/vllm.grpc.engine.VllmEngine/Embed",
    "/x.PredictionService/ChatCompletions",
)
_MAX_COUNT = 1 << 63
_ON_THE_WAY = ("response", "message", "choices")
_is_ambiguous = re.compile(rb"\\|[0-9.][eE]|[0-9]{19}|[^\x20-\x7e\s]").search

Pairs = list[tuple[str, Any]]
"""Keys and values of an object, in order."""


class _Object:
    """An object of JSON, whose keys may repeat."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs


def _pairs(text: bytes) -> Any:
    """Parse JSON, with all keys of each object, even repeated ones; None if it is invalid."""
    try:
        return json.loads(text, object_pairs_hook=_Object, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> None:
    raise ValueError(name)


# --- usage ------------------------------------------------------------------------------------


def check_reader(reader_of: str, kind: str, pieces: Sequence[bytes]) -> Usage | None:
    """Check that a response gives the same usage whole and in ``pieces``; return it."""
    parser = next(p for p in PARSERS if any(map(reader_of.endswith, p.claims)))
    request = make_request(path=reader_of)
    found = []
    for cut in ([b"".join(pieces)], pieces):
        reader = parser.response_reader(request, {"content-type": kind} if kind else {})
        if reader is None:
            return None
        found.append(_read(reader, cut))
    whole, in_pieces = found
    assert whole == in_pieces
    if whole is not None:
        counts = (whole.prompt_tokens, whole.completion_tokens, whole.cached_tokens)
        assert all(0 <= count < _MAX_COUNT for count in counts), counts
    return whole


def _read(reader: ResponseReader, pieces: Sequence[bytes]) -> Usage | None:
    for piece in pieces:
        reader.feed(piece)
    return reader.usage()


def check_usage(document: bytes) -> None:
    """Compare the usage that the reader finds in an OpenAI document with that of a full parse."""
    if _is_ambiguous(document) or (parsed := _pairs(document)) is None:
        return
    *_, last = (None, *_usages(parsed))
    assert _read(OpenAiResponse(), [document]) == (None if last is None else _counted(last))


def _usages(value: Any) -> Iterator[_Object]:
    """Yield the objects under ``usage`` that have a token count, but none within another."""
    for key, inner in value.pairs if isinstance(value, _Object) else []:
        if key == "usage" and isinstance(inner, _Object):
            if any(text.endswith("_tokens") for text in _texts(inner)):
                yield inner
        else:
            yield from _usages(inner)
    for inner in value if isinstance(value, list) else []:
        yield from _usages(inner)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for key, inner in value.pairs if isinstance(value, _Object) else []:
        yield key
        yield from _texts(inner)
    for inner in value if isinstance(value, list) else []:
        yield from _texts(inner)


def _counted(usage: _Object) -> Usage | None:
    counts = dict(usage.pairs)
    prompt = _first(counts, "prompt_tokens", "input_tokens")
    completion = _first(counts, "completion_tokens", "output_tokens")
    if prompt is None and completion is None:
        return None
    details = counts.get("prompt_tokens_details")
    if not details or (isinstance(details, _Object) and not details.pairs):
        details = counts.get("input_tokens_details")
    cached = _first(dict(details.pairs), "cached_tokens") if isinstance(details, _Object) else None
    return Usage(prompt or 0, completion or 0, cached or 0)


def _first(counts: dict[str, Any], *names: str) -> int | None:
    values = [counts.get(name) for name in names]
    return next((v for v in values if type(v) is int and 0 <= v < _MAX_COUNT), None)


# --- the model's name -------------------------------------------------------------------------


def check_names(pieces: Sequence[bytes], *, is_event_stream: bool) -> bytes:
    """Check that restoring the model's name gives the same response whole and in ``pieces``."""
    document = b"".join(pieces)
    whole = ModelNames(SERVED, ASKED, is_event_stream=is_event_stream).feed(document, is_last=True)
    names = ModelNames(SERVED, ASKED, is_event_stream=is_event_stream)
    passed = b"".join([*(names.feed(each, is_last=False) for each in pieces), names.flush()])
    assert passed == whole
    if not is_event_stream:
        _check_renamed(document, whole)
    return whole


def _check_renamed(document: bytes, passed: bytes) -> None:
    if b"\\u" in document or b"\xff" in document or (parsed := _pairs(document)) is None:
        return
    name = _name_of(parsed, may_name=True)
    if name is not None and name[0].pairs[name[1]][1] == SERVED:
        owner, at = name
        owner.pairs[at] = ("model", ASKED)
    got = _pairs(passed)
    assert json.dumps(parsed, default=_plain) == json.dumps(got, default=_plain)


def _name_of(value: Any, *, may_name: bool) -> tuple[_Object, int] | None:
    """Return the first object that names the model, and the index of that pair."""
    if isinstance(value, _Object):
        for at, (key, inner) in enumerate(value.pairs):
            if key == "model" and may_name:
                return value, at
            if found := _name_of(inner, may_name=may_name and key in _ON_THE_WAY):
                return found
    for inner in value if isinstance(value, list) else []:
        if found := _name_of(inner, may_name=may_name):
            return found
    return None


def _plain(value: _Object) -> list[Any]:
    return ["object", *value.pairs]


# --- messages of gRPC -------------------------------------------------------------------------


def check_frames(pieces: Sequence[bytes]) -> None:
    """Compare the messages found in ``pieces`` with those of the whole body."""
    body, at, expected = b"".join(pieces), 0, []
    while at + 5 <= len(body):
        end = at + 5 + int.from_bytes(body[at + 1 : at + 5])
        if end <= len(body) and end > at + 5 and not body[at]:
            expected.append(body[at + 5 : end])
        at = end
    frames = GrpcFrames()
    assert [found for piece in pieces for found in frames.messages(piece)] == expected


# --- from an input ----------------------------------------------------------------------------


def raw_response(tape: Tape) -> None:
    """Check a response whose path, type and cuts are numbers on the tape; the rest is the body."""
    path, kind = tape.choice(PATHS), tape.choice(KINDS)
    cuts = Tape(tape.take(8))
    body = tape.rest()
    pieces = cuts.cuts(body)
    check_reader(path, kind, pieces)
    check_usage(body)
    check_names(pieces, is_event_stream="event" in kind)
    check_frames(pieces)


def built_response(tape: Tape) -> None:
    """Check a response of documents as model servers write them, with random parts."""
    path, kind = tape.choice(PATHS), tape.choice(KINDS)
    text = JsonText(tape, breaks=0 if tape.flip() else 30)
    documents = [_document(tape, text) for _ in range(1 + tape.number(4))]
    for document in documents:
        check_usage(document)
    if "Engine" in path or "Prediction" in path:
        body = b"".join(framed(_message(tape, path, each)) for each in documents)
    elif "event" in kind:
        ends = (b"\n\n", b"\r\n\r\n", b"\n", b"")
        body = b"".join(b"data: " + each + tape.choice(ends) for each in documents)
    else:
        body = documents[0]
    pieces = tape.cuts(body)
    check_reader(path, kind, pieces)
    check_names(pieces, is_event_stream="event" in kind)
    check_frames(pieces)


def _message(tape: Tape, path: str, document: bytes) -> bytes:
    """Return a gRPC message that contains ``document``, or counts of its own."""
    count = tape.number(1000)
    if "Prediction" in path:
        message = HttpBody(data=document).SerializeToString()
    elif "Embed" in path:
        message = EmbedResponse(prompt_tokens=count).SerializeToString()
    else:
        response = GenerateResponse()
        counts = response.complete if tape.flip() else response.chunk
        counts.prompt_tokens = count
        message = response.SerializeToString()
    return message[: tape.number(len(message) + 1)] if tape.flip(8) else message


def _document(tape: Tape, text: JsonText) -> bytes:
    fields = []
    if tape.flip():
        fields.append(("model", b'"served"' if tape.flip() else text.value(3)))
    if tape.flip():
        fields.append(("usage", text.object(4, _count(tape))))
    if tape.flip(4):
        fields.append((tape.choice(_ON_THE_WAY), text.object(1, ("model", b'"served"'))))
    if tape.flip(4):
        info = text.object(3, ("finish_reason", b'"stop"'), _count(tape))
        fields.append(("meta_info", info))
    return text.object(0, *fields)


def _count(tape: Tape) -> tuple[str, bytes]:
    return "prompt_tokens", str(tape.number(99)).encode()

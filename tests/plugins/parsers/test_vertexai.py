"""OpenAI bodies in the envelope of Vertex AI: valid, unusual and hostile.

Field numbers are written out: ``http_body`` is 2 in a request, ``data`` is 2 in an HttpBody.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_checks import make_call, odd_objects, request_or_refusal, usage_of, usages_by_cut

from epp.parsing.plugins import ParseError, ResponseReader, Usage
from epp.scheduling import LLMRequest
from epp.testing import make_request
from epp_plugins.parsers.vertexai import Params, VertexAiParser

PARSER = VertexAiParser("vertex", Params())
SERVICE = "/google.cloud.aiplatform.v1beta1.PredictionService/"
CHAT = SERVICE + "ChatCompletions"
RAW = SERVICE + "RawPredict"
STREAM_RAW = SERVICE + "StreamRawPredict"
ENDPOINT = b"\x0a\x0aprojects/p"
TYPE = b"\x0a\x10application/json"


def frame(message: bytes, *, compressed: bool = False) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4) + message


def field(number: int, value: bytes) -> bytes:
    size = len(value)
    digits = bytearray()
    while size > 0x7F:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number * 8 + 2, *digits, size]) + value


def http_body(data: bytes) -> bytes:
    return TYPE + field(2, data)


def enveloped(data: bytes) -> bytes:
    return frame(ENDPOINT + field(2, http_body(data)))


def parsed(body: bytes, path: str = CHAT) -> LLMRequest:
    return PARSER.parse(make_call(PARSER, body, path=path))


def reader() -> ResponseReader | None:
    return PARSER.response_reader(make_request(path=CHAT), {"content-type": "application/grpc"})


@pytest.mark.parametrize(
    ("path", "body", "prompt", "limit"),
    [
        pytest.param(
            CHAT,
            b'{"model":"m","messages":[{"role":"user"}],"max_tokens":9,"stream":true}',
            b'[{"role":"user"}]',
            9,
            id="a chat",
        ),
        pytest.param(
            RAW, b'{"model":"m","input":"Hi","stream":true}', b'"Hi"', None, id="the responses API"
        ),
        pytest.param(
            STREAM_RAW,
            b'{"model":"m","input":"Hi","max_output_tokens":9,"stream":true}',
            b'"Hi"',
            9,
            id="the responses API, streaming",
        ),
        pytest.param(
            RAW,
            b'{"model":"m","messages":[],"stream":true,"max_completion_tokens":8}',
            b"[]",
            8,
            id="a raw chat",
        ),
        pytest.param(
            STREAM_RAW,
            b'{"model":"m","prompt":[1,2],"stream":true}',
            b"[1,2]",
            None,
            id="raw token ids",
        ),
    ],
)
def test_a_request_is_read(path: str, body: bytes, prompt: bytes, limit: int | None) -> None:
    request = parsed(enveloped(body), path)
    assert (request.model, request.target_model, request.path) == ("m", "m", path)
    assert (request.prompt, request.stream, request.max_output_tokens) == (prompt, True, limit)
    assert request.body_bytes == len(enveloped(body))


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        pytest.param(CHAT, b"{}", "not a gRPC message: it has 2 bytes", id="no frame"),
        pytest.param(CHAT, frame(ENDPOINT), "must have `http_body`", id="no body"),
        pytest.param(CHAT, frame(b"\x12\x7f"), "no message that its path takes", id="cut off"),
        pytest.param(CHAT, frame(b"\x12\x00"), "JSON object", id="nothing in the body"),
        pytest.param(CHAT, enveloped(b"[1]"), "JSON object", id="no object"),
        pytest.param(CHAT, enveloped(b'{"model":"m","input":""}'), "'messages'", id="no messages"),
        pytest.param(CHAT, enveloped(b'{"messages":[]}'), "model not found", id="no model"),
        pytest.param(
            RAW,
            enveloped(b'{"model":"m","instances":[]}'),
            "'input'",
            id="an API that is not known",
        ),
    ],
)
def test_what_is_no_request_is_refused(path: str, body: bytes, text: str) -> None:
    with pytest.raises(ParseError, match=text):
        parsed(body, path)


def test_the_model_may_be_left_out_where_something_else_names_it() -> None:
    call = make_call(PARSER, enveloped(b'{"messages":[]}'), path=CHAT, may_lack_model=True)
    assert PARSER.parse(call).model == ""


def test_a_compressed_message_is_scheduled_on_load_alone() -> None:
    request = parsed(frame(b"\x1f\x8b\x08", compressed=True))
    assert (request.model, request.prompt, request.path, request.body_bytes) == ("", b"", CHAT, 8)


def test_nothing_is_rewritten() -> None:
    body = enveloped(b'{"model":"m","messages":[]}')
    assert PARSER.rewrite(parsed(body), body, "n") is None


WHOLE = (
    b'{"id":"c","choices":[{"message":{"content":"Hi"}}],"usage":{"prompt_tokens":7,'
    b'"completion_tokens":10,"total_tokens":17,"prompt_tokens_details":{"cached_tokens":3}}}'
)
EVENT = b'data: {"choices":[{"delta":{"content":"H"}}],"usage":null}\n\n'
LAST = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":10}}\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize(
    ("response", "want"),
    [
        pytest.param(frame(http_body(WHOLE)), Usage(7, 10, 3), id="one body"),
        pytest.param(
            frame(http_body(EVENT)) + frame(http_body(EVENT + LAST)), Usage(7, 10), id="events"
        ),
        pytest.param(
            frame(http_body(LAST[:40])) + frame(http_body(LAST[40:])),
            Usage(7, 10),
            id="an event in two messages",
        ),
        pytest.param(frame(http_body(EVENT)), None, id="no usage"),
        pytest.param(frame(http_body(WHOLE), compressed=True), None, id="compressed"),
        pytest.param(
            frame(b"\x12\x7f") + frame(http_body(LAST)), Usage(7, 10), id="no message first"
        ),
    ],
)
def test_usage_wherever_the_response_is_cut(response: bytes, want: Usage | None) -> None:
    assert usages_by_cut(reader, response) == {want}


@given(
    st.binary(max_size=60)
    | st.binary(max_size=60).map(frame)
    | odd_objects(("model", "messages", "input", "prompt", "stream", "max_tokens")).map(enveloped),
    st.sampled_from([CHAT, RAW, STREAM_RAW]),
)
def test_no_body_does_more_than_be_refused(body: bytes, path: str) -> None:
    request = request_or_refusal(PARSER, body, path=path)
    assert request is None or request.path == path


@given(
    st.lists(st.binary(max_size=20) | st.sampled_from([frame(http_body(WHOLE)), http_body(LAST)]))
)
def test_no_response_is_too_odd(pieces: list[bytes]) -> None:
    assert usage_of(reader(), *pieces) in (None, Usage(7, 10, 3), Usage(7, 10))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            enveloped(b'{"model":"m","input":"' + b"x" * 8_000_000 + b'"}'), id="a long text"
        ),
        pytest.param(enveloped(b'{"model":"m","x":[' + b"0," * 4_000_000 + b"0]}"), id="no prompt"),
        pytest.param(frame(b"\x12\x00" * 4_000_000), id="the same field again and again"),
    ],
)
def test_8_mb_are_read_in_linear_time(body: bytes) -> None:
    """About 100 ms at most; were it quadratic, minutes: the time limit of a test would end it."""
    request_or_refusal(PARSER, body, path=RAW)

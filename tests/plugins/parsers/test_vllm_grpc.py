"""Requests to vLLM's gRPC engine and its responses: valid, unusual and hostile.

Field numbers are written out as bytes, as the engine's declaration has them: a tag is the number
times 8, plus 2 for what has a length, plus 0 for a number.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_checks import make_call, request_or_refusal, usage_of, usages_by_cut

from epp.parsing.plugins import ParseError, ResponseReader, Usage
from epp.pb.vllm.grpc.engine import vllm_engine_pb2 as engine
from epp.scheduling import CycleState, LLMRequest
from epp.testing import make_request
from epp_plugins.data_producers import token
from epp_plugins.parsers.vllm_grpc import Params, VllmGrpcParser
from epp_plugins.state_keys import TOKENIZED_PROMPT

PARSER = VllmGrpcParser("vllm", Params())
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
EMBED = "/vllm.grpc.engine.VllmEngine/Embed"


def frame(message: bytes, *, compressed: bool = False) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4) + message


def parsed(message: bytes, path: str = GENERATE) -> LLMRequest:
    return PARSER.parse(make_call(PARSER, frame(message), path=path))


def reader(path: str = GENERATE) -> ResponseReader | None:
    return PARSER.response_reader(make_request(path=path), {"content-type": "application/grpc"})


REQUEST_ID = b"\x0a\x03r-1"
IDS = b"\x12\x08\x0a\x02hi\x12\x02\x01\x07"  # tokenized: original_text, input_ids
TEXT = b'\x1a\x05say "'


@pytest.mark.parametrize(
    ("message", "prompt", "stream", "limit"),
    [
        pytest.param(
            REQUEST_ID + IDS + b"\x28\x01", b"[1,7]", True, None, id="token ids, streaming"
        ),
        pytest.param(b"\x12\x04\x10\x01\x10\x07", b"[1,7]", False, None, id="ids one by one"),
        # temperature (1) is 1.0, max_tokens (8) is 128
        pytest.param(
            IDS + b"\x22\x08\x0d\x00\x00\x80\x3f\x40\x80\x01", b"[1,7]", False, 128, id="a limit"
        ),
        pytest.param(IDS + b"\x22\x02\x40\x00", b"[1,7]", False, 0, id="a limit of 0"),
        pytest.param(TEXT, rb'"say \""', False, None, id="text becomes a string of JSON"),
        pytest.param(b"\x1a\x02\xc3\xa9", '"é"'.encode(), False, None, id="unicode"),
        pytest.param(b"\x12\x00", b"[]", False, None, id="no ids in the list"),
        pytest.param(IDS + b"\x3a\x04\x2a\x02\x10\x02", b"[1,7]", False, None, id="media"),
        pytest.param(IDS + b"\xfa\x07\x01x", b"[1,7]", False, None, id="an unknown field"),
    ],
)
def test_a_generate_is_read(message: bytes, prompt: bytes, stream: bool, limit: int | None) -> None:
    request = parsed(message)
    assert (request.model, request.target_model, request.path) == ("", "", GENERATE)
    assert (request.prompt, request.stream, request.max_output_tokens) == (prompt, stream, limit)
    assert request.body_bytes == len(message) + 5


def test_an_embed_is_read() -> None:
    request = parsed(REQUEST_ID + IDS, EMBED)
    assert (request.prompt, request.stream, request.max_output_tokens) == (b"[1,7]", False, None)


@pytest.mark.parametrize(
    ("message", "path", "text"),
    [
        pytest.param(REQUEST_ID, GENERATE, "must have `tokenized` or `text`", id="no input"),
        pytest.param(TEXT, EMBED, "must have `tokenized`", id="text to embed"),
        pytest.param(b"\x12\x7f", GENERATE, "no message that its path takes", id="cut off"),
        pytest.param(b"\x12\x02\x12\x09", EMBED, "no message that its path takes", id="cut inside"),
        pytest.param(b"\x1a\x01\xff", GENERATE, "no message that its path takes", id="no UTF-8"),
        pytest.param(
            b"\x23" * 999, GENERATE, "no message that its path takes", id="groups in groups"
        ),
    ],
)
def test_what_is_no_request_is_refused(message: bytes, path: str, text: str) -> None:
    with pytest.raises(ParseError, match=text):
        parsed(message, path)


def test_a_body_that_is_no_frame_is_refused() -> None:
    with pytest.raises(ParseError, match="not a gRPC message: it has 4 bytes"):
        PARSER.parse(make_call(PARSER, b"body", path=GENERATE))


def test_a_compressed_message_is_scheduled_on_load_alone() -> None:
    body = frame(b"\x1f\x8b\x08", compressed=True)
    request = PARSER.parse(make_call(PARSER, body, path=GENERATE))
    assert (request.model, request.prompt, request.body_bytes) == ("", b"", 8)


def test_nothing_is_rewritten() -> None:
    assert PARSER.rewrite(parsed(IDS), frame(IDS), "n") is None


def test_the_ids_are_counted_exactly() -> None:
    state = CycleState()
    producer = token.TokenProducer("tokens", token.Params())
    producer.prepare(parsed(IDS), state)
    prompt = state.read(TOKENIZED_PROMPT)
    assert prompt is not None
    assert (prompt.count, prompt.data) == (2, bytes.fromhex("01000000 07000000"))


def test_of_a_prompt_longer_than_any_model_reads_the_beginning_counts() -> None:
    ids = b"\x01" * (1024 * 1024 + 5)
    request = parsed(engine.GenerateRequest(tokenized={"input_ids": ids}).SerializeToString())
    assert len(request.prompt) == 2 * 1024 * 1024 + 1  # "[", then an id and "," or "]" each


@pytest.mark.parametrize(("fill", "is_read"), [(0, True), (1, False)])
def test_a_message_of_more_than_4_mib_is_scheduled_on_load_alone(fill: int, is_read: bool) -> None:
    message = engine.GenerateRequest(text="x", stream=True).SerializeToString()
    # An unknown field (15) for the rest: its head takes five bytes.
    rest = 4 * 1024 * 1024 - len(message) - 5 + fill
    message += bytes((0x7A, *(rest >> 7 * place & 0x7F | (place < 3) << 7 for place in range(4))))
    request = parsed(message + bytes(rest))
    assert (request.prompt == b'"x"') is is_read
    assert request.stream is is_read
    assert request.body_bytes == 5 + 4 * 1024 * 1024 + fill


def chunk(prompt: int, completion: int) -> bytes:
    # token_ids (1), prompt_tokens (2), completion_tokens (3), cached_tokens (4)
    return frame(b"\x0a\x0a\x0a\x02\x05\x06\x10%c\x18%c\x20\x02" % (prompt, completion))


# output_ids (1), finish_reason (2), prompt_tokens (3), completion_tokens (4), cached_tokens (5)
COMPLETE = frame(b"\x12\x10\x0a\x02\x05\x06\x12\x04stop\x18\x07\x20\x0a\x28\x03")


@pytest.mark.parametrize(
    ("response", "want"),
    [
        pytest.param(COMPLETE, Usage(7, 10, 3), id="complete at once"),
        pytest.param(
            chunk(7, 1) + chunk(7, 2) + COMPLETE, Usage(7, 10, 3), id="chunks, then complete"
        ),
        pytest.param(chunk(7, 1) + chunk(7, 2), Usage(7, 2, 2), id="given up early"),
        pytest.param(
            chunk(7, 2) + frame(b"\x12\x00"), Usage(7, 2, 2), id="complete without counts"
        ),
        pytest.param(frame(b"\x0a\x04\x0a\x02\x05\x06"), None, id="no counts at all"),
        pytest.param(frame(COMPLETE[5:], compressed=True), None, id="compressed"),
        pytest.param(frame(b"\x12\x7f\x18\x07"), None, id="no message"),
        pytest.param(COMPLETE[:-1], None, id="cut off"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(b"no healthy upstream", None, id="a gateway's own words"),
    ],
)
def test_usage_of_a_generate_wherever_it_is_cut(response: bytes, want: Usage | None) -> None:
    assert usages_by_cut(reader, response) == {want}


@pytest.mark.parametrize(
    ("response", "want"),
    [
        # embedding (1) with one float, prompt_tokens (2), embedding_dim (3)
        pytest.param(frame(b"\x0a\x04\x00\x00\x80\x3f\x10\x07\x18\x01"), Usage(7), id="plain"),
        pytest.param(frame(b"\x0a\x04\x00\x00\x80\x3f"), None, id="no counts"),
        pytest.param(frame(b"\x0a\x7f\x00"), None, id="no message"),
    ],
)
def test_usage_of_an_embed_wherever_it_is_cut(response: bytes, want: Usage | None) -> None:
    assert usages_by_cut(lambda: reader(EMBED), response) == {want}


@given(st.binary(max_size=60), st.sampled_from([GENERATE, EMBED]), st.booleans())
def test_no_body_does_more_than_be_refused(body: bytes, path: str, framed: bool) -> None:
    request = request_or_refusal(PARSER, frame(body) if framed else body, path=path)
    assert request is None or request.model == ""


@given(st.lists(st.binary(max_size=20) | st.sampled_from([COMPLETE, chunk(7, 1)])))
def test_no_response_is_too_odd(pieces: list[bytes]) -> None:
    for path in (GENERATE, EMBED):
        usage = usage_of(reader(path), *pieces)
        assert usage is None or usage.prompt_tokens or usage.completion_tokens


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(
            engine.GenerateRequest(
                tokenized={"input_ids": b"\x01" * 4_000_000}
            ).SerializeToString(),
            id="many ids",
        ),
        pytest.param(
            engine.GenerateRequest(text="x" * 4_000_000).SerializeToString(), id="a long text"
        ),
        pytest.param(b"\x12\x00" * 2_000_000, id="the same field again and again"),
        pytest.param(b"\x12\x00\x1a\x00" * 1_000_000, id="one input, then the other"),
        pytest.param(b"\x78\x01" * 2_000_000, id="unknown fields"),
    ],
)
def test_4_mb_are_read_in_linear_time(message: bytes) -> None:
    """About 50 ms at most; were it quadratic, minutes: the time limit of a test would end it."""
    request_or_refusal(PARSER, frame(message), path=GENERATE)

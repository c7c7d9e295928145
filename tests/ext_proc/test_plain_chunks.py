"""Chunks that differ only in their bytes take a fast path with the same result.

The same chunks go through two streams: through one as Envoy sends them, through the other with a
field that Envoy leaves out (``end_of_stream: false``), which only the general path decodes.
"""

from hypothesis import given
from hypothesis import strategies as st

from epp.ext_proc import wire as codec
from epp.ext_proc.processing_response import MAX_BODY_CHUNK_BYTES, around_plain_chunk
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.harness.ext_proc import FULL_DUPLEX, Envoy, on_one_wire
from tools.harness.request_control import Epp, make_pool
from tools.harness.wires import Wire

END_OF_STREAM_FALSE = b"\x10\x00"
STREAMED_REQUEST = b'{"model":"llama","prompt":"Hello","stream":true}'
EVENT = b'data: {"choices":[{"text":" yes"}],"usage":null}\n\n'
USAGE = b'data: {"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'

METRICS = (
    "request_streaming_itl_seconds_count",
    "request_streaming_itl_seconds_sum",
    "response_processing_duration_seconds_count",
    "response_size_bytes_sum",
    "request_output_tokens_sum",
)


def served(address: str) -> bytes:
    """Return the metadata after a chunk."""
    request = pb.ProcessingRequest()
    request.metadata_context.filter_metadata["envoy.lb"].update({"served": address})
    return request.SerializeToString()


AFTER = [b"", served("10.0.0.1:8000"), served("10.0.0.2:8000"), served("x" * 2000)]
INVALID = b"\x42\x7f\x0a"
REPEATED = b"\x2a\x05\x0a\x03new"
"""A second ``response_body``, which replaces or completes the first."""


def chunk(body: bytes, after: bytes, *, end: bool = False, as_usual: bool) -> bytes:
    content = codec.head(1, len(body)) + body if body else b""
    if end:
        content += codec.END_OF_STREAM
    elif not as_usual:
        content += END_OF_STREAM_FALSE
    return codec.head(5, len(content)) + content + after


def answered(chunks: list[tuple[bytes, bytes, bool]], *, as_usual: bool) -> list[object]:
    """Return everything that comes of a response in these chunks."""
    epp = Epp(make_pool())
    envoy = Envoy(epp, FULL_DUPLEX)
    envoy.post(STREAMED_REQUEST)
    envoy.response_headers(headers={"content-type": "text/event-stream"})
    seen: list[object] = []
    for body, after, end in chunks:
        epp.clock.now += 0.25
        envoy.line.message(chunk(body, after, end=end, as_usual=as_usual))
        seen += [list(envoy.line.received), envoy.stream.state, envoy.stream.passed_bytes]
    envoy.reset()
    return [*seen, envoy.finished, *(epp.total(name) for name in METRICS)]


bodies = st.one_of(
    st.sampled_from([b"", EVENT, EVENT * 3, USAGE, b"x" * 126, b"x" * 127, b"x" * 128]),
    st.sampled_from([b"x" * MAX_BODY_CHUNK_BYTES, b"x" * (MAX_BODY_CHUNK_BYTES + 1)]),
    st.binary(max_size=300),
)
after = st.sampled_from([*AFTER, *AFTER, INVALID, REPEATED])


@on_one_wire
@given(st.lists(st.tuples(bodies, after, st.just(False)), max_size=12), st.booleans())
def test_a_plain_chunk_does_what_the_same_chunk_does_on_the_general_path(
    wire: Wire, chunks: list[tuple[bytes, bytes, bool]], ends: bool
) -> None:
    if ends:
        chunks = [*chunks, (USAGE, AFTER[1], True)]
    assert answered(chunks, as_usual=True) == answered(chunks, as_usual=False)


@given(st.integers(-5, 70_000))
def test_the_heads_of_a_plain_chunk_are_those_that_protobuf_writes(size: int) -> None:
    before, reply = around_plain_chunk(size)
    body = b"x" * (size - len(before))
    if not before:
        lengths = {len(codec.heads((5, 1), n)) + n for n in range(1, MAX_BODY_CHUNK_BYTES + 1)}
        assert size not in lengths
        return
    message = pb.ProcessingRequest(response_body=pb.HttpBody(body=body))
    assert before + body == message.SerializeToString()
    expected = pb.ProcessingResponse()
    streamed = expected.response_body.response.body_mutation.streamed_response
    streamed.body = body
    assert reply + body == expected.SerializeToString()


@on_one_wire
def test_chunks_of_a_streamed_response_are_counted_and_sent_back(wire: Wire) -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, FULL_DUPLEX)
    envoy.post(STREAMED_REQUEST)
    envoy.response_headers(headers={"content-type": "text/event-stream"})
    for _ in range(5):
        epp.clock.now += 0.25
        envoy.line.message(chunk(EVENT, AFTER[1], as_usual=True))
    envoy.line.message(chunk(USAGE, AFTER[1], end=True, as_usual=True))
    assert epp.total("request_streaming_itl_seconds_count") == 5
    assert epp.total("request_streaming_itl_seconds_sum") == 1.0
    assert epp.total("response_size_bytes_sum") == 5 * len(EVENT) + len(USAGE)
    assert epp.total("request_output_tokens_sum") == 2

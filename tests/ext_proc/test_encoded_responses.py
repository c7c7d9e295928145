"""Compressed responses are read and pass unchanged."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard
from structlog.testing import capture_logs

from epp.parsing import response_decoder
from tools.harness.ext_proc import FULL_DUPLEX, Envoy, echoed, on_one_wire
from tools.harness.request_control import Epp, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]

RESPONSE = b'{"choices":[{"text":"%s"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}'
PLAIN = RESPONSE % (b"hello " * 200)
TYPE = {"content-type": "application/json"}
ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP": gzip.compress,
    "zstd": zstandard.compress,
}


def passed(encoding: str, body: bytes, chunk_bytes: int) -> Epp:
    """Pass a response in chunks; assert that it is unchanged."""
    epp = Epp(make_pool())
    envoy = Envoy(epp, FULL_DUPLEX)
    envoy.post()
    (reply,) = envoy.response_headers(headers={**TYPE, "content-encoding": encoding})
    assert not reply.response_headers.HasField("response")
    out = b""
    for at in range(0, len(body), chunk_bytes):
        out += echoed(envoy.response_body(body[at : at + chunk_bytes]), "response_body")[0]
    envoy.response_body(b"", end=True)
    assert out == body
    assert epp.in_flight == 0
    return epp


@pytest.mark.parametrize("chunk_bytes", [1, 7, 60_000])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_usage_is_found(encoding: str, chunk_bytes: int) -> None:
    epp = passed(encoding, ENCODINGS[encoding](PLAIN), chunk_bytes)
    assert epp.total("request_input_tokens_sum") == 3
    assert epp.total("request_output_tokens_sum") == 4


def test_the_usage_of_a_compressed_stream_is_read_flush_by_flush() -> None:
    compress = zlib.compressobj(wbits=31)
    events = [b"data: {}\n\n", b'data: {"usage":{"completion_tokens":9}}\n\n', b"data: [DONE]\n\n"]
    flushed = [compress.compress(each) + compress.flush(zlib.Z_SYNC_FLUSH) for each in events]
    epp = passed("gzip", b"".join(flushed), len(flushed[0]))
    assert epp.total("request_output_tokens_sum") == 9


@pytest.mark.parametrize(
    ("encoding", "body", "problem"),
    [
        pytest.param("gzip", b"no gzip at all", "incorrect header", id="what is no gzip"),
        pytest.param("zstd", b"no zstd at all", "Unknown frame", id="what is no zstd"),
        pytest.param("gzip", gzip.compress(bytes(64 << 20)), "4194304", id="gzip blown up"),
        pytest.param("zstd", zstandard.compress(bytes(64 << 20)), "4194304", id="zstd blown up"),
    ],
)
def test_an_undecodable_body_passes_unchanged(encoding: str, body: bytes, problem: str) -> None:
    with capture_logs() as lines:
        epp = passed(encoding, body, 60_000)
    faults = [line for line in lines if line["event"] == "response reader failed"]
    assert [problem in str(line["exc_info"]) for line in faults] == [True]
    assert epp.total("request_output_tokens_count") == 0


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip"])
def test_an_unknown_encoding_is_not_read(encoding: str) -> None:
    with capture_logs() as lines:
        epp = passed(encoding, PLAIN, 60_000)
    assert [line["event"] for line in lines] == ["request finished"]
    assert epp.total("request_output_tokens_count") == 0


def test_bytes_after_the_end_of_gzip_are_not_kept() -> None:
    decode = response_decoder({"content-encoding": "gzip"})
    assert decode is not None
    assert decode(gzip.compress(PLAIN)) == PLAIN
    tracemalloc.start()
    try:
        for _ in range(100):
            assert decode(bytes(10_000)) == b""
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 100_000


def test_usage_is_read_before_bytes_after_the_end_of_gzip() -> None:
    epp = passed("gzip", gzip.compress(PLAIN) + b"what is no gzip" * 10_000, 1000)
    assert epp.total("request_output_tokens_sum") == 4

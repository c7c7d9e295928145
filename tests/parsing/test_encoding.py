"""Bodies that are compressed, well or with evil intent."""

import gzip
import tracemalloc
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from epp.parsing import BodyTooLongError, ParseError
from epp.parsing.encoding import decoder_of

ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "zstd": zstandard.compress,
}
BODY = b'{"model": "m", "prompt": "' + b"hello " * 100 + b'"}'
MIB = 1 << 20


def decoded(body: bytes, encoding: str, limit: int = MIB) -> bytes:
    decode = decoder_of({"content-encoding": encoding})
    assert decode is not None
    return decode(body, limit)


@given(body=st.binary(max_size=2000), name=st.sampled_from(sorted(ENCODERS)))
def test_what_was_encoded_is_decoded(body: bytes, name: str) -> None:
    assert decoded(ENCODERS[name](body), name) == body


@pytest.mark.parametrize("encoding", ["", "identity", "Identity", " IDENTITY "])
def test_identity_is_no_encoding(encoding: str) -> None:
    assert decoded(BODY, encoding) is BODY


@pytest.mark.parametrize("encoding", ["GZIP", " gzip", "Zstd"])
def test_names_are_read_in_any_case(encoding: str) -> None:
    encode = ENCODERS[encoding.strip().lower()]
    assert decoded(encode(BODY), encoding) == BODY


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "gzip,zstd", "nonsense"])
def test_other_encodings_are_not_known(encoding: str) -> None:
    assert decoder_of({"content-encoding": encoding}) is None


def test_frames_of_zstd_follow_one_another() -> None:
    assert decoded(zstandard.compress(b"ab") + zstandard.compress(b"cd"), "zstd") == b"abcd"


@pytest.mark.parametrize("name", ["", "gzip", "zstd"])
def test_the_limit_counts_decoded_bytes(name: str) -> None:
    body = ENCODERS[name](BODY) if name else BODY
    assert decoded(body, name, len(BODY)) == BODY
    with pytest.raises(BodyTooLongError, match=f"longer than {len(BODY) - 1} bytes"):
        decoded(body, name, len(BODY) - 1)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_a_bomb_takes_no_more_memory_than_the_limit_allows(name: str) -> None:
    bomb = ENCODERS[name](bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLongError):
            decoded(bomb, name, MIB)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_a_sender_of_zstd_cannot_have_much_held() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = compressor.compress(BODY) + compressor.flush()
    with pytest.raises(ParseError, match="too much memory"):
        decoded(body, "zstd")


@pytest.mark.parametrize(
    ("name", "body", "text"),
    [
        pytest.param("gzip", BODY, "is not gzip", id="not gzip"),
        pytest.param("gzip", b"", "cut off", id="nothing"),
        pytest.param("gzip", gzip.compress(BODY)[:-9], "cut off", id="cut off"),
        pytest.param("gzip", gzip.compress(BODY) + b"x", "after the end", id="something after"),
        pytest.param("gzip", gzip.compress(BODY) * 2, "after the end", id="two members"),
        pytest.param(
            "gzip", gzip.compress(BODY)[:-8] + bytes(8), "is not gzip", id="a wrong checksum"
        ),
        pytest.param("zstd", BODY, "is not zstd", id="not zstd"),
    ],
)
def test_what_is_not_as_its_headers_say_is_refused(name: str, body: bytes, text: str) -> None:
    with pytest.raises(ParseError, match=text):
        decoded(body, name)

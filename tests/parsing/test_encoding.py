"""Compressed bodies, valid, broken and hostile."""

import gzip
import random
import tracemalloc
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from epp.parsing import (
    BodyLimits,
    BodyTooLongError,
    CompressionRatioError,
    Decoding,
    ParseError,
)
from epp.parsing.encoding import FREE_BYTES, decode_whole, is_known

ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "zstd": zstandard.compress,
}
BODY = b'{"model": "m", "prompt": "' + b"hello " * 100 + b'"}'
MIB = 1 << 20


def decoded(body: bytes, encoding: str, limit: int = MIB) -> bytes:
    limits = BodyLimits(max_decompressed_bytes=limit, max_ratio=0)
    return decode_whole({"content-encoding": encoding}, body, limits)


def decoding_of(body: bytes, encoding: str, limits: BodyLimits) -> Decoding:
    decoding = Decoding.of({"content-encoding": encoding}, body, limits)
    assert decoding is not None
    return decoding


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
    assert not is_known({"content-encoding": encoding})


def test_frames_of_zstd_follow_one_another() -> None:
    assert decoded(zstandard.compress(b"ab") + zstandard.compress(b"cd"), "zstd") == b"abcd"


def test_the_limit_is_for_compressed_bodies_only() -> None:
    assert decoded(BODY, "", 1) == BODY


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_the_limit_counts_decoded_bytes(name: str) -> None:
    body = ENCODERS[name](BODY)
    assert decoded(body, name, len(BODY)) == BODY
    with pytest.raises(BodyTooLongError, match=f"more than {len(BODY) - 1} bytes"):
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
        pytest.param("gzip", BODY, "is not valid gzip", id="not gzip"),
        pytest.param("gzip", b"", "is truncated", id="nothing"),
        pytest.param("gzip", gzip.compress(BODY)[:-9], "is truncated", id="cut off"),
        pytest.param("gzip", gzip.compress(BODY) + b"x", "after the end", id="something after"),
        pytest.param("gzip", gzip.compress(BODY) * 2, "after the end", id="two members"),
        pytest.param(
            "gzip", gzip.compress(BODY)[:-8] + bytes(8), "is not valid gzip", id="a wrong checksum"
        ),
        pytest.param("zstd", BODY, "is not valid zstd", id="not zstd"),
    ],
)
def test_what_is_not_as_its_headers_say_is_refused(name: str, body: bytes, text: str) -> None:
    with pytest.raises(ParseError, match=text):
        decoded(body, name)


@given(
    body=st.binary(max_size=5000),
    name=st.sampled_from(sorted(ENCODERS)),
    slices=st.lists(st.integers(1, 2000), min_size=1),
)
def test_a_body_is_decoded_in_slices_of_any_size(body: bytes, name: str, slices: list[int]) -> None:
    decoding = decoding_of(ENCODERS[name](body), name, BodyLimits())
    for max_bytes in slices:
        before = decoding.decoded_bytes
        decoding.advance(max_bytes)
        assert decoding.decoded_bytes - before <= max_bytes
        assert decoding.body == body[: decoding.decoded_bytes]
    decoding.advance(5001)
    assert decoding.is_finished
    assert decoding.body == body


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_incompressible_bodies_of_many_pieces_come_through(name: str) -> None:
    body = random.Random(7).randbytes(3 * MIB)
    assert decoded(ENCODERS[name](body), name, 3 * MIB) == body


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_beyond_a_mebibyte_a_body_may_not_grow_to_more_than_the_ratio(name: str) -> None:
    bomb = ENCODERS[name](bytes(16 * MIB))
    decoding = decoding_of(bomb, name, BodyLimits(max_ratio=100))
    decoding.advance(MIB)
    with pytest.raises(CompressionRatioError, match="more than 100 times its size"):
        decoding.advance(16 * MIB)
    assert decoding.decoded_bytes == max(FREE_BYTES, 100 * len(bomb)) + 1
    assert decoding.body == b""


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_up_to_a_mebibyte_any_ratio_is_taken(name: str) -> None:
    body = bytes(FREE_BYTES)
    limits = BodyLimits(max_ratio=2)
    assert decode_whole({"content-encoding": name}, ENCODERS[name](body), limits) == body


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_without_a_ratio_only_the_length_counts(name: str) -> None:
    body = bytes(2 * MIB)
    limits = BodyLimits(max_ratio=0)
    assert decode_whole({"content-encoding": name}, ENCODERS[name](body), limits) == body


def test_the_error_for_a_body_above_its_length_names_the_length_and_not_the_ratio() -> None:
    limits = BodyLimits(max_decompressed_bytes=10, max_ratio=100)
    with pytest.raises(BodyTooLongError, match="more than 10 bytes") as caught:
        decode_whole({"content-encoding": "gzip"}, gzip.compress(BODY), limits)
    assert not isinstance(caught.value, CompressionRatioError)

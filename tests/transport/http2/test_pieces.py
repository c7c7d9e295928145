"""Waiting bytes: the same bytes in little memory, however small the pieces."""

import sys
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.transport.http2.stream import Piece, append_piece

KIB = 1 << 10

sizes = st.one_of(st.integers(0, 40), st.sampled_from([2047, 2048, 2049, 5000, 70_000]))


@given(st.lists(sizes, max_size=40), st.booleans())
def test_pieces_stay_in_order(lengths: list[int], use_views: bool) -> None:
    pieces: deque[Piece] = deque()
    given = [bytes((n % 256,)) * size for n, size in enumerate(lengths)]
    for piece in given:
        append_piece(pieces, memoryview(piece) if use_views else piece)
    assert b"".join(pieces) == b"".join(given)


def test_single_bytes_are_gathered() -> None:
    pieces: list[Piece] = []
    for _ in range(256 * KIB):
        append_piece(pieces, b"x")
    assert len(pieces) == 4
    assert sum(map(sys.getsizeof, pieces)) < 320 * KIB


def test_large_pieces_are_kept_as_they_are() -> None:
    pieces: list[Piece] = []
    large = [bytes(2048), bytes(100_000)]
    for piece in large:
        append_piece(pieces, piece)
    assert all(kept is piece for kept, piece in zip(pieces, large, strict=True))


@pytest.mark.parametrize("small", [b"ab", bytearray(b"ab"), memoryview(b"ab")])
def test_given_pieces_are_not_modified(small: Piece) -> None:
    pieces: list[Piece] = []
    append_piece(pieces, small)
    append_piece(pieces, b"cd")
    assert (bytes(small), bytes(pieces[0])) == (b"ab", b"abcd")

"""The reader of gRPC messages: the same messages however bytes are split, and no leak."""

import random
import tracemalloc
from collections.abc import Iterator
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.transport.budget import ByteBudget
from epp.transport.grpc.framing import MessageReader, framed

LIMIT_BYTES = 100
AMPLE_BYTES = 1 << 20

bodies = st.lists(st.binary(max_size=LIMIT_BYTES), max_size=8)
faults = st.sampled_from(
    [
        (b"\x02" + pack(">I", 1), 13),
        (b"\xff" + pack(">I", 0), 13),
        (b"\x00" + pack(">I", LIMIT_BYTES + 1), 8),
        (b"\x00" + pack(">I", 1 << 31), 8),
        (b"\x01" + pack(">I", 3) + b"abc", 13),
    ]
)


def make_reader(*, budget_bytes: int = AMPLE_BYTES) -> tuple[MessageReader, ByteBudget]:
    budget = ByteBudget(budget_bytes)
    return MessageReader(LIMIT_BYTES, budget), budget


def cut(stream: bytes, seed: int, longest: int) -> Iterator[bytes]:
    """Split at random; pieces may be empty."""
    rng, start = random.Random(seed), 0
    while start < len(stream):
        size = rng.randint(0, longest)
        yield stream[start : start + size]
        start += size


@given(bodies, st.integers(), st.integers(1, 300))
def test_messages_do_not_depend_on_how_bytes_are_split(
    sent: list[bytes], seed: int, longest: int
) -> None:
    reader, budget = make_reader()
    got: list[bytes] = []
    for piece in cut(b"".join(map(framed, sent)), seed, longest):
        got += reader.feed(piece)
        assert 0 <= budget.used_bytes <= LIMIT_BYTES + 5
        assert reader.is_between_messages or reader.error is None
    assert got == sent
    assert all(type(body) is bytes for body in got)
    assert (reader.error, reader.is_between_messages, budget.used_bytes) == (None, True, 0)


@given(bodies, faults, st.binary(max_size=50), st.integers(), st.integers(1, 300))
def test_error_comes_after_the_good_messages(
    good: list[bytes], fault: tuple[bytes, int], rest: bytes, seed: int, longest: int
) -> None:
    reader, budget = make_reader()
    bad, code = fault
    got: list[bytes] = []
    for piece in cut(b"".join(map(framed, good)) + bad + rest, seed, longest):
        got += reader.feed(piece)
        if reader.error is not None:
            break
    assert got == good
    assert reader.error is not None
    assert (reader.error.code, budget.used_bytes) == (code, 0)


@given(bodies, st.integers(0, 104), st.integers(), st.integers(1, 300))
def test_dropping_an_incomplete_message_gives_back_its_budget(
    sent: list[bytes], kept: int, seed: int, longest: int
) -> None:
    reader, budget = make_reader()
    budget.used_bytes = 1000  # of other streams
    last = framed(bytes(LIMIT_BYTES))[:kept]
    for piece in cut(b"".join(map(framed, sent)) + last, seed, longest):
        reader.feed(piece)
    assert reader.is_between_messages == (kept == 0)
    reader.drop()
    assert budget.used_bytes == 1000


def test_budget_is_shared_by_the_readers_of_a_connection() -> None:
    budget = ByteBudget(150)
    first, second = (MessageReader(LIMIT_BYTES, budget) for _ in range(2))
    half = framed(bytes(LIMIT_BYTES))[:90]
    assert first.feed(half) == []
    assert second.feed(half) == []
    assert second.error is not None
    assert (second.error.code, budget.used_bytes) == (8, 85)
    assert first.feed(bytes(15)) == [bytes(LIMIT_BYTES)]
    assert budget.used_bytes == 0


def test_complete_message_needs_no_budget() -> None:
    reader, _ = make_reader(budget_bytes=0)
    assert reader.feed(framed(b"hello")) == [b"hello"]
    assert reader.feed(framed(b"a") + framed(b"b")) == [b"a", b"b"]
    assert reader.feed(b"\0") == []
    assert reader.error is not None


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_message_up_to_the_limit_is_accepted(size: int) -> None:
    reader, _ = make_reader()
    assert reader.feed(framed(bytes(size))) == [bytes(size)]
    assert reader.error is None


def test_message_announced_above_the_limit_allocates_nothing() -> None:
    reader, budget = make_reader()
    tracemalloc.start()
    try:
        reader.feed(b"\x00\xff\xff\xff\xff" + bytes(1000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10_000
    assert budget.used_bytes == 0

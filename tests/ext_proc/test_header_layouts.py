"""Header maps of a known layout are split at once, with the same result as one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.ext_proc.header_layouts import (
    MAX_BYTES,
    MAX_LAYOUTS,
    MISSES_PER_LESSON,
    HeaderLayouts,
    _read_in_a_loop,
)
from epp.ext_proc.wire import headers_in, headers_one_by_one, value_spans
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb

NAMES = st.text("abcXYZ-:", min_size=1, max_size=12)
VALUES = st.binary(max_size=200) | st.text("az09 \n\x1a", max_size=200).map(str.encode)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=6)


def encoded(headers: list[tuple[str, bytes]]) -> bytes:
    values = [pb.HeaderValue(key=name, raw_value=value) for name, value in headers]
    return pb.HeaderMap(headers=values).SerializeToString()


def learned(*blocks: bytes) -> HeaderLayouts:
    """Layouts that have missed each block often enough to learn it."""
    layouts = HeaderLayouts(value_spans)
    for block in blocks:
        for _ in range(MISSES_PER_LESSON):
            layouts.missed(block)
    return layouts


def read_both_ways(layouts: HeaderLayouts, block: bytes) -> dict[str, str] | None:
    """Read a map of a known length as compiled code does, too."""
    read = layouts.read(block)
    assert _read_in_a_loop(layouts._known[len(block)], block) == read
    return read


@given(HEADERS, st.data())
def test_a_map_of_a_known_layout_has_the_headers_that_are_read_one_by_one(
    headers: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    layouts = learned(encoded(headers))
    others = [
        (name, data.draw(st.binary(min_size=len(value), max_size=len(value))))
        for name, value in headers
    ]
    for block in (encoded(headers), encoded(others)):
        is_known = len(block) in layouts._known
        read = read_both_ways(layouts, block) if is_known else layouts.read(block)
        # None as well if a value is not ASCII, is empty (then it is not in the map), or for no map.
        if all(value and value.isascii() for _, value in headers + others) and headers:
            assert read is not None
        assert read in (None, headers_one_by_one(block))


@given(HEADERS, st.data())
def test_a_map_that_differs_in_more_than_values_is_not_split(
    headers: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    block = encoded(headers)
    layouts = learned(block)
    changed = bytearray(block)
    if changed:
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    if len(layouts):
        read = read_both_ways(layouts, bytes(changed))
        assert read in (None, headers_one_by_one(bytes(changed)))
    longer = bytes(block) + data.draw(st.binary(min_size=1, max_size=4))
    assert layouts.read(longer) is None


@given(st.lists(HEADERS, max_size=5))
def test_maps_are_read_alike_however_often_they_come(maps: list[list[tuple[str, bytes]]]) -> None:
    blocks = [encoded(headers) for headers in maps]
    before = [headers_one_by_one(block) for block in blocks]
    for _ in range(MISSES_PER_LESSON + 1):
        assert [headers_in(block) for block in blocks] == before


def test_names_are_in_lower_case_and_the_last_of_a_repeated_header_counts() -> None:
    block = encoded([("Accept", b"a"), ("x-b", b"1"), ("accept", b"b")])
    assert learned(block).read(block) == {"accept": "b", "x-b": "1"}


def test_a_header_of_more_than_127_bytes_is_split_too() -> None:
    token = b"Bearer " + b"t" * 1000
    block = encoded([("authorization", token), ("x-b", b"1")])
    assert learned(block).read(block) == {"authorization": token.decode(), "x-b": "1"}


def test_one_miss_of_some_is_learned() -> None:
    layouts, block = HeaderLayouts(value_spans), encoded([("a", b"b")])
    for _ in range(MISSES_PER_LESSON - 1):
        layouts.missed(block)
    assert layouts.read(block) is None
    layouts.missed(block)
    assert layouts.read(block) == {"a": "b"}


def test_a_map_that_cannot_be_learned_keeps_no_other_from_it() -> None:
    layouts, block = HeaderLayouts(value_spans), encoded([("a", b"b")])
    for _ in range(MISSES_PER_LESSON):
        layouts.missed(block)
        layouts.missed(b"\n\x03\n\x01a")
    assert layouts.read(block) == {"a": "b"}


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(encoded([("a", b"x" * MAX_BYTES)]), id="long"),
        pytest.param(b"\n\x03\n\x01a", id="without a value"),
        pytest.param(b"", id="empty"),
    ],
)
def test_other_maps_are_not_learned(block: bytes) -> None:
    assert len(learned(block)) == 0


def test_the_oldest_layout_gives_way() -> None:
    blocks = [encoded([("a", b"x" * size)]) for size in range(1, MAX_LAYOUTS + 2)]
    layouts = learned(*blocks)
    assert len(layouts) == MAX_LAYOUTS
    assert layouts.read(blocks[0]) is None
    assert layouts.read(blocks[-1]) == {"a": "x" * (MAX_LAYOUTS + 1)}

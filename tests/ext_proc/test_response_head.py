"""The status of a response is found without decoding its headers, whatever else is among them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.ext_proc.response_head import OVERLOADED, LazyResponseHead, _is_plain, by_name
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb

NAMES = st.sampled_from(
    [
        ":status",
        ":STATUS",
        OVERLOADED,
        OVERLOADED.title(),
        OVERLOADED[1:],
        "date",
    ]
) | st.text("abc", max_size=20)
VALUES = st.sampled_from([b"200", b":status", b"\n\x0e\n\x07:status"]) | st.binary(max_size=130)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=6)


def encoded(headers: list[tuple[str, bytes]]) -> bytes:
    values = [pb.HeaderValue(key=name, raw_value=value) for name, value in headers]
    return pb.HeaderMap(headers=values).SerializeToString()


@given(HEADERS, st.data())
def test_what_looks_plain_has_neither_a_status_nor_the_header_of_an_overload(
    headers: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    block = bytearray(encoded(headers))
    if block and data.draw(st.booleans()):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 127))
    if _is_plain(bytes(block), 0):
        read = by_name(pb.HeaderMap.FromString(bytes(block)))
        assert read.keys().isdisjoint({":status", OVERLOADED})


@pytest.mark.parametrize(
    ("headers", "is_plain"),
    [
        pytest.param([], True, id="none"),
        pytest.param([("date", b"Sun"), ("server", b"envoy")], True, id="usual ones"),
        pytest.param([("servers", b"1"), ("a" * 18, b"1")], True, id="names as long as those two"),
        pytest.param([("set-cookie", b"x" * 127)], False, id="a long value"),
        pytest.param([("empty", b"")], False, id="an empty value"),
    ],
)
def test_headers_of_the_usual_form_are_plain(
    headers: list[tuple[str, bytes]], is_plain: bool
) -> None:
    assert _is_plain(encoded(headers), 0) is is_plain


@given(HEADERS)
def test_the_status_is_the_one_that_all_headers_have(headers: list[tuple[str, bytes]]) -> None:
    block = encoded([(":status", b"503"), *headers])
    found, read = (LazyResponseHead(block, end_of_stream=False) for _ in range(2))
    found.read(whole=False)
    read.read(whole=True)
    assert (found.status, found.is_overloaded) == (read.status, read.is_overloaded)

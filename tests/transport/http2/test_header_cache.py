"""The header cache: only for blocks that decode the same on any connection."""

from hpack import Decoder, HPACKError
from hypothesis import example, given
from hypothesis import strategies as st

from epp.transport.http2 import ErrorCode, HeaderCache, RequestReceived
from epp.transport.http2.errors import ConnectionFault
from epp.transport.http2.headers import HeaderDecoder
from transport.http2.wire import (
    PREFACE,
    REQUEST,
    Client,
    block,
    headers,
    literals,
    make_client,
    settings,
    settings_ack,
)

BLOCK = block()


def headers_of(client: Client, stream_id: int, octets: bytes) -> object:
    (event,) = client.send(headers(stream_id, octets))
    assert isinstance(event, RequestReceived)
    return event.headers


def test_the_same_block_is_the_same_headers_on_all_streams_and_connections() -> None:
    cache = HeaderCache()
    one, other = make_client(cache=cache), make_client(cache=cache)

    seen = [headers_of(one, 1, BLOCK), headers_of(one, 3, BLOCK), headers_of(other, 1, BLOCK)]

    assert seen[0] is seen[1] is seen[2]
    assert (cache.hits, cache.misses) == (2, 1)


def test_the_cache_is_used_only_after_our_settings_are_acknowledged() -> None:
    cache = HeaderCache()
    client = Client(cache=cache)
    client.send(PREFACE, settings())

    headers_of(client, 1, BLOCK)
    headers_of(client, 3, BLOCK)
    assert (cache.hits, cache.misses, cache.entries) == (0, 0, {})

    client.send(settings_ack())
    headers_of(client, 5, BLOCK)
    headers_of(client, 7, BLOCK)
    assert (cache.hits, cache.misses) == (1, 1)


def test_a_block_that_uses_the_table_is_not_found_in_the_cache() -> None:
    cache = HeaderCache()
    plain = literals(REQUEST)
    indexed = plain + b"\x40\x03x-a\x011"
    headers_of(make_client(cache=cache), 1, indexed)
    assert indexed in cache.entries

    # Before the acknowledgement, the literal enters the dynamic table and is referred to.
    client = Client(cache=cache)
    client.send(PREFACE, settings())
    headers_of(client, 1, indexed)
    client.send(headers(3, plain + b"\xbe"))

    last = client.events[-1]
    assert isinstance(last, RequestReceived)
    assert last.headers.fields[-1] == (b"x-a", b"1")
    assert cache.hits == 0


def test_a_block_that_refers_to_the_table_is_never_cached() -> None:
    cache = HeaderCache()
    client = make_client(cache=cache)

    client.assert_failed(ErrorCode.COMPRESSION_ERROR, headers(1, BLOCK + b"\xbe"))

    assert cache.entries == {}


def test_refused_headers_are_not_cached() -> None:
    cache = HeaderCache()
    client = make_client(cache=cache, max_header_list_bytes=1000)
    malformed = literals([(":method", "POST")])
    large = BLOCK + literals([("x-long", "v" * 1000)])

    for stream_id in (1, 5):
        client.assert_reset(stream_id, ErrorCode.PROTOCOL_ERROR, headers(stream_id, malformed))
        assert client.send(headers(stream_id + 2, large)) == []

    assert cache.entries == {}
    assert client.counters.header_lists_refused == 2


def test_the_cache_is_bounded_by_bytes_and_evicts_the_oldest() -> None:
    cache = HeaderCache(max_bytes=60_000)
    client = make_client(cache=cache)

    for number in range(200):
        octets = block([*REQUEST, ("x-request-id", str(number))])
        headers_of(client, 2 * number + 1, octets)
        assert cache.bytes <= 60_000
        assert octets in cache.entries

    assert cache.misses == 200
    assert 5 <= len(cache.entries) <= 20
    assert sum(map(len, cache.entries)) < cache.bytes


def test_headers_larger_than_the_cache_are_not_cached() -> None:
    cache = HeaderCache(max_bytes=5000)
    client = make_client(cache=cache)
    headers_of(client, 1, BLOCK)

    headers_of(client, 3, BLOCK + literals([("x-long", "v" * 3000)]))

    assert list(cache.entries) == [BLOCK]


def test_an_emptied_cache_counts_no_bytes() -> None:
    cache = HeaderCache(max_bytes=6000)
    client = make_client(cache=cache)
    headers_of(client, 1, BLOCK)
    before = cache.bytes

    headers_of(client, 3, block([*REQUEST, ("a", "b" * 900)]))
    headers_of(client, 5, BLOCK)

    assert list(cache.entries) == [BLOCK]
    assert cache.bytes == before


# --- the same as an independent decoder -----------------------------------------------------------

_NAMES = st.sampled_from([":path", ":method", "x-a", "cookie", "accept", "content-type", "", "X"])
_VALUES = st.sampled_from(["", "a", "POST", "/", "200", "\xff", " b ", "v" * 200])
_FIELD = st.tuples(_NAMES, _VALUES)
_PIECES = st.one_of(
    st.lists(_FIELD, max_size=4).map(block),
    st.lists(_FIELD, max_size=4).map(literals),
    st.sampled_from(
        [b"\x20", b"\x3f\xe1\x1f", b"\x80", b"\xbe", b"\x82", b"\x40\x01n\x01v", b"\x7e"]
    ),
    st.binary(max_size=6),
)
_BLOCKS = st.lists(_PIECES, max_size=4).map(b"".join)


def expected(decoder: Decoder, octets: bytes) -> list[tuple[bytes, bytes]] | None:
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(octets, raw=True)]
    except HPACKError:
        return None


def actual(decoder: HeaderDecoder, octets: bytes) -> list[tuple[bytes, bytes]] | None:
    try:
        return list(decoder.decode(octets).fields)
    except ConnectionFault as fault:
        return None if fault.code is ErrorCode.COMPRESSION_ERROR else []


@given(
    blocks=st.lists(_BLOCKS, min_size=1, max_size=6),
    acknowledged_after=st.integers(0, 6),
    repeats=st.integers(1, 3),
)
@example([BLOCK, BLOCK + b"\x40\x01n\x01v", BLOCK + b"\xbe"], 1, 2)
@example([BLOCK + b"\x40\x01n\x01v", BLOCK + b"\xbe", BLOCK + b"\xbe"], 2, 1)
def test_any_block_decodes_as_with_an_independent_decoder(
    blocks: list[bytes], acknowledged_after: int, repeats: int
) -> None:
    cache = HeaderCache(max_bytes=8000)
    for _ in range(repeats):  # connection after connection, with the same cache
        ours, theirs = HeaderDecoder(cache, 16 << 10), Decoder()
        for number, octets in enumerate(blocks):
            if number == acknowledged_after:
                ours.settings_acknowledged()
                theirs.max_allowed_table_size = 0
                theirs.header_table_size = 0
            fields = expected(theirs, octets)
            assert actual(ours, octets) == fields
            if fields is None:
                break  # the connection would be over
        assert cache.bytes <= cache.max_bytes

"""RFC 9113 §4.3 and RFC 7541: split header blocks, and invalid ones."""

import pytest
from hpack import Decoder
from hyperframe.frame import ContinuationFrame, Frame

from epp.transport.http2 import ErrorCode, RequestReceived, encode
from transport.http2.wire import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    PREFACE,
    PUSH_PROMISE,
    REQUEST,
    RESPONSE,
    TRAILERS,
    Client,
    block,
    cut_headers,
    data,
    goaway,
    headers,
    literals,
    make_client,
    ping,
    priority,
    raw,
    reset,
    resets,
    settings,
    settings_ack,
    string,
    window,
)

BLOCK = block()
FIELDS = tuple((name.encode(), value.encode()) for name, value in REQUEST)


def opened(client: Client, *frames: Frame | bytes) -> RequestReceived:
    (event,) = client.send(*frames)
    assert isinstance(event, RequestReceived)
    return event


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([BLOCK], id="whole"),
        pytest.param([BLOCK[:10], BLOCK[10:]], id="cut once"),
        pytest.param([BLOCK[i : i + 1] for i in range(len(BLOCK))], id="one byte each"),
        pytest.param([b"", b"", BLOCK, b"", b""], id="empty fragments around it"),
        pytest.param([b"", *[BLOCK[i : i + 1] for i in range(len(BLOCK))]], id="empty HEADERS"),
    ],
)
def test_a_block_may_be_cut_anywhere_and_end_stream_stays_on_headers(
    pieces: list[bytes], end: bool
) -> None:
    event = opened(make_client(), *cut_headers(1, pieces, end=end))

    assert event.headers.fields == FIELDS
    assert event.end_stream is end


def test_end_stream_on_continuation_means_nothing() -> None:
    client = make_client()

    event = opened(
        client,
        headers(1, BLOCK[:5], end_headers=False),
        raw(CONTINUATION, END_HEADERS | END_STREAM, 1, BLOCK[5:]),
    )

    assert not event.end_stream


def test_a_padded_block_with_priority_may_be_cut_as_well() -> None:
    first = headers(1, BLOCK[:7], end_headers=False, pad=9, priority=(0, 1, False), end=True)
    rest = ContinuationFrame(1, BLOCK[7:], flags=["END_HEADERS"])

    event = opened(make_client(), first, rest)

    assert event.headers.fields == FIELDS
    assert event.end_stream


def test_trailers_may_be_cut() -> None:
    client = make_client()
    client.request(1)
    trailers = literals([("checksum", "abc")])

    (event,) = client.send(*cut_headers(1, [trailers[:3], b"", trailers[3:]], end=True))

    assert getattr(event, "end_stream", None) is True


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(ping(), id="PING"),
        pytest.param(settings(), id="SETTINGS"),
        pytest.param(settings_ack(), id="SETTINGS ACK"),
        pytest.param(window(0, 1), id="WINDOW_UPDATE of the connection"),
        pytest.param(window(1, 1), id="WINDOW_UPDATE of the stream"),
        pytest.param(data(1, b"x"), id="DATA"),
        pytest.param(headers(1), id="HEADERS of the same stream"),
        pytest.param(headers(3), id="HEADERS of another stream"),
        pytest.param(priority(1), id="PRIORITY"),
        pytest.param(reset(1), id="RST_STREAM"),
        pytest.param(goaway(), id="GOAWAY"),
        pytest.param(raw(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2"), id="PUSH_PROMISE"),
        pytest.param(raw(CONTINUATION, END_HEADERS, 3, b""), id="CONTINUATION of another stream"),
        pytest.param(raw(0xBE, 0, 1, b"x"), id="a frame of unknown type"),
    ],
)
def test_any_other_frame_inside_a_block_is_a_protocol_error(between: Frame | bytes) -> None:
    make_client().assert_failed(
        ErrorCode.PROTOCOL_ERROR, headers(1, BLOCK[:5], end_headers=False), between
    )


@pytest.mark.parametrize("stream_id", [1, 3])
def test_continuation_without_headers_is_a_protocol_error(stream_id: int) -> None:
    client = make_client()
    client.request(1)

    client.assert_failed(
        ErrorCode.PROTOCOL_ERROR, ContinuationFrame(stream_id, BLOCK, flags=["END_HEADERS"])
    )


# --- what is no HPACK -----------------------------------------------------------------------------

INDEXED, LITERAL = b"\x82", b"\x00"
HUFFMAN_A = 0b00011  # "a" has five bits (RFC 7541 Appendix B)

BROKEN = [
    pytest.param(b"\x80", id="index 0"),
    pytest.param(b"\xbe", id="an index beyond an empty table"),
    pytest.param(b"\xff\xff\x7f", id="an index far beyond any table"),
    pytest.param(b"\x7e" + string("v"), id="a name index beyond an empty table"),
    pytest.param(b"\x0f\xff\x7f" + string("v"), id="a name index far beyond any table"),
    pytest.param(b"\xff" + b"\xff" * 20 + b"\x01", id="an index that overflows"),
    pytest.param(b"\x00\x7f" + b"\xff" * 20 + b"\x01", id="a length that overflows"),
    pytest.param(b"\x00\x7f" + b"\x80" * 200 + b"\x01", id="a length with endless zeros"),
    pytest.param(b"\x3f" + b"\xff" * 20 + b"\x01", id="a table size that overflows"),
    pytest.param(b"\xff", id="an integer cut short"),
    pytest.param(b"\xff\x80", id="an integer cut in its middle"),
    pytest.param(b"\x00", id="a literal without its name"),
    pytest.param(b"\x00\x04nam", id="a name cut short"),
    pytest.param(b"\x00\x04name", id="a literal without its value"),
    pytest.param(b"\x00\x04name\x05valu", id="a value cut short"),
    pytest.param(b"\x00\x04name\x7f\xff\xff\x7fv", id="a huge value"),
    pytest.param(b"\x00\x7f\xff\xff\x7fn", id="a huge name"),
    pytest.param(BLOCK + b"\x20", id="a late table size update"),
    pytest.param(b"\x3f\xe2\x1f" + BLOCK, id="a table size update to 4097"),
    pytest.param(b"\x00\x01n\x84\xff\xff\xff\xff", id="EOS in a Huffman string"),
    pytest.param(b"\x00\x01n\x82\x1f\xff", id="Huffman padding above 7 bits"),
    pytest.param(b"\x00\x01n\x81" + bytes((HUFFMAN_A << 3,)), id="Huffman padding of zeros"),
    pytest.param(b"\x00\x01n\x81\xfe", id="a Huffman code cut short"),
]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("acknowledged", [False, True])
def test_invalid_hpack_is_a_compression_error(broken: bytes, acknowledged: bool) -> None:
    client = Client()
    client.send(PREFACE, settings())
    if acknowledged:
        client.send(settings_ack())

    client.assert_failed(ErrorCode.COMPRESSION_ERROR, headers(1, broken))


@pytest.mark.parametrize("where", ["trailers", "a closed stream"])
def test_invalid_hpack_is_a_connection_error_on_any_stream(where: str) -> None:
    client = make_client()
    stream = client.request(1)
    if where == "a closed stream":
        client.connection.reset(stream, ErrorCode.CANCEL)

    client.assert_failed(ErrorCode.COMPRESSION_ERROR, headers(1, b"\x80", end=True))


def test_huffman_padding_of_seven_ones_is_valid() -> None:
    # "a" twice is 10 bits: 00011 00011, and 6 ones.
    event = opened(make_client(), headers(1, BLOCK + b"\x00\x01n\x82\x18\xff"))

    assert event.headers.fields[-1] == (b"n", b"aa")


# --- the table ------------------------------------------------------------------------------------


def test_a_table_of_4096_is_valid_until_our_settings_are_acknowledged() -> None:
    client = Client()
    client.send(PREFACE, settings())
    fields = [*REQUEST, ("x-trace", "one")]

    first, second = client.encoder.encode(fields), client.encoder.encode(fields)
    events = client.send(headers(1, first), headers(3, second))

    assert len(second) < 10, "it consists of indices"
    requests = [event for event in events if isinstance(event, RequestReceived)]
    assert [r.headers.fields[-1] for r in requests] == [(b"x-trace", b"one")] * 2


def test_there_is_one_table_for_all_streams_refused_and_closed_ones_too() -> None:
    client = Client()
    client.send(PREFACE, settings())
    client.connection.reset(client.request(1), ErrorCode.CANCEL)
    encode = client.encoder.encode

    malformed = encode([(":method", "GET"), ("x-a", "1")])
    trailers_of_a_closed_stream = encode([("x-b", "2")])
    events = client.send(
        headers(3, malformed),
        headers(1, trailers_of_a_closed_stream, end=True),
        headers(5, encode([*REQUEST, ("x-a", "1"), ("x-b", "2")])),
    )

    (event,) = [event for event in events if isinstance(event, RequestReceived)]
    assert event.headers.fields[-2:] == ((b"x-a", b"1"), (b"x-b", b"2"))
    assert resets(client.frames())[-1] == (3, ErrorCode.PROTOCOL_ERROR)


def test_after_the_acknowledgement_references_to_the_table_are_errors() -> None:
    client = Client()
    client.send(PREFACE, settings())
    first = client.encoder.encode([*REQUEST, ("x-trace", "one")])
    second = client.encoder.encode([*REQUEST, ("x-trace", "one")])
    client.send(headers(1, first), settings_ack())

    client.assert_failed(ErrorCode.COMPRESSION_ERROR, headers(3, second))


def test_after_the_acknowledgement_an_encoder_that_obeys_is_understood() -> None:
    client = Client()
    client.send(PREFACE, settings())
    client.send(headers(1, client.encoder.encode(REQUEST)), settings_ack())
    client.encoder.header_table_size = 0

    for stream_id in (3, 5, 7):
        assert opened(client, headers(stream_id, client.encoder.encode(REQUEST))).stream.id
    assert client.connection.streams.keys() == {1, 3, 5, 7}


@pytest.mark.parametrize("size", [b"\x21", b"\x3f\x01", b"\x3f\xe1\x1f"], ids=["1", "32", "4096"])
def test_after_the_acknowledgement_any_table_is_too_large(size: bytes) -> None:
    make_client().assert_failed(ErrorCode.COMPRESSION_ERROR, headers(1, size + BLOCK))


def test_before_the_acknowledgement_a_smaller_table_is_the_clients_choice() -> None:
    client = Client()
    client.send(PREFACE, settings())

    event = opened(client, headers(1, b"\x20\x3f\xe1\x1f" + BLOCK))  # to 0, and back to 4096

    assert event.headers.fields == FIELDS


def test_literals_marked_for_indexing_are_understood_with_a_table_of_0() -> None:
    client = make_client()
    indexed = BLOCK + b"\x40" + string("x-a") + string("1")

    opened(client, headers(1, indexed))
    assert opened(client, headers(3, indexed)).headers.fields[-1] == (b"x-a", b"1")

    # ... but are in no table afterwards.
    client.assert_failed(ErrorCode.COMPRESSION_ERROR, headers(5, BLOCK + b"\xbe"))


# --- large lists ----------------------------------------------------------------------------------


def list_of(size_bytes: int) -> bytes:
    """Return a request whose header list has exactly this size, including 32 bytes a field."""
    used = sum(len(name) + len(value) + 32 for name, value in REQUEST)
    rest = size_bytes - used - len("x-long") - 32
    return BLOCK + encode(((b"x-long", b"v" * rest),))


def test_a_list_of_exactly_the_announced_size_is_accepted() -> None:
    client = make_client(max_header_list_bytes=4096)

    event = opened(client, *cut_headers(1, [list_of(4096)]))

    assert event.headers.size_bytes == 4096


@pytest.mark.parametrize("end", [False, True])
def test_a_list_above_the_announced_size_is_answered_431_without_an_event(end: bool) -> None:
    client = make_client(max_header_list_bytes=4096)

    client.assert_ignored()
    assert client.send(*cut_headers(1, [list_of(4097)], end=end)) == []

    frames = client.frames()
    sent = client.accounting.streams[1]
    assert sent.blocks == [[(b":status", b"431")]]
    assert sent.has_ended
    assert resets(frames) == ([] if end else [(1, ErrorCode.NO_ERROR)])
    assert client.counters.header_lists_refused == 1
    assert client.connection.streams == {}


def test_after_431_hpack_is_still_in_step() -> None:
    client = Client()
    client.send(PREFACE, settings())
    encode = client.encoder.encode
    large = [(f"x-{n}", "v" * 1000) for n in range(20)]

    first = encode([*REQUEST, ("x-a", "1"), *large, ("x-b", "2")])
    client.send(*cut_headers(1, [first[:16_000], first[16_000:]]))
    event = opened(client, headers(3, encode([*REQUEST, ("x-b", "2")])))

    client.frames()
    assert client.accounting.streams[1].blocks == [[(b":status", b"431")]]
    assert event.headers.fields[-1] == (b"x-b", b"2")


def test_the_list_counts_32_bytes_for_each_field() -> None:
    client = make_client(max_header_list_bytes=4096)
    # 6 bytes of block, 34 of list: 120 of them are 720 and 4080.
    small_fields = literals([("a", "b")] * 120)

    client.send(headers(1, BLOCK + small_fields))

    client.frames()
    assert client.accounting.streams[1].blocks == [[(b":status", b"431")]]


def test_far_above_the_announced_size_the_connection_ends_while_decoding() -> None:
    client = make_client(max_header_list_bytes=4096)
    # One-byte indices of 38-byte fields: a block of 1000 bytes, a list of 38,000.
    reason = client.assert_failed(ErrorCode.ENHANCE_YOUR_CALM, headers(1, INDEXED * 1000))

    assert "16384" in reason


def test_a_bomb_of_indices_into_the_table_ends_the_connection() -> None:
    client = Client()
    client.send(PREFACE, settings())
    bomb = b"\x40" + string("x") + string("v" * 3000) + b"\xbe" * 10_000  # 30 MB

    client.assert_failed(ErrorCode.ENHANCE_YOUR_CALM, headers(1, bomb))


def test_an_endless_block_is_refused_before_it_is_large() -> None:
    client = make_client(max_header_list_bytes=4096)
    fragment = ContinuationFrame(1, b"x" * 4096)

    client.send(headers(1, b"", end_headers=False), *[fragment] * 4)
    assert not client.connection.is_closed

    client.assert_failed(ErrorCode.ENHANCE_YOUR_CALM, ContinuationFrame(1, b"x"))


def test_large_trailers_keep_hpack_in_step() -> None:
    client = make_client(max_header_list_bytes=4096)
    client.request(1)

    client.send(headers(1, literals([("x", "v" * 100)] * 50), end=True))

    assert opened(client, headers(3)).headers.fields == FIELDS


# --- what we send ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 65_536])
def test_our_encoder_obeys_the_clients_header_table_size(size: int) -> None:
    client = Client().establish(header_table_size=size)
    # Like a client that has announced a smaller table: the next block must begin with an update.
    client.accounting.decoder.max_allowed_table_size = size

    for stream_id in (1, 3):
        client.connection.end(client.request(stream_id, end=True), RESPONSE)

    client.frames()
    status = (b":status", b"200")
    assert [client.accounting.streams[i].blocks[0][0] for i in (1, 3)] == [status] * 2


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 16_000])
def test_our_blocks_decode_the_same_with_any_decoder(length: int) -> None:
    fields = ((b"grpc-status", b"0"), (b"grpc-message", b"m" * length), (b"n" * length, b""))

    decoded = Decoder().decode(encode(fields), raw=True)

    assert tuple((bytes(name), bytes(value)) for name, value in decoded) == fields


def test_our_blocks_do_not_use_the_table() -> None:
    decoder = Decoder()

    decoder.decode(RESPONSE + TRAILERS)

    assert len(decoder.header_table.dynamic_entries) == 0

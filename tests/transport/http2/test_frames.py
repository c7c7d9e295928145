"""RFC 9113 §4 and §6: the format of frames."""

import pytest
from hyperframe.frame import SettingsFrame

from epp.transport.http2 import DataReceived, ErrorCode, RequestReceived
from transport.http2.wire import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FIELDS,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Client,
    block,
    content,
    data,
    headers,
    make_client,
    ping,
    ping_acks,
    priority,
    raw,
    settings,
    settings_ack,
)

REQUEST = block()


@pytest.mark.parametrize("kind", [0x0A, 0x10, 0x42, 0xBE, 0xFF])
@pytest.mark.parametrize("stream_id", [0, 1, 2, 9, 2**31 - 1])
def test_frames_of_unknown_type_are_ignored(kind: int, stream_id: int) -> None:
    client = make_client()
    client.request(1)

    client.assert_ignored(raw(kind, 0xFF, stream_id, b"whatever"))


def test_unknown_flags_are_ignored() -> None:
    client = make_client()
    client.accounting.settings_to_acknowledge += 1
    client.accounting.pings_to_acknowledge.append(b"12345678")

    client.send(
        raw(HEADERS, END_HEADERS | 0xD2, 1, REQUEST),
        raw(DATA, 0xF6, 1, b"one"),
        raw(SETTINGS, 0xFE),
        raw(WINDOW_UPDATE, 0xFF, 1, b"\0\0\0\1"),
        raw(PRIORITY, 0xFF, 1, b"\0\0\0\0\1"),
    )

    assert content(client.events) == b"one"
    assert ping_acks(client.responses_to(raw(PING, 0xFE, 0, b"12345678"))) == [b"12345678"]


def test_the_reserved_bit_is_ignored() -> None:
    client = make_client()
    reserved = 1 << 31

    client.send(
        raw(HEADERS, END_HEADERS, reserved | 1, REQUEST),
        raw(DATA, END_STREAM, reserved | 1, b"one"),
        raw(WINDOW_UPDATE, 0, reserved, b"\x80\0\0\1"),
    )

    request, content = client.events
    assert isinstance(request, RequestReceived)
    assert request.stream.id == 1
    assert isinstance(content, DataReceived)
    assert content.stream is request.stream
    client.assert_alive()


def test_unknown_settings_are_ignored_and_acknowledged() -> None:
    client = make_client()

    (frame,) = client.responses_to(settings({0x99: 2**32 - 1, 0x0: 1, 0x8: 1}))

    assert isinstance(frame, SettingsFrame)
    assert "ACK" in frame.flags


def test_a_ping_is_answered_with_the_same_octets() -> None:
    client = make_client()

    assert ping_acks(client.responses_to(ping(b"\0abc\xff\xfe12"))) == [b"\0abc\xff\xfe12"]


def test_a_ping_is_answered_while_streams_are_blocked_by_windows() -> None:
    client = make_client()
    stream = client.answered(1)
    client.connection.send_data(stream, bytes(200_000))
    client.frames()
    assert client.connection.sender.waiting_bytes == 200_000 - 65_535

    client.assert_alive()


def test_a_ping_is_answered_while_the_socket_is_full() -> None:
    client = make_client()
    client.connection.pause_writing()

    client.assert_alive()


@pytest.mark.parametrize("frame", [ping(ack=True), settings_ack()], ids=["PING", "SETTINGS"])
def test_an_acknowledgement_is_never_answered(frame: SettingsFrame) -> None:
    make_client().assert_ignored(frame)


def test_an_acknowledged_ping_is_counted() -> None:
    client = make_client()

    client.send(ping(ack=True), ping(), ping(ack=True))

    assert client.connection.pings_acknowledged == 2
    assert len(ping_acks(client.frames())) == 1


def test_the_server_can_send_a_ping() -> None:
    client = make_client()

    client.connection.send_ping(b"hi there")

    (frame,) = client.frames()
    assert (frame.opaque_data, set(frame.flags)) == (b"hi there", set())


@pytest.mark.parametrize("kind", [*range(10), 0x77])
def test_a_frame_above_our_max_frame_size_is_refused_at_its_header(kind: int) -> None:
    make_client().assert_failed(ErrorCode.FRAME_SIZE_ERROR, raw(kind, 0, 1, bytes(16_385))[:9])


def test_a_frame_of_exactly_our_max_frame_size_is_accepted() -> None:
    client = make_client(max_frame_bytes=20_000)
    client.request(1)

    assert content(client.send(data(1, bytes(20_000)))) == bytes(20_000)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(raw(PING, 0, 0, bytes(7)), id="PING of 7"),
        pytest.param(raw(PING, 0, 0, bytes(9)), id="PING of 9"),
        pytest.param(raw(PING, ACK, 0, b""), id="PING ACK of 0"),
        pytest.param(raw(SETTINGS, 0, 0, bytes(5)), id="SETTINGS of 5"),
        pytest.param(raw(SETTINGS, 0, 0, bytes(13)), id="SETTINGS of 13"),
        pytest.param(raw(SETTINGS, ACK, 0, bytes(6)), id="SETTINGS ACK with a value"),
        pytest.param(raw(SETTINGS, ACK, 0, bytes(1)), id="SETTINGS ACK with a byte"),
        pytest.param(raw(RST_STREAM, 0, 1, bytes(3)), id="RST_STREAM of 3"),
        pytest.param(raw(RST_STREAM, 0, 1, bytes(5)), id="RST_STREAM of 5"),
        pytest.param(raw(WINDOW_UPDATE, 0, 0, bytes(3)), id="WINDOW_UPDATE of 3"),
        pytest.param(raw(WINDOW_UPDATE, 0, 1, bytes(5)), id="WINDOW_UPDATE of 5 on a stream"),
        pytest.param(raw(GOAWAY, 0, 0, bytes(7)), id="GOAWAY of 7"),
        pytest.param(
            raw(HEADERS, END_HEADERS | PRIORITY_FIELDS, 3, bytes(4)),
            id="HEADERS of 4 with priority",
        ),
    ],
)
def test_a_frame_of_the_wrong_size_is_a_frame_size_error(frame: bytes) -> None:
    client = make_client()
    client.request(1)

    client.assert_failed(ErrorCode.FRAME_SIZE_ERROR, frame)


@pytest.mark.parametrize(
    ("kind", "size"),
    [(DATA, 1), (HEADERS, 1), (PRIORITY, 5), (RST_STREAM, 4), (CONTINUATION, 1)],
)
def test_a_stream_frame_on_stream_0_is_a_protocol_error(kind: int, size: int) -> None:
    make_client().assert_failed(ErrorCode.PROTOCOL_ERROR, raw(kind, END_HEADERS, 0, bytes(size)))


@pytest.mark.parametrize(("kind", "size"), [(SETTINGS, 0), (PING, 8), (GOAWAY, 8)])
@pytest.mark.parametrize("stream_id", [1, 2, 3])
def test_a_connection_frame_on_a_stream_is_a_protocol_error(
    kind: int, size: int, stream_id: int
) -> None:
    client = make_client()
    client.request(1)

    client.assert_failed(ErrorCode.PROTOCOL_ERROR, raw(kind, 0, stream_id, bytes(size)))


@pytest.mark.parametrize("stream_id", [0, 1, 2])
def test_push_promise_from_a_client_is_a_protocol_error(stream_id: int) -> None:
    client = make_client()
    client.request(1)

    client.assert_failed(
        ErrorCode.PROTOCOL_ERROR,
        raw(PUSH_PROMISE, END_HEADERS, stream_id, b"\0\0\0\2" + REQUEST),
    )


# --- padding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pad", [0, 1, 255])
def test_padding_of_data_is_removed(pad: int) -> None:
    client = make_client()
    client.request(1)

    (event,) = client.send(data(1, b"content", end=True, pad=pad))

    assert isinstance(event, DataReceived)
    assert (event.data, event.end_stream) == (b"content", True)


@pytest.mark.parametrize("pad", [0, 1, 255])
@pytest.mark.parametrize("with_priority", [False, True])
def test_padding_and_priority_of_headers_are_removed(pad: int, with_priority: bool) -> None:
    client = make_client()
    fields = (0, 255, True) if with_priority else None

    (event,) = client.send(headers(1, pad=pad, priority=fields, end=True))

    assert isinstance(event, RequestReceived)
    assert event.headers.problem == ""
    assert event.end_stream


def test_padding_counts_in_flow_control_and_is_credited_back() -> None:
    client = make_client(stream_window_bytes=65_535, connection_window_bytes=65_535)
    stream = client.request(1)
    before = stream.receive_window

    # A pad length of one octet and 255 octets of padding, without any content, ...
    client.send(data(1, pad=255))
    assert stream.receive_window == before - 256

    # ... until half a window is used up: 128 * 256 = 32 768.
    client.send(*[data(1, pad=255)] * 127)
    granted = [(f.stream_id, f.window_increment) for f in client.frames()]
    assert granted == [(0, 32_768), (1, 32_768)]
    assert stream.receive_window == before


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x01", b"\x05abcd", b"\xffabc"],
    ids=["no pad length", "just the payload", "one too long", "far too long"],
)
@pytest.mark.parametrize("kind", [DATA, HEADERS])
def test_padding_as_long_as_the_payload_is_a_protocol_error(kind: int, payload: bytes) -> None:
    client = make_client()
    client.request(1)

    client.assert_failed(
        ErrorCode.PROTOCOL_ERROR,
        raw(kind, PADDED | END_HEADERS | END_STREAM, 1 if kind == DATA else 3, payload),
    )


def test_padding_over_the_priority_fields_is_a_protocol_error() -> None:
    # One octet of pad length, five of priority, no fragment: not even one octet of padding fits.
    payload = b"\x01" + bytes(5)

    make_client().assert_failed(
        ErrorCode.PROTOCOL_ERROR,
        raw(HEADERS, PADDED | PRIORITY_FIELDS | END_HEADERS, 1, payload),
    )


@pytest.mark.parametrize("kind", [DATA, HEADERS])
def test_wrong_padding_is_a_connection_error_on_closed_streams_too(kind: int) -> None:
    client = make_client()
    stream = client.request(1)
    client.connection.reset(stream, ErrorCode.CANCEL)

    client.assert_failed(ErrorCode.PROTOCOL_ERROR, raw(kind, PADDED | END_HEADERS, 1, b"\x01"))


# --- priority -------------------------------------------------------------------------------------


def test_priority_is_accepted_in_any_state_and_does_nothing() -> None:
    client = make_client()
    client.request(1)
    client.request(3, end=True)
    client.connection.reset(client.request(5), ErrorCode.CANCEL)
    client.frames()

    # Open, half-closed, closed, idle, even, on itself, and the highest there is.
    for stream_id in (1, 3, 5, 7, 2, 2**31 - 1):
        client.assert_ignored(priority(stream_id), priority(stream_id, depends_on=stream_id))

    assert client.request(7).id == 7


def test_priority_does_not_open_a_stream_or_use_its_id() -> None:
    client = make_client()
    client.send(priority(9))

    assert client.request(1).id == 1


def test_priority_of_the_wrong_size_is_an_error_of_its_stream() -> None:
    client = make_client()
    client.request(1)

    client.assert_reset(1, ErrorCode.FRAME_SIZE_ERROR, raw(PRIORITY, 0, 1, bytes(4)))


def test_a_stream_may_depend_on_itself() -> None:
    client = make_client()

    (event,) = client.send(headers(1, priority=(1, 16, True)))

    assert isinstance(event, RequestReceived)


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 16_383, 2**24, 2**32 - 1])
def test_a_max_frame_size_out_of_range_is_a_protocol_error(size: int) -> None:
    make_client().assert_failed(ErrorCode.PROTOCOL_ERROR, settings(max_frame_size=size))


@pytest.mark.parametrize("size", [2**14, 2**24 - 1])
def test_a_max_frame_size_at_the_edge_is_accepted(size: int) -> None:
    client = make_client()

    client.send(settings(max_frame_size=size))

    client.assert_alive()


@pytest.mark.parametrize("size", [2**31, 2**32 - 1])
def test_an_initial_window_above_the_maximum_is_a_flow_control_error(size: int) -> None:
    make_client().assert_failed(ErrorCode.FLOW_CONTROL_ERROR, settings(initial_window_size=size))


def test_enable_push_above_1_is_a_protocol_error() -> None:
    make_client().assert_failed(ErrorCode.PROTOCOL_ERROR, settings(enable_push=2))


def test_settings_in_the_first_frame_are_validated() -> None:
    Client().assert_failed(ErrorCode.PROTOCOL_ERROR, PREFACE, settings(max_frame_size=1))

"""RFC 9113 §3.4: the order of the first frames."""

import h2.errors
import pytest
from hyperframe.frame import SettingsFrame, WindowUpdateFrame

from epp.transport.http2 import ConnectionLimits, ErrorCode, RequestReceived
from transport.http2.wire import (
    ACK,
    PREFACE,
    SETTINGS,
    Client,
    data,
    headers,
    ping,
    raw,
    serialized,
    settings,
    settings_ack,
)


def test_settings_are_the_first_frame_sent_and_announce_the_limits() -> None:
    limits = ConnectionLimits(
        max_concurrent_streams=77,
        max_frame_bytes=20_000,
        stream_window_bytes=99_000,
        max_header_list_bytes=5_000,
    )

    first = Client(limits).frames()[0]

    assert isinstance(first, SettingsFrame)
    assert first.settings == {
        SettingsFrame.HEADER_TABLE_SIZE: 0,
        SettingsFrame.MAX_CONCURRENT_STREAMS: 77,
        SettingsFrame.INITIAL_WINDOW_SIZE: 99_000,
        SettingsFrame.MAX_FRAME_SIZE: 20_000,
        SettingsFrame.MAX_HEADER_LIST_SIZE: 5_000,
    }


def test_the_connection_window_is_opened_right_after_the_settings() -> None:
    _, update = Client(ConnectionLimits(connection_window_bytes=1 << 20)).frames()

    assert isinstance(update, WindowUpdateFrame)
    assert (update.stream_id, update.window_increment) == (0, (1 << 20) - 65_535)


def test_a_connection_window_below_the_default_is_the_default() -> None:
    assert len(Client(ConnectionLimits(connection_window_bytes=1000)).frames()) == 1


def test_the_clients_settings_are_acknowledged_once_each() -> None:
    client = Client()
    client.frames()

    client.send(PREFACE, settings(), settings(initial_window_size=5))

    acknowledgements = client.frames()
    assert [(type(f), set(f.flags)) for f in acknowledgements] == [(SettingsFrame, {"ACK"})] * 2
    assert all(not frame.settings for frame in acknowledgements)


def test_the_connection_knows_when_its_own_settings_are_acknowledged() -> None:
    client = Client()
    client.send(PREFACE, settings())
    assert not client.connection.is_settled

    client.send(settings_ack())

    assert client.connection.is_settled
    assert client.frames()[-1].stream_id == 0


def test_bytes_may_arrive_one_by_one() -> None:
    octets = PREFACE + serialized(
        [
            settings(),
            settings_ack(),
            headers(1),
            data(1, b"hello", pad=3),
            ping(),
            data(1, end=True),
        ]
    )
    at_once, slowly = Client(), Client()
    at_once.send_bytes(octets)

    for octet in octets:
        slowly.send_bytes(bytes((octet,)))

    assert list(map(type, slowly.events)) == list(map(type, at_once.events))
    assert slowly.connection.take_output() == at_once.connection.take_output()
    assert isinstance(slowly.events[0], RequestReceived)


def test_an_empty_read_has_no_effect() -> None:
    client = Client()

    assert client.send_bytes(b"") == []
    assert not client.connection.is_mid_frame


@pytest.mark.parametrize("cut", [1, 10, 23])
def test_half_a_preface_is_neither_established_nor_an_error(cut: int) -> None:
    client = Client()

    assert client.send_bytes(PREFACE[:cut]) == []

    assert client.connection.is_mid_frame
    assert not client.connection.is_established
    assert not client.connection.is_closed


def test_it_is_established_by_the_preface_with_the_head_of_its_settings() -> None:
    client = Client()
    client.send_bytes(PREFACE + raw(SETTINGS)[:8])
    assert not client.connection.is_established

    client.send_bytes(raw(SETTINGS)[8:])

    assert client.connection.is_established
    assert not client.connection.is_mid_frame


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "an HTTP/1 request", id="HTTP/1.1"),
        pytest.param(
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a TLS handshake", id="a TLS hello"
        ),
        pytest.param(PREFACE[:-2] + b"\n\n", "no HTTP/2 preface", id="a preface with a wrong end"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSN", "no HTTP/2 preface", id="wrong in the middle"),
        pytest.param(b"\x00", "no HTTP/2 preface", id="one wrong byte"),
        pytest.param(serialized([settings()]), "no HTTP/2 preface", id="no preface"),
    ],
)
def test_a_wrong_preface_is_a_connection_error(octets: bytes, reason: str) -> None:
    assert Client().assert_failed(ErrorCode.PROTOCOL_ERROR, octets).startswith(reason)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(serialized([ping()]), id="PING"),
        pytest.param(serialized([headers(1)]), id="HEADERS"),
        pytest.param(raw(0xBE, 0, 0, b"x"), id="a frame of unknown type"),
        pytest.param(raw(SETTINGS, ACK), id="an acknowledgement of SETTINGS"),
    ],
)
def test_a_preface_without_settings_is_a_connection_error(first: bytes) -> None:
    Client().assert_failed(ErrorCode.PROTOCOL_ERROR, PREFACE + first)


def test_first_settings_that_are_too_long_are_refused_at_their_header() -> None:
    head = raw(SETTINGS, payload=b"x" * 16_386)[:9]

    Client().assert_failed(ErrorCode.FRAME_SIZE_ERROR, PREFACE + head)


def test_a_client_may_open_a_stream_before_it_has_seen_our_settings() -> None:
    client = Client()

    (event,) = client.send(PREFACE, settings(), headers(1, end=True))

    assert isinstance(event, RequestReceived)
    assert event.end_stream


def test_incomplete_frames_and_header_blocks_are_reported() -> None:
    client = Client().establish()
    assert not client.connection.is_mid_frame

    client.send_bytes(serialized([ping()])[:12])
    assert client.connection.is_mid_frame

    client.send_bytes(serialized([ping()])[12:] + headers(1, end_headers=False).serialize())
    assert client.connection.is_mid_frame


def test_error_codes_are_those_of_the_rfc() -> None:
    assert {c.name: int(c) for c in ErrorCode} == {c.name: int(c) for c in h2.errors.ErrorCodes}

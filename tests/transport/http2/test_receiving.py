"""RFC 9113 §5.2 and §6.9: receive windows, renewed in batches."""

import pytest

from epp.transport.http2 import ConnectionLimits, ErrorCode
from transport.http2.wire import (
    PREFACE,
    Client,
    content,
    data,
    headers,
    make_client,
    settings,
    settings_ack,
    window,
    windows,
)

FRAME = 1 << 14


def test_windows_are_renewed_in_batches_of_half_their_size() -> None:
    client = make_client(stream_window_bytes=8 * FRAME, connection_window_bytes=16 * FRAME)
    client.request(1)
    client.request(3)

    granted = [
        windows(client.responses_to(data(stream_id, bytes(FRAME))))
        for stream_id in (1, 1, 1, 1, 3, 3, 3, 3)
    ]

    assert granted == [
        [],
        [],
        [],
        [(1, 4 * FRAME)],
        [],
        [],
        [],
        [(0, 8 * FRAME), (3, 4 * FRAME)],
    ]


def test_the_window_of_a_paused_stream_is_renewed_later() -> None:
    client = make_client(stream_window_bytes=8 * FRAME, connection_window_bytes=16 * FRAME)
    paused = client.request(1)
    client.request(3)
    connection = client.connection
    connection.pause_reading(paused)

    granted = [
        windows(client.responses_to(data(stream_id, bytes(FRAME))))
        for stream_id in [1] * 8 + [3] * 4
    ]
    assert [each for each in granted if each] == [[(0, 8 * FRAME)], [(3, 4 * FRAME)]]

    connection.resume_reading(paused)
    assert windows(client.frames()) == [(1, 8 * FRAME)]
    assert windows(client.responses_to(data(1, bytes(FRAME)))) == []


def test_resuming_an_ended_stream_has_no_effect() -> None:
    client = make_client()
    stream = client.request(1)
    client.connection.pause_reading(stream)
    client.send(data(1, bytes(FRAME)))
    client.assert_reset(1, ErrorCode.STREAM_CLOSED, data(1, b"", end=True), data(1, b"x"))
    client.connection.resume_reading(stream)
    assert client.frames() == []


def test_a_window_is_renewed_by_exactly_the_bytes_received() -> None:
    client = make_client(stream_window_bytes=100_000, connection_window_bytes=65_535)
    stream = client.request(1)
    granted = {0: 0, 1: 0}

    for number in range(200):
        for stream_id, size in windows(client.responses_to(data(1, bytes(number * 37), pad=5))):
            granted[stream_id] += size

    received = sum(number * 37 + 6 for number in range(200))
    assert stream.receive_window == 100_000 - (received - granted[1])
    assert stream.to_acknowledge == received - granted[1] < 50_000
    assert 0 <= received - granted[0] < 65_535


def test_3_mb_arrive_intact() -> None:
    client = make_client()
    client.request(1)
    sent = [bytes((number % 256,)) * 16_000 for number in range(200)]

    client.send(*[data(1, piece) for piece in sent])

    assert content(client.events) == b"".join(sent)


def test_a_stream_that_has_ended_needs_no_window() -> None:
    client = make_client(stream_window_bytes=65_535)
    client.request(1)

    client.send(data(1, bytes(FRAME)))

    assert windows(client.responses_to(data(1, bytes(FRAME), end=True))) == []


def test_a_client_that_exceeds_a_streams_window_gets_a_flow_control_error() -> None:
    client = make_client(stream_window_bytes=65_535, max_frame_bytes=100_000)
    client.request(1)
    client.request(3)

    client.assert_reset(1, ErrorCode.FLOW_CONTROL_ERROR, data(1, bytes(65_536)))

    assert content(client.send(data(3, bytes(65_535)))) == bytes(65_535)


def test_padding_alone_can_exceed_a_window() -> None:
    client = make_client(stream_window_bytes=65_535, max_frame_bytes=100_000)
    client.request(1)

    client.assert_reset(1, ErrorCode.FLOW_CONTROL_ERROR, data(1, bytes(65_535), pad=0))


def test_a_client_that_exceeds_the_connections_window_gets_a_flow_control_error() -> None:
    client = make_client(
        stream_window_bytes=1 << 20, connection_window_bytes=65_535, max_frame_bytes=100_000
    )
    client.request(1)

    client.assert_failed(ErrorCode.FLOW_CONTROL_ERROR, data(1, bytes(65_536)))


def test_until_our_settings_are_acknowledged_windows_are_at_least_the_default() -> None:
    client = Client(ConnectionLimits(stream_window_bytes=1000))
    client.send(PREFACE, settings(), headers(1))
    assert content(client.send(data(1, bytes(FRAME)))) == bytes(FRAME)

    client.send(settings_ack(), headers(3))

    client.assert_reset(3, ErrorCode.FLOW_CONTROL_ERROR, data(3, bytes(1001)))


def test_the_window_of_an_unwritable_stream_is_not_renewed() -> None:
    client = make_client(stream_window_bytes=65_535, writable_below_bytes=1000)
    client.send(settings(initial_window_size=0))
    stream, other = client.answered(1), client.answered(3)
    client.connection.send_data(stream, bytes(2000))

    granted = windows(client.responses_to(*[data(1, bytes(FRAME))] * 3))
    assert granted == []
    assert windows(client.responses_to(*[data(3, bytes(FRAME))] * 3)) == [(3, 2 * FRAME)]

    # Half of the limit is left: both directions continue.
    client.responses_to(window(1, 1500))
    assert client.connection.take_writable() == [stream]
    assert windows(client.frames()) == [(1, 3 * FRAME)]
    assert stream.receive_window == 65_535
    assert other.receive_window == 65_535 - FRAME


def test_a_client_that_ignores_a_closed_window_gets_a_flow_control_error() -> None:
    client = make_client(stream_window_bytes=65_535, writable_below_bytes=1000)
    client.send(settings(initial_window_size=0))
    client.connection.send_data(client.answered(1), bytes(2000))
    client.send(*[data(1, bytes(FRAME))] * 3)

    client.assert_reset(1, ErrorCode.FLOW_CONTROL_ERROR, data(1, bytes(FRAME)))

    assert client.connection.sender.waiting_bytes == 0


def test_the_connections_window_is_renewed_while_a_stream_is_unwritable() -> None:
    client = make_client(
        stream_window_bytes=1 << 20, connection_window_bytes=65_535, writable_below_bytes=1000
    )
    client.send(settings(initial_window_size=0))
    client.connection.send_data(client.answered(1), bytes(2000))

    granted = windows(client.responses_to(*[data(1, bytes(FRAME))] * 8))

    assert {stream_id for stream_id, _ in granted} == {0}
    assert sum(size for _, size in granted) == 8 * FRAME


def test_empty_data_is_no_event() -> None:
    client = make_client()
    client.request(1)

    client.assert_ignored(data(1), data(1, pad=7))


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("max_frame_bytes", (1 << 14) - 1, "max_frame_bytes"),
        ("max_frame_bytes", 1 << 24, "max_frame_bytes"),
        ("stream_window_bytes", 1 << 31, "window"),
        ("connection_window_bytes", 1 << 31, "window"),
        ("stream_window_bytes", 0, "stream_window_bytes"),
        ("max_concurrent_streams", 0, "max_concurrent_streams"),
        ("early_reset_budget", -1, "early_reset_budget"),
    ],
)
def test_limits_out_of_range_are_refused(name: str, value: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ConnectionLimits(**{name: value})

"""Time limits of one connection, in memory and with a manual clock."""

import pytest
from structlog.testing import capture_logs

from tools.harness.in_memory import make, make_one
from tools.harness.raw_client import (
    PREFACE,
    Idle,
    call,
    data,
    headers,
    message,
    ping,
    settings,
)

KIB, MIB = 1 << 10, 1 << 20
MAX_STREAM_ID = (1 << 31) - 1


@pytest.mark.parametrize(
    "sent", [b"", PREFACE[:10], PREFACE, PREFACE + b"\0\0"], ids=lambda sent: f"{len(sent)} bytes"
)
def test_incomplete_preface_times_out(sent: bytes) -> None:
    client, _ = make(timeouts={"preface_seconds": 5}, greeting=sent)
    client.tick(2)
    if len(sent) > 4:
        client.send(b"")  # a sign of life does not help
    client.tick(2)
    assert not client.is_over
    with capture_logs() as lines:
        client.tick()
    assert client.transport.was_aborted
    assert client.server.counters.connections_timed_out == 1
    assert [line["reason"] for line in lines] == ["no HTTP/2 preface"]


@pytest.mark.parametrize(
    "part",
    [data(1, b"x" * 100)[:50], headers(3)[:5], headers(3)[:12]],
    ids=["half DATA", "half a frame header", "half HEADERS"],
)
def test_incomplete_frame_times_out(part: bytes) -> None:
    client, (handler,) = make_one(Idle, timeouts={"frame_seconds": 5})
    client.tick(20)
    assert not client.is_over  # silence between frames is none of it
    client.send(part)
    client.tick(5)
    assert not client.is_over
    client.tick()
    assert client.transport.was_aborted
    client.protocol.connection_lost(None)
    assert handler.resets == 1


def test_incomplete_header_block_times_out() -> None:
    client, _ = make(timeouts={"frame_seconds": 5})
    block = bytearray(headers(1))
    block[4] &= ~0x4  # END_HEADERS
    client.send(bytes(block))
    client.tick(6)
    assert client.transport.was_aborted


@pytest.mark.parametrize(
    "frames",
    [
        data(1, b"x" * 100),
        headers(3),
        settings(initial_window_size=1),
        ping() * 10,
    ],
    ids=["DATA", "HEADERS", "SETTINGS", "PINGs, each begun with the end of the one before"],
)
def test_dripping_frame_times_out(frames: bytes) -> None:
    client, _ = make_one(Idle, timeouts={"frame_seconds": 5})
    client.send(frames[:5])
    for n in range(5, 10):
        client.tick()
        assert not client.is_over
        client.send(frames[n : n + 1])
    client.tick()
    assert client.transport.was_aborted


def test_large_frame_on_a_slow_network_does_not_time_out() -> None:
    client, (handler,) = make_one(Idle, timeouts={"frame_seconds": 5})
    frame = data(1, message(b"x" * 16000))
    for n in range(0, len(frame), 600):
        client.send(frame[n : n + 600])
        client.tick()
    assert handler.messages == [b"x" * 16000]
    assert not client.is_over


def test_handshake_counts_towards_the_preface() -> None:
    client, _ = make(timeouts={"preface_seconds": 10}, greeting=b"", handshake_seconds=7.5)
    client.tick(2)
    assert not client.is_over
    client.tick()
    assert client.transport.was_aborted


def test_frame_does_not_time_out_while_reading_is_paused() -> None:
    client, _ = make(timeouts={"frame_seconds": 5}, limits={"max_control_output_bytes": 10})
    client.transport.pause()
    client.send(ping(), data(1, b"x" * 100)[:3])
    assert client.transport.is_reading_paused
    client.tick(20)
    assert not client.is_over


def test_peer_that_never_reads_times_out() -> None:
    client, _ = make(
        timeouts={"keepalive_seconds": 5, "keepalive_timeout_seconds": 2},
        limits={"max_control_output_bytes": 10},
    )
    client.send(headers(1))
    client.transport.pause()
    client.send(ping())
    assert client.transport.is_reading_paused
    client.tick(6)
    assert not client.is_over
    client.tick()
    assert client.transport.was_aborted


def test_slow_reader_does_not_time_out() -> None:
    client, (handler,) = make_one(
        Idle,
        timeouts={"keepalive_seconds": 5, "keepalive_timeout_seconds": 2},
        room_bytes=100 * KIB,
    )
    handler.stream.send(b"x" * MIB)
    for _ in range(20):
        client.tick(6)
        client.transport.buffered_bytes -= 1000
        client.tick()
    assert not client.is_over
    client.transport.drain()
    client.tick(6)
    assert not client.is_over  # it has read: only now does its silence count
    assert len(client.pings) == 1
    client.tick()
    assert client.transport.was_aborted


def test_connection_without_streams_ends_gracefully_when_idle() -> None:
    client, _ = make(timeouts={"idle_seconds": 5, "keepalive_seconds": 100})
    client.send(call(1, b"a"))
    client.tick(4)
    client.send(call(3, b"a"))  # over before the next second, and yet a use
    client.tick(5)
    assert client.goaways == []
    client.tick()
    assert client.goaways == [(MAX_STREAM_ID, 0)]
    client.send(call(5, b"b"), ping(b"shutdown", ack=True))
    assert client.streams[5].messages == [b"b"]
    assert client.goaways == [(MAX_STREAM_ID, 0), (5, 0)]
    assert client.transport.was_ended
    assert client.server.counters.connections_timed_out == 0


def test_connection_with_a_silent_stream_is_not_idle() -> None:
    client, _ = make_one(Idle, timeouts={"idle_seconds": 5, "keepalive_seconds": 10_000})
    client.tick(1000)
    assert client.goaways == []
    assert not client.is_over


def test_keepalive_accepts_any_bytes_as_a_response() -> None:
    client, _ = make_one(Idle, timeouts={"keepalive_seconds": 5, "keepalive_timeout_seconds": 2})
    for asked in range(1, 6):
        client.tick(4)
        assert len(client.pings) == asked - 1
        client.tick(2)
        assert len(client.pings) == asked
        client.send(ping(client.pings[-1].opaque_data, ack=True))
    assert not client.is_over


def test_keepalive_without_a_response_ends_the_connection() -> None:
    client, (handler,) = make_one(
        Idle, timeouts={"keepalive_seconds": 5, "keepalive_timeout_seconds": 2}
    )
    client.tick(6)
    assert not client.is_over
    client.tick()
    assert client.transport.was_aborted
    assert client.server.counters.connections_timed_out == 1
    client.protocol.connection_lost(None)
    assert handler.resets == 1


def test_flood_budgets_are_replenished_every_second() -> None:
    client, _ = make(limits={"control_frame_budget": 100})
    for _ in range(20):
        client.send(ping() * 90)
        client.tick()
    assert client.goaways == []
    with capture_logs() as lines:
        client.send(ping() * 101)
    assert client.goaways == [(0, 11)]
    assert client.transport.was_ended
    assert [(line["event"], line["code"]) for line in lines] == [
        ("connection ended", "ENHANCE_YOUR_CALM")
    ]

"""The end of a connection, in memory."""

import errno

import pytest
from structlog.testing import capture_logs

from tools.harness.in_memory import InMemory, make, make_one
from tools.harness.raw_client import (
    GREETING,
    SETTINGS_ACK,
    Idle,
    call,
    data,
    fields,
    goaway,
    headers,
    message,
    ping,
    reset,
    window_update,
)

KIB, MIB = 1 << 10, 1 << 20
MAX_STREAM_ID = (1 << 31) - 1


def test_shutdown_has_two_steps_and_loses_no_stream() -> None:
    client, handlers = make(Idle)
    client.send(headers(1))
    client.protocol.begin_shutdown()
    client.read()
    assert client.goaways == [(MAX_STREAM_ID, 0)]
    client.send(headers(3))  # was under way
    client.send(ping(client.pings[-1].opaque_data, ack=True))
    assert client.goaways == [(MAX_STREAM_ID, 0), (3, 0)]
    client.send(headers(5), data(5, message(b"late"), end=True))
    assert [5 in client.streams, len(handlers)] == [False, 2]
    handlers[0].stream.finish()
    client.send(data(3, message(b"a"), end=True))
    assert not client.is_over
    handlers[1].stream.send(b"b")
    handlers[1].stream.finish()
    client.tick()
    assert [client.streams[n].status for n in (1, 3)] == [0, 0]
    assert client.streams[3].messages == [b"b"]
    assert client.transport.was_ended
    assert [handler.resets for handler in handlers] == [0, 0]


def test_unacknowledged_shutdown_is_limited_after_a_while() -> None:
    client, handlers = make_one(Idle)
    client.protocol.begin_shutdown()
    client.tick(2)
    assert client.goaways == [(MAX_STREAM_ID, 0)]
    client.tick()
    assert client.goaways == [(MAX_STREAM_ID, 0), (1, 0)]
    assert not client.is_over
    handlers[0].stream.finish()
    client.tick()
    assert client.transport.was_ended


def test_shutdown_of_an_unused_connection_waits_for_the_ping() -> None:
    client, _ = make()
    client.protocol.begin_shutdown()
    assert not client.is_over
    client.read()
    client.send(ping(b"shutdown", ack=True))
    assert client.transport.was_ended


def test_shutdown_before_the_preface_closes_at_once() -> None:
    client, _ = make(greeting=b"")
    client.protocol.begin_shutdown()
    assert client.transport.was_closed


def test_dead_peer_is_detected_during_shutdown() -> None:
    client, _ = make_one(Idle, timeouts={"keepalive_seconds": 5, "keepalive_timeout_seconds": 2})
    client.protocol.begin_shutdown()
    client.tick(7)
    assert client.transport.was_aborted


def test_end_streams_resets_the_handlers_and_closes() -> None:
    client, (handler,) = make_one(Idle)
    client.protocol.begin_shutdown()
    client.protocol.end_streams()
    client.read()
    assert client.goaways == [(MAX_STREAM_ID, 0), (1, 0)]
    assert client.transport.was_ended
    assert handler.resets == 1
    handler.stream.send(b"ignored")
    handler.stream.finish()
    client.protocol.connection_lost(None)
    assert handler.resets == 1


def test_connection_whose_peer_has_gone_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, (handler,) = make_one(Idle)

    def fail() -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(client.transport, "write_eof", fail)
    client.protocol.end_streams()
    assert client.transport.was_aborted
    assert handler.resets == 1


@pytest.mark.parametrize("when", ["in a read", "later"])
def test_goaway_of_the_client_lets_its_streams_end(when: str) -> None:
    client, handlers = make(Idle)
    client.send(headers(1), headers(3))
    client.send(goaway())
    client.send(reset(1))
    assert not client.is_over
    if when == "later":
        handlers[1].stream.finish()
        client.tick()
        assert client.streams[3].status == 0
    else:
        client.send(reset(3))
    assert client.goaways == [(3, 0)]  # ours
    assert client.transport.was_ended


def test_goaway_without_streams_closes_at_once() -> None:
    client, _ = make()
    client.send(goaway())
    assert client.goaways == [(0, 0)]  # ours
    assert client.transport.was_ended


def test_half_closed_connection_ends_after_written_responses() -> None:
    client, handlers = make(Idle)
    client.send(headers(1))
    client.protocol.eof_received()
    assert client.transport.was_closed
    assert handlers[0].resets == 1
    client.protocol.connection_lost(None)
    assert handlers[0].resets == 1
    assert client.server.connections == set()


def test_half_closed_connection_that_is_not_read_is_aborted() -> None:
    client, handlers = make_one(Idle, timeouts={"keepalive_seconds": 1000})
    client.transport.pause()
    handlers[0].stream.send(b"x" * MIB)
    client.protocol.eof_received()
    client.tick(3)
    assert client.transport.was_aborted


def test_lost_connection_resets_every_stream_and_accepts_no_more() -> None:
    client, handlers = make(Idle)
    client.send(*(headers(n) for n in range(1, 20, 2)))
    handlers[0].stream.finish()
    before = client.read()
    client.protocol.connection_lost(ConnectionResetError())
    assert [handler.resets for handler in handlers] == [0] + [1] * 9
    for handler in handlers:
        handler.stream.send(b"ignored")
        handler.stream.finish()
    assert client.read() == before
    assert client.server.connections == set()


def test_deadline_of_a_lost_stream_is_cancelled() -> None:
    client, _ = make(Idle)
    client.send(headers(1, fields(grpc_timeout="5S")))
    (timer,) = client.timers.timers
    assert timer.seconds == 5
    client.protocol.connection_lost(None)
    assert timer.is_cancelled


class Breaking(Idle):
    """Raises in ``reset``."""

    def reset(self) -> None:
        super().reset()
        raise ZeroDivisionError


def test_failing_reset_does_not_keep_other_handlers_from_reset() -> None:
    client, handlers = make(Breaking)
    client.send(*(headers(n) for n in range(1, 20, 2)))
    with capture_logs() as lines:
        client.protocol.connection_lost(None)
    assert [handler.resets for handler in handlers] == [1] * 10
    assert [line["event"] for line in lines] == ["stream handler failed"] * 10


def test_settings_are_acknowledged() -> None:
    client, _ = make(greeting=b"")
    client.read()
    first, *_ = client.frames
    assert type(first).__name__ == "SettingsFrame"
    assert "ACK" not in first.flags
    client.send(GREETING)
    assert [frame.serialize() for frame in client.frames if "ACK" in frame.flags] == [SETTINGS_ACK]


# --- the last bytes -------------------------------------------------------------------------------


def make_ended(can_end: bool = True) -> InMemory:
    """Connect; shut down when 1 MB of response waits for the client to read."""
    client, (handler,) = make_one(
        Idle,
        can_end=can_end,
        timeouts={"keepalive_seconds": 50, "keepalive_timeout_seconds": 20},
    )
    handler.stream.send(b"x" * MIB)
    handler.stream.finish()
    client.transport.pause()
    client.transport.buffered_bytes = MIB
    client.protocol.begin_shutdown()
    client.read()
    client.send(ping(b"shutdown", ack=True))
    assert client.goaways == [(MAX_STREAM_ID, 0), (1, 0)]
    return client


def test_slow_reader_gets_everything() -> None:
    client = make_ended()
    assert client.transport.was_ended
    for _ in range(10):
        client.tick(60)
        client.transport.buffered_bytes -= 100 * KIB
    client.tick()
    client.transport.drain()
    client.tick(19)
    assert not client.transport.is_closing()
    client.protocol.eof_received()
    assert client.transport.was_closed
    assert not client.transport.was_aborted


def test_peer_that_stops_reading_is_aborted() -> None:
    client = make_ended()
    client.tick(69)
    assert not client.transport.is_closing()
    client.tick()
    assert client.transport.was_aborted


def test_peer_that_does_not_close_is_aborted() -> None:
    client = make_ended()
    client.transport.drain()
    client.tick(19)
    assert not client.transport.is_closing()
    client.send(window_update(0, 1))  # dropped, and no sign of anything
    client.tick()
    assert client.transport.was_aborted


def test_bytes_after_the_servers_end_are_dropped() -> None:
    client = make_ended()
    before = client.read()
    client.send(call(3, b"late"), ping(), data(99), b"\xff" * 100)
    assert client.read() == before
    assert client.server.counters.http2.connection_faults.total() == 0
    assert client.server.open_streams == 0


def test_closing_resumes_paused_reading() -> None:
    client, _ = make(limits={"max_control_output_bytes": 10})
    client.transport.pause()
    client.send(ping())
    assert client.transport.is_reading_paused
    client.protocol.end_streams()
    assert client.transport.was_ended
    assert not client.transport.is_reading_paused


def test_failed_connection_is_closed_soon() -> None:
    client, _ = make()
    with capture_logs():
        client.send(data(1))  # on an idle stream
    assert client.goaways == [(0, 1)]
    assert client.transport.was_ended
    client.tick(2)
    assert not client.transport.is_closing()
    client.tick()
    assert client.transport.was_aborted


# --- behind TLS, which cannot end one side --------------------------------------------------------


def test_behind_tls_the_response_to_a_last_ping_allows_the_close() -> None:
    client = make_ended(can_end=False)
    client.read()
    assert client.pings[-1].opaque_data == b"farewell"
    client.tick(60)
    client.transport.drain()
    client.send(window_update(0, 1), ping(b"whatever"))
    assert not client.is_over
    client.send(ping(b"farewell", ack=True))
    assert client.transport.was_closed
    client.tick(2)
    assert not client.transport.was_aborted
    client.tick()
    assert client.transport.was_aborted


def test_behind_tls_responses_to_earlier_pings_do_not() -> None:
    client, (handler,) = make_one(
        Idle,
        can_end=False,
        timeouts={"keepalive_seconds": 2, "keepalive_timeout_seconds": 9},
    )
    client.tick(3)
    assert len(client.pings) == 1
    handler.stream.finish()
    client.send(goaway())
    assert client.goaways == [(1, 0)]
    client.send(ping(client.pings[0].opaque_data, ack=True))
    assert not client.is_over
    client.send(ping(client.pings[1].opaque_data, ack=True))
    assert client.transport.was_closed


def test_behind_tls_a_peer_that_does_not_respond_is_aborted() -> None:
    client = make_ended(can_end=False)
    client.transport.drain()
    client.tick(19)
    assert not client.is_over
    client.tick()
    assert client.transport.was_closed
    client.tick(3)
    assert client.transport.was_aborted


def test_behind_tls_a_failed_connection_is_closed_after_a_second() -> None:
    client, _ = make(can_end=False)
    with capture_logs():
        client.send(data(1))  # on an idle stream
    assert client.goaways == [(0, 1)]
    assert not client.is_over
    client.send(ping())  # dropped
    assert client.pings == []
    client.tick()
    assert client.transport.was_closed
    client.tick(3)
    assert client.transport.was_aborted


def test_behind_tls_the_end_of_the_client_closes_once() -> None:
    client = make_ended(can_end=False)
    client.transport.drain()
    client.send(ping(b"farewell", ack=True))
    client.protocol.eof_received()
    assert client.transport.closes == 1
    client.protocol.connection_lost(None)
    assert client.server.connections == set()

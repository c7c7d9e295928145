"""One connection, in memory and with time in the test's hands."""

from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from epp.transport import Stream, Timeouts, TransportSettings
from epp.transport.http2 import ConnectionLimits
from transport.in_memory import InMemory, connect
from transport.raw_client import (
    GREETING,
    METHOD,
    PREFACE,
    SETTINGS_ACK,
    Echo,
    Idle,
    call,
    data,
    fields,
    goaway,
    headers,
    message,
    ping,
    reset,
    settings,
    window_update,
)

KIB, MIB = 1 << 10, 1 << 20
MAX_STREAM_ID = (1 << 31) - 1


def make(
    handler: type[Echo] = Echo,
    *,
    timeouts: Mapping[str, float] = {},
    limits: Mapping[str, int] = {},
    **options: Any,
) -> tuple[InMemory, list[Echo]]:
    """Connect; the handlers of the streams that are opened are put into the list."""
    handlers: list[Echo] = []

    def opened(stream: Stream, metadata: Mapping[str, str]) -> Echo:
        handlers.append(handler(stream, metadata))
        return handlers[-1]

    given = TransportSettings(timeouts=Timeouts(**timeouts), connection=ConnectionLimits(**limits))
    return connect({METHOD: opened}, settings=given, **options), handlers


# --- writes ---------------------------------------------------------------------------------------


def test_everything_read_at_once_is_answered_with_one_write() -> None:
    client, _ = make()
    ids = range(1, 101, 2)
    assert client.send(*(call(n, b"a", b"b") for n in ids), ping()) == 1
    assert [client.streams[n].messages for n in ids] == [[b"a", b"b"]] * 50
    assert {client.streams[n].status for n in ids} == {0}
    assert len(client.pings) == 1


def test_messages_on_open_streams_are_answered_with_one_write() -> None:
    client, _ = make()
    ids = range(1, 101, 2)
    client.send(*(headers(n) for n in ids))
    assert client.send(*(data(n, message(b"a")) for n in ids)) == 1
    assert [client.streams[n].messages for n in ids] == [[b"a"]] * 50


def test_read_that_asks_for_nothing_is_not_answered() -> None:
    client, _ = make(Idle)
    assert client.send(headers(1), data(1, message(b"a"))) == 0


def test_what_is_sent_later_is_written_at_once() -> None:
    client, (handler,) = make_one(Idle)
    before = client.read()
    handler.stream.send(b"a")
    assert client.read() == before + 1
    handler.stream.finish()
    assert client.read() == before + 2
    assert (client.streams[1].messages, client.streams[1].status) == ([b"a"], 0)


def make_one(
    handler: type[Echo] = Echo, frames: bytes = headers(1), **options: Any
) -> tuple[InMemory, list[Echo]]:
    """Connect and open stream 1."""
    client, handlers = make(handler, **options)
    client.send(frames)
    return client, handlers


def test_large_answer_is_written_in_bursts() -> None:
    client, (handler,) = make_one(Idle)
    before = client.read()
    handler.stream.send(b"x" * (5 * MIB))
    handler.stream.finish()
    writes = client.transport.writes[before:]
    client.read()
    assert client.streams[1].messages == [b"x" * (5 * MIB)]
    assert client.streams[1].status == 0
    assert max(map(len, writes)) < 6 * MIB


# --- write back-pressure --------------------------------------------------------------------------


def test_full_socket_makes_streams_unwritable_until_it_drains() -> None:
    client, (handler,) = make_one(Idle)
    client.transport.pause()
    before = client.read()
    for _ in range(3):
        assert handler.stream.is_writable
        handler.stream.send(b"x" * (400 * KIB))
    assert not handler.stream.is_writable
    assert client.read() - before <= 1  # the headers alone
    assert client.streams[1].messages == []
    assert handler.writables == 0
    client.transport.drain()
    client.read()
    assert client.streams[1].messages == [b"x" * (400 * KIB)] * 3
    assert handler.stream.is_writable
    assert handler.writables == 1


class Endless(Idle):
    """Sends as long as it may."""

    def message(self, data: bytes) -> None:
        self.writable()

    def writable(self) -> None:
        self.writables += 1
        while self.stream.is_writable:
            self.stream.send(b"x" * (100 * KIB))


def test_handler_that_sends_whenever_it_may_fills_the_socket_only() -> None:
    client, handlers = make(Endless, room_bytes=MIB)
    client.send(headers(1), data(1, message(b"go")))
    for rounds in range(2, 12):
        taken = client.transport.buffered_bytes
        assert MIB <= taken <= 3 * MIB
        assert client.protocol.connection.sender.waiting_bytes <= 2 * MIB
        client.transport.drain()
        assert handlers[0].writables >= rounds
    client.read()
    client.send(reset(1))
    assert client.protocol.connection.sender.waiting_bytes == 0


def test_write_that_fills_the_socket_does_not_stop_reading() -> None:
    client, handlers = make(Idle, room_bytes=100 * KIB)
    client.send(headers(1))
    handlers[0].stream.send(b"x" * MIB)
    assert client.transport.is_paused
    assert not client.transport.is_reading_paused
    client.send(reset(1))
    assert handlers[0].resets == 1


def test_control_frames_are_answered_while_the_socket_is_full() -> None:
    client, _ = make()
    client.transport.pause()
    client.send(ping(b"abcdefgh"), settings())
    assert [each.opaque_data for each in client.pings] == [b"abcdefgh"]
    assert not client.transport.is_reading_paused


@pytest.mark.parametrize("frame", [ping(), settings()], ids=["PING", "SETTINGS"])
def test_peer_that_piles_up_answers_is_not_read_until_it_reads(frame: bytes) -> None:
    client, _ = make(limits={"control_frame_budget": 1 << 20})
    client.transport.pause()
    client.transport.buffered_bytes = 0
    sent = 0
    while not client.transport.is_reading_paused:
        client.send(frame * 100)
        sent += 100
    assert client.transport.buffered_bytes < 64 * KIB + 2000
    client.transport.drain()
    assert not client.transport.is_reading_paused
    assert len(client.frames) >= sent
    client.send(call(1, b"a"))
    assert client.streams[1].messages == [b"a"]


def test_stream_on_which_too_much_waits_is_ended_and_told_once() -> None:
    client, (handler,) = make_one(Idle, limits={"max_waiting_stream_bytes": MIB})
    client.transport.pause()
    handler.stream.send(b"x" * (900 * KIB))
    handler.stream.send(b"x" * (900 * KIB))
    assert handler.resets == 0  # not from inside its own call
    handler.stream.send(b"ignored")
    client.timers.run()
    assert handler.resets == 1
    client.read()
    assert client.streams[1].status == 8
    assert client.protocol.connection.sender.waiting_bytes == 0
    assert client.server.counters.grpc.calls_overflowed == 1


class Failing(Echo):
    """Answers, and fails at the half-close."""

    def half_closed(self) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("why", ["failure", "deadline", "cut short"])
def test_call_that_is_broken_off_does_not_wait_for_the_window_of_its_client(why: str) -> None:
    closed = PREFACE + settings(initial_window_size=0) + SETTINGS_ACK
    client, handlers = make(Failing, greeting=closed)
    client.send(headers(1, fields(grpc_timeout="5S")), data(1, message(b"hello")))
    assert client.streams[1].blocks[1:] == []
    with capture_logs():
        if why == "deadline":
            client.timers.run()
        else:
            client.send(data(1, b"\0" if why == "cut short" else b"", end=True))
    client.read()
    assert client.streams[1].data == b""
    assert client.streams[1].status == (4 if why == "deadline" else 13)
    assert handlers[0].resets == 1
    assert client.server.open_streams == 0
    assert client.protocol.connection.sender.waiting_bytes == 0


def test_call_that_ends_in_order_waits_for_the_window_of_its_client() -> None:
    closed = PREFACE + settings(initial_window_size=0) + SETTINGS_ACK
    client, _ = make(greeting=closed)
    client.send(call(1, b"hello"))
    answer = client.streams[1]
    assert not answer.is_ended
    client.send(window_update(1, 9))
    assert not answer.is_ended
    client.send(window_update(1, 1))
    assert (answer.messages, answer.status, answer.is_ended) == ([b"hello"], 0, True)


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent", [b"", PREFACE[:10], PREFACE, PREFACE + b"\0\0"], ids=lambda sent: f"{len(sent)} bytes"
)
def test_unfinished_preface_is_waited_for_in_vain(sent: bytes) -> None:
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
def test_half_a_frame_ends_the_connection_in_time(part: bytes) -> None:
    client, (handler,) = make_one(Idle, timeouts={"frame_seconds": 5})
    client.tick(20)
    assert not client.is_over  # silence between frames is none of it
    client.send(part)
    client.tick(4)
    assert not client.is_over
    client.tick()
    assert client.transport.was_aborted
    client.protocol.connection_lost(None)
    assert handler.resets == 1


def test_unfinished_header_block_ends_the_connection_in_time() -> None:
    client, _ = make(timeouts={"frame_seconds": 5})
    block = bytearray(headers(1))
    block[4] &= ~0x4  # END_HEADERS
    client.send(bytes(block))
    client.tick(5)
    assert client.transport.was_aborted


def test_bytes_that_go_on_are_waited_for() -> None:
    client, _ = make(timeouts={"frame_seconds": 5})
    frames = call(1, b"hello")
    for n in range(0, len(frames), 10):
        client.send(frames[n : n + 10])
        client.tick(4)
    assert client.streams[1].messages == [b"hello"]


def test_frame_that_we_do_not_read_on_is_not_the_peers_fault() -> None:
    client, _ = make(timeouts={"frame_seconds": 5}, limits={"max_control_output_bytes": 10})
    client.transport.pause()
    client.send(ping(), data(1, b"x" * 100)[:3])
    assert client.transport.is_reading_paused
    client.tick(20)
    assert not client.is_over


def test_peer_that_never_reads_is_lost_in_the_end() -> None:
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


def test_peer_that_reads_slowly_is_kept() -> None:
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
    assert client.transport.was_closed
    assert client.server.counters.connections_timed_out == 0


def test_connection_with_a_silent_stream_is_not_idle() -> None:
    client, _ = make_one(Idle, timeouts={"idle_seconds": 5, "keepalive_seconds": 10_000})
    client.tick(1000)
    assert client.goaways == []
    assert not client.is_over


def test_keepalive_asks_after_silence_and_is_content_with_any_answer() -> None:
    client, _ = make_one(Idle, timeouts={"keepalive_seconds": 5, "keepalive_timeout_seconds": 2})
    for asked in range(1, 6):
        client.tick(4)
        assert len(client.pings) == asked - 1
        client.tick(2)
        assert len(client.pings) == asked
        client.send(ping(client.pings[-1].opaque_data, ack=True))
    assert not client.is_over


def test_keepalive_without_an_answer_ends_the_connection() -> None:
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


def test_budgets_against_floods_are_refilled_by_the_second() -> None:
    client, _ = make(limits={"control_frame_budget": 100})
    for _ in range(20):
        client.send(ping() * 90)
        client.tick()
    assert client.goaways == []
    with capture_logs() as lines:
        client.send(ping() * 101)
    assert client.goaways == [(0, 11)]
    assert client.transport.was_closed
    assert [(line["event"], line["code"]) for line in lines] == [
        ("connection ended", "ENHANCE_YOUR_CALM")
    ]


def test_closing_connection_that_is_not_read_is_cut() -> None:
    client, _ = make()
    with capture_logs():
        client.send(data(1))  # on an idle stream
    assert client.goaways == [(0, 1)]
    assert client.transport.was_closed
    client.tick(2)
    assert not client.transport.was_aborted
    client.tick()
    assert client.transport.was_aborted


# --- the end --------------------------------------------------------------------------------------


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
    assert client.transport.was_closed
    assert [handler.resets for handler in handlers] == [0, 0]


def test_shutdown_that_is_not_acknowledged_is_limited_all_the_same() -> None:
    client, handlers = make_one(Idle)
    client.protocol.begin_shutdown()
    client.tick(2)
    assert client.goaways == [(MAX_STREAM_ID, 0)]
    client.tick()
    assert client.goaways == [(MAX_STREAM_ID, 0), (1, 0)]
    assert not client.is_over
    handlers[0].stream.finish()
    client.tick()
    assert client.transport.was_closed


def test_shutdown_of_an_unused_connection_waits_for_the_peer_to_know() -> None:
    client, _ = make()
    client.protocol.begin_shutdown()
    assert not client.is_over
    client.read()
    client.send(ping(b"shutdown", ack=True))
    assert client.transport.was_closed


def test_shutdown_before_the_preface_closes_at_once() -> None:
    client, _ = make(greeting=b"")
    client.protocol.begin_shutdown()
    assert client.transport.was_closed


def test_dead_peer_is_noticed_during_shutdown_as_well() -> None:
    client, _ = make_one(Idle, timeouts={"keepalive_seconds": 5, "keepalive_timeout_seconds": 2})
    client.protocol.begin_shutdown()
    client.tick(7)
    assert client.transport.was_aborted


def test_cut_tells_the_handlers_and_closes() -> None:
    client, (handler,) = make_one(Idle)
    client.protocol.begin_shutdown()
    client.protocol.cut()
    client.read()
    assert client.goaways == [(MAX_STREAM_ID, 0), (1, 0)]
    assert client.transport.was_closed
    assert handler.resets == 1
    handler.stream.send(b"ignored")
    handler.stream.finish()
    client.protocol.connection_lost(None)
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
    assert client.transport.was_closed


def test_goaway_without_streams_closes_at_once() -> None:
    client, _ = make()
    client.send(goaway())
    assert client.transport.was_closed


def test_half_closed_connection_ends_after_what_was_answered() -> None:
    client, handlers = make(Idle)
    client.send(headers(1))
    client.protocol.eof_received()
    assert client.transport.was_closed
    assert handlers[0].resets == 1
    client.protocol.connection_lost(None)
    assert handlers[0].resets == 1
    assert client.server.connections == set()


def test_half_closed_connection_that_is_not_read_is_cut() -> None:
    client, handlers = make_one(Idle, timeouts={"keepalive_seconds": 1000})
    client.transport.pause()
    handlers[0].stream.send(b"x" * MIB)
    client.protocol.eof_received()
    client.tick(3)
    assert client.transport.was_aborted


def test_lost_connection_resets_every_stream_and_takes_no_more() -> None:
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


def test_deadline_of_a_lost_stream_is_stopped() -> None:
    client, _ = make(Idle)
    client.send(headers(1, fields(grpc_timeout="5S")))
    (timer,) = client.timers.timers
    assert timer.seconds == 5
    client.protocol.connection_lost(None)
    assert timer.is_cancelled


class Breaking(Idle):
    """Fails when it is told of the end."""

    def reset(self) -> None:
        super().reset()
        raise ZeroDivisionError


def test_handler_that_fails_at_the_end_keeps_no_other_from_being_told() -> None:
    client, handlers = make(Breaking)
    client.send(*(headers(n) for n in range(1, 20, 2)))
    with capture_logs() as lines:
        client.protocol.connection_lost(None)
    assert [handler.resets for handler in handlers] == [1] * 10
    assert [line["event"] for line in lines] == ["stream handler failed"] * 10


def test_greeting_is_acknowledged() -> None:
    client, _ = make(greeting=b"")
    client.read()
    first, *_ = client.frames
    assert type(first).__name__ == "SettingsFrame"
    assert "ACK" not in first.flags
    client.send(GREETING)
    assert [frame.serialize() for frame in client.frames if "ACK" in frame.flags] == [SETTINGS_ACK]

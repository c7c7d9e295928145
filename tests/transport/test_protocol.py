"""One connection in memory: writes, and back-pressure by peers that do not read."""

import pytest
from structlog.testing import capture_logs

from tools.harness.in_memory import make, make_one
from tools.harness.raw_client import (
    PREFACE,
    SETTINGS_ACK,
    Echo,
    Idle,
    call,
    data,
    fields,
    headers,
    message,
    ping,
    reset,
    settings,
    window_update,
)

KIB, MIB = 1 << 10, 1 << 20


# --- writes ---------------------------------------------------------------------------------------


def test_one_read_is_answered_with_one_write() -> None:
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


def test_read_without_a_response_causes_no_write() -> None:
    client, _ = make(Idle)
    assert client.send(headers(1), data(1, message(b"a"))) == 0


def test_later_messages_are_written_at_once() -> None:
    client, (handler,) = make_one(Idle)
    before = client.read()
    handler.stream.send(b"a")
    assert client.read() == before + 1
    handler.stream.finish()
    assert client.read() == before + 2
    assert (client.streams[1].messages, client.streams[1].status) == ([b"a"], 0)


def test_large_response_is_written_in_bursts() -> None:
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
    """Sends while the stream is writable."""

    def message(self, data: bytes) -> None:
        self.writable()

    def writable(self) -> None:
        self.writables += 1
        while self.stream.is_writable:
            self.stream.send(b"x" * (100 * KIB))


def test_handler_that_sends_while_writable_buffers_little() -> None:
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
def test_peer_that_does_not_read_control_frames_is_not_read(frame: bytes) -> None:
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


def test_stream_with_too_much_waiting_is_ended_and_reset_once() -> None:
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
    """Responds, and raises at half-close."""

    def half_closed(self) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("why", ["failure", "deadline", "cut short"])
def test_aborted_call_does_not_wait_for_the_clients_window(why: str) -> None:
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


def test_completed_call_waits_for_the_clients_window() -> None:
    closed = PREFACE + settings(initial_window_size=0) + SETTINGS_ACK
    client, _ = make(greeting=closed)
    client.send(call(1, b"hello"))
    response = client.streams[1]
    assert not response.is_ended
    client.send(window_update(1, 9))
    assert not response.is_ended
    client.send(window_update(1, 1))
    assert (response.messages, response.status, response.is_ended) == ([b"hello"], 0, True)


# --- reading that is paused -----------------------------------------------------------------------


def test_end_of_a_turn_does_not_resume_a_peer_that_does_not_read() -> None:
    client, _ = make(limits={"max_control_output_bytes": 10, "control_frame_budget": 1 << 20})
    client.transport.pause()
    client.send(ping() * 10_000)  # a large read, and too many acknowledgements
    assert client.transport.is_reading_paused
    client.timers.run()
    assert client.transport.is_reading_paused
    client.transport.drain()
    assert not client.transport.is_reading_paused


def test_drained_output_does_not_end_the_turn_of_others() -> None:
    client, _ = make(limits={"max_control_output_bytes": 10, "control_frame_budget": 1 << 20})
    client.transport.pause()
    client.send(ping() * 10_000)
    client.transport.drain()
    assert client.transport.is_reading_paused
    client.timers.run()
    assert not client.transport.is_reading_paused

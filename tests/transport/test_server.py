"""The server on real sockets: floods, slow readers, ends, limits and ports."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from epp.transport import Http2Server, ListenError, TransportSettings
from epp.transport.http2 import ConnectionLimits
from epp.transport.protocol import ConnectionProtocol
from transport.raw_client import (
    GREETING,
    MAX_WINDOW,
    PREFACE,
    SETTINGS_ACK,
    Echo,
    Idle,
    RawClient,
    Serving,
    call,
    connected,
    data,
    goaway,
    headers,
    message,
    ping,
    reset,
    serving,
    settings,
    window_update,
)

KIB, MIB = 1 << 10, 1 << 20
MAX_STREAM_ID = (1 << 31) - 1


async def assert_serves(port: int) -> None:
    """A new connection is served."""
    async with connected(port) as client:
        client.send(call(1, b"hello"))
        answer = await client.answer(1)
        assert (answer.messages, answer.status) == ([b"hello"], 0)


def only_connection(served: Serving) -> ConnectionProtocol:
    (protocol,) = served.server.connections
    return protocol


# --- peers that do not read -----------------------------------------------------------------------


async def send_until_it_blocks(client: RawClient, frames: bytes) -> int:
    """Send ``frames`` again and again; return how often it was until nobody read any more."""
    transport, count, turns = client.writer.transport, 0, 0
    while turns < 50:
        if transport.get_write_buffer_size():
            turns += 1
            await asyncio.sleep(0)  # a turn for the server
        else:
            turns = 0
            transport.write(frames)
            count += 1
    return count


@pytest.mark.parametrize(
    ("frame", "answer"),
    [(ping(), ping(ack=True)), (settings(), SETTINGS_ACK)],
    ids=["PING", "SETTINGS"],
)
async def test_flood_whose_answers_are_not_read_is_not_read_on(frame: bytes, answer: bytes) -> None:
    # Without the budget, which would end the connection first.
    given = TransportSettings(connection=ConnectionLimits(control_frame_budget=1 << 30))
    async with (
        serving(settings=given) as served,
        connected(served.port, receive_buffer_bytes=4 * KIB) as client,
    ):
        await client.round_trip()
        protocol = only_connection(served)
        count = 1000 * await send_until_it_blocks(client, frame * 1000)
        assert protocol._is_read_paused
        buffered = protocol._transport.get_write_buffer_size()
        assert buffered < given.connection.write_burst_bytes + MIB
        assert protocol.connection.sender.output == []
        await assert_serves(served.port)
        assert await client.reader.readexactly(count * len(answer)) == answer * count
        client.send(call(1, b"hello"))
        assert (await client.answer(1)).messages == [b"hello"]


async def test_flood_of_pings_ends_its_connection_alone() -> None:
    async with serving() as served, connected(served.port) as neighbour:
        neighbour.send(headers(1), data(1, message(b"a")))
        await neighbour.round_trip()
        with capture_logs() as lines:
            async with connected(served.port) as client:
                client.send(ping() * 20_000)
                await client.at_end()
                assert client.goaways == [(0, 11)]
        assert [(line["event"], line["code"]) for line in lines] == [
            ("connection ended", "ENHANCE_YOUR_CALM")
        ]
        neighbour.send(data(1, message(b"b"), end=True))
        assert (await neighbour.answer(1)).messages == [b"a", b"b"]


class Flooding(Idle):
    """Sends numbered messages as long as it may, 40 MB in all."""

    sent = 0

    def message(self, data: bytes) -> None:
        self.writable()

    def writable(self) -> None:
        self.writables += 1
        while self.stream.is_writable and self.sent < 400:
            self.stream.send(b"%06d" % self.sent + bytes(100 * KIB))
            self.sent += 1
        if self.sent == 400:
            self.stream.finish()


async def test_slow_reader_with_open_windows_stops_its_handler() -> None:
    async with (
        serving(Flooding) as served,
        connected(served.port, receive_buffer_bytes=4 * KIB) as client,
    ):
        client.pause_reading()
        client.send(headers(1), data(1, message(b"go")))
        async with connected(served.port) as other:
            other.send(headers(1))
            await other.round_trip()
        handler = cast("Flooding", served.handlers[0])
        protocol = next(each for each in served.server.connections if each.connection.streams)
        assert handler.sent < 200
        assert not handler.stream.is_writable
        assert protocol._transport.get_write_buffer_size() < 4 * MIB
        assert protocol.connection.sender.waiting_bytes < 2 * MIB
        client.resume_reading()
        answer = await client.answer(1)
        assert [int(each[:6]) for each in answer.messages] == list(range(400))
        assert answer.status == 0


async def test_closed_windows_stop_a_handler_and_open_ones_let_it_go_on() -> None:
    async with (
        serving(Flooding) as served,
        connected(served.port, PREFACE + settings(initial_window_size=0)) as client,
    ):
        client.send(headers(1), data(1, message(b"go")))
        await client.round_trip()
        handler = cast("Flooding", served.handlers[0])
        assert client.streams[1].data == b""
        assert not handler.stream.is_writable
        assert handler.sent < 20
        client.send(window_update(1, 10))
        await client.round_trip()
        assert len(client.streams[1].data) == 10
        client.send(window_update(1, MAX_WINDOW - 10), window_update(0, MAX_WINDOW - 65535))
        answer = await client.answer(1)
        assert [int(each[:6]) for each in answer.messages] == list(range(400))


async def test_reset_while_the_reader_is_slow_drops_what_waits() -> None:
    async with (
        serving(Flooding) as served,
        connected(served.port, PREFACE + settings(initial_window_size=0)) as client,
    ):
        client.send(headers(1), data(1, message(b"go")))
        await client.round_trip()
        sender = only_connection(served).connection.sender
        assert sender.waiting_bytes > 0
        client.send(reset(1))
        await client.round_trip()
        assert sender.waiting_bytes == 0
        assert served.handlers[0].resets == 1


# --- the graceful end -----------------------------------------------------------------------------


async def test_stop_has_two_steps_and_waits_for_the_streams() -> None:
    async with serving(Idle) as served, connected(served.port) as client:
        client.send(headers(1))
        await client.round_trip()
        stopping = asyncio.create_task(served.server.stop(10))
        await client.until(lambda: client.goaways)
        assert client.goaways == [(MAX_STREAM_ID, 0)]
        # A stream that was under way when the client heard of it.
        client.send(headers(3), ping(client.pings[-1].opaque_data, ack=True))
        await client.until(lambda: len(client.goaways) == 2)
        assert client.goaways[1] == (3, 0)
        client.send(headers(5))
        await client.round_trip()
        assert len(served.handlers) == 2
        for handler in served.handlers:
            handler.stream.send(b"last")
            handler.stream.finish()
        for stream_id in (1, 3):
            answer = await client.answer(stream_id)
            assert (answer.messages, answer.status) == ([b"last"], 0)
        assert 5 not in client.streams
        only_connection(served).tick()
        await client.at_end()
        await stopping
        assert [handler.resets for handler in served.handlers] == [0, 0]


async def test_stop_cuts_after_the_grace() -> None:
    async with serving(Idle) as served, connected(served.port) as client:
        client.send(headers(1))
        await client.round_trip()
        await served.server.stop(0.05)
        assert served.handlers[0].resets == 1
        await client.at_end()
        assert client.goaways == [(MAX_STREAM_ID, 0), (1, 0)]
        assert client.streams == {}


async def test_stop_cuts_a_connection_that_is_not_read() -> None:
    async with (
        serving(Flooding) as served,
        connected(served.port, receive_buffer_bytes=4 * KIB) as client,
    ):
        client.pause_reading()
        client.send(headers(1), data(1, message(b"go")))
        await assert_served_beside(served)
        await served.server.stop(0)
        assert served.server.connections == set()
        assert served.handlers[0].resets == 1
        client.resume_reading()
        await client.at_end()


async def assert_served_beside(served: Serving) -> None:
    """A round trip on another connection: what was sent before has been taken."""
    async with connected(served.port) as other:
        await other.round_trip()


async def test_stopped_server_takes_no_connection() -> None:
    async with serving() as served:
        await served.server.stop(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", served.port)
        await served.server.stop(0)  # again: nothing


async def test_server_that_never_started_can_be_stopped() -> None:
    server = Http2Server({})
    await server.stop(0)
    assert server.connections == set()


async def test_stop_ends_silent_connections_at_once() -> None:
    async with serving() as served, connected(served.port, b"") as silent:
        await silent.until(lambda: silent.frames)
        await served.server.stop(10)
        await silent.at_end()


async def test_goaway_of_the_client_lets_its_streams_end_and_closes() -> None:
    async with serving(Idle) as served, connected(served.port) as client:
        client.send(headers(1), goaway())
        await client.round_trip()
        client.send(data(1, message(b"more"), end=True))
        await client.round_trip()
        (handler,) = served.handlers
        assert (handler.messages, handler.half_closes, handler.resets) == ([b"more"], 1, 0)
        handler.stream.send(b"last")
        handler.stream.finish()
        assert (await client.answer(1)).messages == [b"last"]
        only_connection(served).tick()
        await client.at_end()
        assert client.goaways == []


# --- connections that end otherwise ---------------------------------------------------------------


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def half_close(raw: socket.socket) -> None:
    raw.shutdown(socket.SHUT_WR)


def close(raw: socket.socket) -> None:
    raw.close()


def abort(raw: socket.socket) -> None:
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


SENT = {
    "nothing": b"",
    "half a preface": PREFACE[:12],
    "a greeting": GREETING,
    "an open stream": GREETING + headers(1),
    "half HEADERS": GREETING + headers(1)[:15],
    "half DATA": GREETING + headers(1) + data(1, message(b"hello"))[:12],
    "half a message": GREETING + headers(1) + data(1, message(b"hello")[:7]),
}


@pytest.mark.parametrize("drop", [half_close, close, abort])
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
def test_dropped_connection_leaves_nothing_behind(
    sent: bytes, drop: Callable[[socket.socket], None]
) -> None:
    async def test() -> None:
        async with serving(Idle) as served:
            loop = asyncio.get_running_loop()
            before = await loop.run_in_executor(None, open_descriptors)
            sockets = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(10)]
            for raw in sockets:
                raw.sendall(sent)
            await assert_served_beside(served)
            for raw in sockets:
                drop(raw)
            await assert_served_beside(served)
            assert await served.server._is_empty_within(5)
            for raw in sockets:
                raw.close()
            await asyncio.sleep(0)
            assert await loop.run_in_executor(None, open_descriptors) == before
            assert [handler.resets for handler in served.handlers] == [1] * len(served.handlers)
            assert served.server.open_streams == 0

    asyncio.run(test())


NOT_HTTP2 = {
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP/1.1 POST": b"POST /test.Service/Talk HTTP/1.1\r\n",
    "one letter": b"G",
    "TLS hello": bytes.fromhex("1603010200010001fc0303") + bytes(500),
    "corrupt preface": PREFACE[:-3] + b"X\r\n",
    "preface without SETTINGS": PREFACE + ping(),
    "zeros": bytes(100),
}


@pytest.mark.parametrize("sent", NOT_HTTP2.values(), ids=NOT_HTTP2)
async def test_what_is_not_http2_is_closed_at_once(sent: bytes) -> None:
    async with serving() as served:
        with capture_logs() as lines:
            async with connected(served.port, sent) as client:
                await client.at_end()
                assert client.goaways == [(0, 1)]
        assert [line["event"] for line in lines] == ["connection ended"]
        await assert_serves(served.port)


# --- limits and ports -----------------------------------------------------------------------------


async def test_connections_above_the_limit_are_closed_and_counted() -> None:
    async with serving(settings=TransportSettings(max_connections=2)) as served:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(served.port)) for _ in range(2)]
            for client in clients:
                await client.round_trip()
            async with connected(served.port) as third:
                await third.at_end()
                assert third.frames == []
            for client in clients:
                client.send(call(1, b"a"))
                assert (await client.answer(1)).messages == [b"a"]
            counters = served.server.counters
            assert (counters.connections_opened, counters.connections_refused) == (3, 1)
        assert await served.server._is_empty_within(5)
        await assert_serves(served.port)


@asynccontextmanager
async def two_servers(given: TransportSettings) -> AsyncIterator[tuple[Serving, Serving]]:
    async with (
        serving(settings=given) as first,
        serving(settings=given, port=first.port) as second,
    ):
        yield first, second


async def test_servers_share_a_port_if_they_are_told_to() -> None:
    given = TransportSettings(reuse_port=True)
    async with two_servers(given) as (first, second):
        assert first.port == second.port
        # The kernel spreads connections by their hash: both get some of a hundred.
        for _ in range(100):
            await assert_serves(first.port)
        assert len(first.handlers) + len(second.handlers) == 100
        assert first.handlers
        assert second.handlers
        await first.server.stop(0)
        await assert_serves(first.port)


@pytest.mark.parametrize("second", [False, True], ids=["neither shares", "one shares"])
async def test_taken_port_is_a_listen_error(second: bool) -> None:
    async with serving() as served:
        given = replace(TransportSettings(), reuse_port=second)
        server = Http2Server({}, host="127.0.0.1", port=served.port, settings=given)
        with pytest.raises(ListenError, match="another process using the port") as caught:
            await server.start()
        assert caught.value.address == f"127.0.0.1:{served.port}"
        await server.stop(0)
        await assert_serves(served.port)


async def test_address_that_is_not_ours_is_a_listen_error() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:0"):
        await Http2Server({}, host="192.0.2.1").start()


async def test_server_listens_on_ipv6() -> None:
    server = Http2Server({}, host="::1")
    try:
        port = await server.start()
    except ListenError:
        pytest.skip("no IPv6 here")
    with socket.create_connection(("::1", port)) as raw:
        raw.sendall(b"x")
        await assert_closed(raw)
    await server.stop(0)


async def assert_closed(raw: socket.socket) -> None:
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    with capture_logs():
        while await loop.sock_recv(raw, 1000):
            pass


# --- the server's second --------------------------------------------------------------------------


async def test_server_ticks_every_connection() -> None:
    given = TransportSettings(connection=ConnectionLimits(control_frame_budget=100))
    async with serving(settings=given) as served, connected(served.port) as client:
        for _ in range(5):
            client.send(ping() * 90)
            await client.round_trip()
            served.server._timer.cancel()  # type: ignore[union-attr]
            served.server._tick()
        assert client.goaways == []


async def test_statistics_of_streams_go_back_to_zero() -> None:
    async with serving(Echo) as served, connected(served.port) as client:
        client.send(*(headers(n) for n in range(1, 41, 2)))
        await client.round_trip()
        assert served.server.open_streams == 20
        client.send(*(data(n, end=True) for n in range(1, 21, 2)))
        client.send(*(reset(n) for n in range(21, 41, 2)))
        await client.round_trip()
        assert served.server.open_streams == 0

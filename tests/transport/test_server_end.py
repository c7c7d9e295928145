"""How connections of a server on real sockets end."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from epp.transport import Http2Server
from tools.harness.ports import free_ports
from tools.harness.raw_client import (
    GREETING,
    PREFACE,
    Idle,
    Serving,
    connected,
    data,
    goaway,
    headers,
    message,
    ping,
    serving,
    window_update,
)
from transport.served import Flooding, assert_served_beside, assert_serves, only_connection
from transport.tls_contexts import tls_contexts

KIB, MIB = 1 << 10, 1 << 20
MAX_STREAM_ID = (1 << 31) - 1

Test = Callable[[], Coroutine[Any, Any, None]]
Run = Callable[[Test], None]


async def test_a_cancelled_start_leaves_no_listener() -> None:
    (port,) = free_ports(1)
    cut_short = 0
    for turns in range(5):
        server = Http2Server({}, host="127.0.0.1", port=port)
        starting = asyncio.create_task(server.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        cut_short += starting.cancelled()
        await server.stop(0)
        with socket.socket() as after:
            after.bind(("127.0.0.1", port))
    assert cut_short >= 2


async def test_stop_has_two_steps_and_waits_for_the_streams() -> None:
    async with serving(Idle) as served, connected(served.port) as client:
        client.send(headers(1))
        await client.round_trip()
        stopping = asyncio.create_task(served.server.stop(10))
        await client.until(lambda: client.goaways)
        assert client.goaways == [(MAX_STREAM_ID, 0)]
        # A stream opened before the client received the GOAWAY.
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
            response = await client.response(stream_id)
            assert (response.messages, response.status) == ([b"last"], 0)
        assert 5 not in client.streams
        only_connection(served).tick()
        await client.at_end()
        client.writer.close()
        await stopping
        assert [handler.resets for handler in served.handlers] == [0, 0]


async def test_stop_aborts_after_the_grace_period() -> None:
    async with serving(Idle) as served, connected(served.port) as client:
        client.send(headers(1))
        await client.round_trip()
        await served.server.stop(0.05)
        assert served.handlers[0].resets == 1
        await client.at_end()
        assert client.goaways == [(MAX_STREAM_ID, 0), (1, 0)]
        assert client.streams == {}


async def test_stop_aborts_a_connection_that_is_not_read() -> None:
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


async def test_stopped_server_accepts_no_connection() -> None:
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


# --- connections that end otherwise ---------------------------------------------------------------


def open_descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


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
            # Meanwhile, the garbage collector may have closed some of other tests.
            assert await loop.run_in_executor(None, open_descriptors) <= before
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
async def test_other_protocols_are_closed_at_once(sent: bytes) -> None:
    async with serving() as served:
        with capture_logs() as lines:
            async with connected(served.port, sent) as client:
                await client.at_end()
                assert client.goaways == [(0, 1)]
        assert [line["event"] for line in lines] == ["connection ended"]
        await assert_serves(served.port)


# --- the last bytes -------------------------------------------------------------------------------


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on one of the event loops."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(test: Test) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(test())

    return run


@pytest.mark.parametrize("is_tls", [False, True], ids=["plaintext", "TLS"])
@pytest.mark.parametrize("keeps_sending", [False, True], ids=["silent", "keeps sending"])
def test_stop_loses_no_bytes_of_a_slow_client(run: Run, is_tls: bool, keeps_sending: bool) -> None:
    server, trusting = tls_contexts() if is_tls else (None, None)

    async def test() -> None:
        async with (
            serving(Idle, tls=server) as served,
            connected(served.port, tls=trusting, receive_buffer_bytes=4 * KIB) as client,
        ):
            client.send(headers(1))
            await client.round_trip()
            client.pause_reading()
            stopping = asyncio.create_task(served.server.stop(15))
            await asyncio.sleep(0)
            client.send(ping(b"shutdown", ack=True))
            (handler,) = served.handlers
            handler.stream.send(b"x" * (6 * MIB))
            handler.stream.finish()
            protocol = only_connection(served)
            while protocol.connection.streams:
                # The rest, more than the socket accepts, is in asyncio's buffer.
                client.resume_reading()
                await client._read()
                client.pause_reading()
            for _ in range(5):  # the client stalls
                protocol.tick()
                await asyncio.sleep(0)
            client.resume_reading()
            response = client.streams[1]
            while not response.is_over:
                if keeps_sending:
                    client.send(window_update(0, 1))
                await client._read()
            assert response.messages == [b"x" * (6 * MIB)]
            assert response.status == 0
            if is_tls:
                await client.until(lambda: client.pings[-1].opaque_data == b"farewell")
                client.send(ping(b"farewell", ack=True))
            await client.at_end()
            client.writer.close()
            await stopping
            assert handler.resets == 0

    run(test)


async def test_stop_aborts_a_client_that_neither_reads_nor_closes() -> None:
    async with (
        serving(Idle) as served,
        connected(served.port, receive_buffer_bytes=4 * KIB) as client,
    ):
        client.send(headers(1))
        await client.round_trip()
        client.pause_reading()
        (handler,) = served.handlers
        handler.stream.send(b"x" * (4 * MIB))
        handler.stream.finish()
        client.send(goaway())
        await served.server.stop(0.05)
        assert served.server.connections == set()
        client.resume_reading()
        await client.at_end()


@pytest.mark.parametrize("is_tls", [False, True], ids=["plaintext", "TLS"])
def test_client_that_keeps_sending_after_its_error_gets_the_goaway(run: Run, is_tls: bool) -> None:
    server, trusting = tls_contexts() if is_tls else (None, None)

    async def test() -> None:
        async with (
            serving(Idle, tls=server) as served,
            connected(served.port, tls=trusting) as client,
        ):
            await client.round_trip()
            client.pause_reading()
            with capture_logs():
                client.send(window_update(0, 0))
                for stream_id in range(1, 100, 2):
                    client.send(headers(stream_id), data(stream_id, b"y" * 8000))
                    await asyncio.sleep(0)
                await assert_taken(served, trusting)
                client.resume_reading()
                await client.at_end()
            assert client.goaways == [(0, 1)]
            assert client.streams == {}

    run(test)


async def assert_taken(served: Serving, trusting: ssl.SSLContext | None) -> None:
    """Make a round trip on another connection, so that everything sent before has been handled."""
    async with connected(served.port, tls=trusting) as other:
        await other.round_trip()

"""The server on real sockets: floods, slow readers, limits and ports."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest
from structlog.testing import capture_logs

from epp.transport import Http2Server, ListenError, TransportSettings
from epp.transport.http2 import ConnectionLimits
from epp.transport.protocol import ConnectionProtocol
from epp.transport.read_scheduling import PauseReason
from tools.harness.raw_client import (
    MAX_WINDOW,
    PREFACE,
    SETTINGS_ACK,
    Echo,
    RawClient,
    Serving,
    call,
    connected,
    data,
    headers,
    message,
    ping,
    reset,
    serving,
    settings,
    window_update,
)
from transport.served import Flooding, assert_serves, only_connection

KIB, MIB = 1 << 10, 1 << 20


# --- peers that do not read -----------------------------------------------------------------------


async def send_until_it_blocks(client: RawClient, frames: bytes) -> int:
    """Send ``frames`` repeatedly until the server stops reading; return the number of times."""
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
    ("frame", "response"),
    [(ping(), ping(ack=True)), (settings(), SETTINGS_ACK)],
    ids=["PING", "SETTINGS"],
)
async def test_flood_by_a_peer_that_does_not_read_is_not_read(
    frame: bytes, response: bytes
) -> None:
    # Without the budget, which would end the connection first.
    given = TransportSettings(connection=ConnectionLimits(control_frame_budget=1 << 30))
    async with (
        serving(settings=given) as served,
        connected(served.port, receive_buffer_bytes=4 * KIB) as client,
    ):
        await client.round_trip()
        protocol = only_connection(served)
        count = 1000 * await send_until_it_blocks(client, frame * 1000)
        assert PauseReason.OUTPUT in protocol._pauses.reasons
        buffered = protocol._transport.get_write_buffer_size()
        assert buffered < given.connection.write_burst_bytes + MIB
        assert protocol.connection.sender.output == []
        await assert_serves(served.port)
        assert await client.reader.readexactly(count * len(response)) == response * count
        client.send(call(1, b"hello"))
        assert (await client.response(1)).messages == [b"hello"]


async def test_flood_of_pings_ends_only_its_connection() -> None:
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
        assert (await neighbour.response(1)).messages == [b"a", b"b"]


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
        response = await client.response(1)
        assert [int(each[:6]) for each in response.messages] == list(range(400))
        assert response.status == 0


async def test_windows_pause_and_resume_a_handler() -> None:
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
        response = await client.response(1)
        assert [int(each[:6]) for each in response.messages] == list(range(400))


async def test_reset_drops_the_waiting_data_of_a_slow_reader() -> None:
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


# --- limits and ports -----------------------------------------------------------------------------


@asynccontextmanager
async def two_servers(given: TransportSettings) -> AsyncIterator[tuple[Serving, Serving]]:
    async with (
        serving(settings=given) as first,
        serving(settings=given, port=first.port) as second,
    ):
        yield first, second


async def test_servers_share_a_port_with_reuse_port() -> None:
    given = TransportSettings(reuse_port=True)
    async with two_servers(given) as (first, second):
        assert first.port == second.port
        # The kernel distributes connections by hash: both servers get some of a hundred.
        for _ in range(100):
            await assert_serves(first.port)
        assert len(first.handlers) + len(second.handlers) == 100
        assert first.handlers
        assert second.handlers
        await first.server.stop(0)
        await assert_serves(first.port)


@pytest.mark.parametrize("second", [False, True], ids=["neither shares", "one shares"])
async def test_port_in_use_is_a_listen_error(second: bool) -> None:
    async with serving() as served:
        given = replace(TransportSettings(), reuse_port=second)
        server = Http2Server({}, host="127.0.0.1", port=served.port, settings=given)
        with pytest.raises(ListenError) as caught:
            await server.start()
        assert str(caught.value) == (
            f"cannot listen on 127.0.0.1:{served.port}: Address already in use;"
            " is another process using the port?"
        )
        assert caught.value.address == f"127.0.0.1:{served.port}"
        await server.stop(0)
        await assert_serves(served.port)


async def test_foreign_address_is_a_listen_error() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:0: Cannot assign requested address;"):
        await Http2Server({}, host="192.0.2.1").start()


async def test_unknown_host_name_is_a_listen_error() -> None:
    with pytest.raises(ListenError, match=r"no\.such\.host\.invalid:0: \w+") as caught:
        await Http2Server({}, host="no.such.host.invalid").start()
    assert "Unknown error" not in str(caught.value)


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


async def test_failing_tick_does_not_stop_other_ticks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        serving() as served,
        connected(served.port) as first,
        connected(served.port) as second,
    ):
        for client in (first, second):
            await client.round_trip()
        ticked: list[ConnectionProtocol] = []

        def tick(self: ConnectionProtocol) -> None:
            ticked.append(self)
            raise ZeroDivisionError

        monkeypatch.setattr(ConnectionProtocol, "tick", tick)
        served.server._timer.cancel()  # type: ignore[union-attr]
        with capture_logs() as lines:
            served.server._tick()
        assert set(ticked) == served.server.connections
        assert len(ticked) == 2
        assert [line["event"] for line in lines] == [
            "time limits of a connection could not be applied"
        ] * 2
        assert not served.server._timer.cancelled()  # type: ignore[union-attr]


async def test_statistics_of_streams_go_back_to_zero() -> None:
    async with serving(Echo) as served, connected(served.port) as client:
        client.send(*(headers(n) for n in range(1, 41, 2)))
        await client.round_trip()
        assert served.server.open_streams == 20
        client.send(*(data(n, end=True) for n in range(1, 21, 2)))
        client.send(*(reset(n) for n in range(21, 41, 2)))
        await client.round_trip()
        assert served.server.open_streams == 0


# --- messages of ours -----------------------------------------------------------------------------


async def test_response_above_the_limit_ends_only_its_stream() -> None:
    given = TransportSettings().with_values({"max_sent_message_bytes": 100})
    async with serving(settings=given) as served, connected(served.port) as client:
        client.send(headers(1), headers(3), data(3, message(b"before")))
        client.send(data(1, message(bytes(100))), data(1, message(bytes(101))))
        response = await client.response(1)
        assert (response.messages, response.status) == ([bytes(100)], 8)
        assert response.blocks[-1]["grpc-message"] == (
            "a response of 101 bytes exceeds the limit of 100"
        )
        client.send(data(3, message(b"after"), end=True))
        assert (await client.response(3)).messages == [b"before", b"after"]
        assert [handler.resets for handler in served.handlers] == [1, 0]
        assert served.server.statistics().refused["sent_message"] == 1

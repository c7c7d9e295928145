"""The HTTP server of the metrics port: accepted requests, and the isolation of clients."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus

import pytest
from structlog.testing import capture_logs

from epp.observability.http_connection import HttpLimits, Request, Response
from epp.observability.http_server import HttpServer
from epp.observability.page_queue import PageQueueFullError
from epp.sockets import listen_on

from .raw_http import RawHttp, connected

GET = b"GET /page HTTP/1.1\r\nHost: here\r\n\r\n"
MIB = 1 << 20


async def echo(request: Request) -> Response:
    return Response(HTTPStatus.OK, "text/plain", request.target)


@asynccontextmanager
async def serving(
    response: Callable[[Request], Awaitable[Response]] = echo, limits: HttpLimits | None = None
) -> AsyncIterator[tuple[HttpServer, int]]:
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 0))
    listening = listen_on([address])
    port: int = listening[0].getsockname()[1]
    server = HttpServer("test", listening, response, limits or HttpLimits())
    try:
        yield server, port
    finally:
        await asyncio.to_thread(server.close)


class Held:
    """Answers when it is told to; the test and the server run on different loops."""

    def __init__(self) -> None:
        self._asked = threading.Semaphore(0)
        self._going: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def __call__(self, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        going = loop.create_future()
        self._going.append((loop, going))
        self._asked.release()
        await going
        return await echo(request)

    async def asked(self) -> None:
        """Return when one more request has come."""
        await asyncio.to_thread(self._asked.acquire)

    def let_go(self) -> None:
        for loop, going in self._going:
            loop.call_soon_threadsafe(_set, going)


def _set(going: asyncio.Future[None]) -> None:
    if not going.done():
        going.set_result(None)


# --- requests -------------------------------------------------------------------------------------


async def test_requests_follow_each_other_on_one_connection() -> None:
    async with serving() as (server, port), connected(port) as client:
        for _ in range(3):
            client.send(GET)
            response = await client.response()
            assert (response.status, response.body) == (200, b"/page")
            assert "connection" not in response.headers
        assert server.port_statistics().connections == 1


async def test_a_request_may_come_byte_by_byte() -> None:
    async with serving() as (_, port), connected(port) as client:
        for byte in GET:
            client.send(bytes([byte]))
            await client.writer.drain()
        assert (await client.response()).body == b"/page"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", id="that says so"),
        pytest.param(b"GET / HTTP/1.0\r\n\r\n", id="of HTTP/1.0"),
        pytest.param(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", id="of HTTP/1.0, kept"),
        pytest.param(GET + GET, id="with the next one behind it"),
        pytest.param(GET + b"GET /unfin", id="with a part of the next one behind it"),
        pytest.param(
            b"GET / HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nPRI", id="upgrade"
        ),
    ],
)
async def test_a_request_may_be_the_last_one(head: bytes) -> None:
    async with serving() as (_, port), connected(port) as client:
        client.send(head)
        response = await client.response()
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert await client.rest() == b""


async def test_who_ends_their_side_gets_the_response() -> None:
    held = Held()
    async with serving(held) as (_, port), connected(port) as client:
        client.send(GET)
        client.writer.write_eof()
        await held.asked()
        held.let_go()
        assert (await client.response()).body == b"/page"
        assert await client.rest() == b""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405, id="POST"),
        pytest.param(b"OPTIONS * HTTP/1.1\r\n\r\n", 405, id="OPTIONS"),
        pytest.param(b"GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 413, id="a body"),
        pytest.param(
            b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413, id="chunks"
        ),
        pytest.param(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 431, id="a long path"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5_000 + b"\r\n", 431, id="headers"),
        pytest.param(b"hello\r\n\r\n", 400, id="no HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, id="TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="HTTP/2"),
    ],
)
async def test_what_is_not_taken_is_refused_and_its_connection_ends(
    sent: bytes, status: int
) -> None:
    async with serving() as (_, port), connected(port) as client:
        client.send(sent)
        response = await client.response()
        assert response.status == status
        assert response.headers["connection"] == "close"
        assert await client.rest() == b""


async def test_a_response_survives_the_rest_of_a_refused_body() -> None:
    async with serving() as (_, port), connected(port) as client:
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n" + bytes(4_000_000))
        assert (await client.response()).status == 405


async def test_repeated_headers_are_one() -> None:
    async def accept(request: Request) -> Response:
        return Response(HTTPStatus.OK, "text/plain", request.headers["accept"].encode())

    async with serving(accept) as (_, port), connected(port) as client:
        client.send(b"GET / HTTP/1.1\r\nAccept: a\r\nACCEPT: b\r\n\r\n")
        assert (await client.response()).body == b"a, b"


async def test_a_page_that_fails_is_reported_and_logged() -> None:
    async def fail(request: Request) -> Response:
        raise LookupError("half \udc80 of a pair")

    async with serving(fail) as (_, port), connected(port) as client:
        with capture_logs() as logs:
            client.send(GET)
            response = await client.response()
        assert (response.status, response.body) == (
            500,
            b'{"error":"LookupError: half \\\\udc80 of a pair"}\n',
        )
        assert [line["event"] for line in logs] == ["page failed"]


async def test_a_full_queue_is_a_503() -> None:
    async def refuse(request: Request) -> Response:
        raise PageQueueFullError

    async with serving(refuse) as (_, port), connected(port) as client:
        client.send(GET)
        response = await client.response()
        assert (response.status, response.headers["retry-after"]) == (503, "1")


# --- a full port ----------------------------------------------------------------------------------


async def flooded(stack: AsyncExitStack, port: int, count: int, sent: bytes) -> list[RawHttp]:
    clients = [await stack.enter_async_context(connected(port)) for _ in range(count)]
    for client in clients:
        client.send(sent)
    return clients


@pytest.mark.parametrize("sent", [b"", b"GET /unfin"], ids=["silent", "slow"])
async def test_a_port_full_of_idle_connections_serves_a_newcomer(sent: bytes) -> None:
    before = threading.active_count()
    limits = HttpLimits(max_connections=8)
    async with serving(limits=limits) as (server, port), AsyncExitStack() as stack:
        idle = await flooded(stack, port, 300, sent)
        async with connected(port) as client:
            client.send(GET)
            assert (await client.response()).status == 200
            figures = server.port_statistics()
            assert figures.connections <= 8
            assert (figures.evicted, figures.refused) == (293, 0)
            assert threading.active_count() == before + 1
        for each in idle[:292]:
            assert await each.rest() == b""


async def test_a_connection_that_was_served_outlives_those_that_never_asked() -> None:
    async with (
        serving(limits=HttpLimits(max_connections=4)) as (_, port),
        AsyncExitStack() as stack,
        connected(port) as scraper,
    ):
        scraper.send(GET)
        await scraper.response()
        await flooded(stack, port, 50, b"")
        scraper.send(GET)
        assert (await scraper.response()).status == 200


async def test_who_is_being_answered_is_left_alone_and_the_newcomer_refused() -> None:
    held = Held()
    async with serving(held, HttpLimits(max_connections=2)) as (server, port):
        async with connected(port) as first, connected(port) as second:
            for client in (first, second):
                client.send(GET)
                await held.asked()
            async with connected(port) as third:
                assert await third.rest() == b""
            held.let_go()
            for client in (first, second):
                assert (await client.response()).status == 200
        assert (server.port_statistics().evicted, server.port_statistics().refused) == (0, 1)


async def test_idle_connections_are_closed_on_demand() -> None:
    held = Held()
    async with (
        serving(held) as (server, port),
        connected(port) as idle,
        connected(port) as busy,
    ):
        busy.send(GET)
        await held.asked()
        server.close_idle()
        assert await idle.rest() == b""
        held.let_go()
        assert (await busy.response()).status == 200
    server.close_idle()  # it has stopped


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="says nothing"),
        pytest.param(b"GET /unfin", id="does not finish"),
    ],
)
async def test_who_does_not_ask_in_time_is_cut_off(sent: bytes) -> None:
    async with serving(limits=HttpLimits(head_seconds=0.01)) as (server, port):
        async with connected(port) as client:
            client.send(sent)
            assert await client.rest() == b""
        assert server.port_statistics().timed_out == 1


async def test_who_asks_for_nothing_more_is_cut_off() -> None:
    async with serving(limits=HttpLimits(idle_seconds=0.01)) as (server, port):
        async with connected(port) as client:
            client.send(GET)
            await client.response()
            assert await client.rest() == b""
        assert server.port_statistics().timed_out == 1


async def large(request: Request) -> Response:
    return Response(HTTPStatus.OK, "text/plain", bytes(32 * MIB))


async def test_who_does_not_read_is_cut_off() -> None:
    async with serving(large, HttpLimits(write_seconds=0.05)) as (server, port):
        async with connected(port, limit=1) as client:
            client.send(GET)
            await client.reader.readexactly(1)
            while server.port_statistics().connections:
                await asyncio.to_thread(threading.Event().wait, 0.01)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.reader.readexactly(32 * MIB)
        assert server.port_statistics().timed_out == 1


async def test_slow_readers_hold_bounded_memory_and_nobody_up() -> None:
    limits = HttpLimits(max_unread_bytes=100 * MIB)
    async with serving(large, limits) as (server, port), AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(connected(port, limit=1)) for _ in range(6)]
        for client in slow:
            client.send(GET)
            await client.reader.readexactly(1)
        # Three responses of 32 MiB fit: each of the last three has broken off the oldest.
        assert server.port_statistics().evicted == 3
        async with connected(port, limit=64 * MIB) as client:
            client.send(GET)
            assert len((await client.response()).body) == 32 * MIB


async def test_a_client_who_has_its_last_response_has_to_leave() -> None:
    async with serving(limits=HttpLimits(linger_seconds=0.01)) as (server, port):
        async with connected(port) as client:
            client.send(b"GET / HTTP/1.0\r\n\r\n")
            assert (await client.response()).status == 200
            while server.port_statistics().connections:
                await asyncio.to_thread(threading.Event().wait, 0.01)
        assert server.port_statistics().timed_out == 0, "that is no fault"


# --- the end --------------------------------------------------------------------------------------


async def test_its_end_waits_for_nobody() -> None:
    held = Held()
    async with (
        serving(held) as (server, port),
        connected(port) as busy,
        connected(port) as idle,
    ):
        busy.send(GET)
        await held.asked()
        await asyncio.to_thread(server.close)
        assert await busy.rest() == await idle.rest() == b""
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection("127.0.0.1", port)

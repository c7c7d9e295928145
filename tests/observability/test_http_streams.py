"""Streamed responses: framing, limits, and their ends."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest
from structlog.testing import capture_logs

from epp.observability.http_connection import HttpLimits, Request, Response
from epp.observability.http_server import HttpServer

from .raw_http import RawHttp, connected
from .test_http_server import serving

GET = b"GET /events HTTP/1.1\r\nHost: here\r\n\r\n"

Stream = Callable[[], AsyncGenerator[bytes, None]]


class Source:
    """A stream that yields what the test says; both run on different loops."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._chunks: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        self._loop = asyncio.get_running_loop()
        self.began.set()
        try:
            while (chunk := await self._chunks.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            self.ended.set()

    async def put(self, chunk: bytes | Exception | None) -> None:
        await asyncio.to_thread(self.began.wait)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)

    async def has_ended(self) -> None:
        await asyncio.to_thread(self.ended.wait)


@asynccontextmanager
async def streaming(
    stream: Stream, limits: HttpLimits | None = None
) -> AsyncIterator[tuple[HttpServer, int]]:
    async def respond(request: Request) -> Response:
        return Response(HTTPStatus.OK, "text/event-stream", b"", stream=stream)

    async with serving(respond, limits) as served:
        yield served


async def head(client: RawHttp) -> str:
    return (await client.reader.readuntil(b"\r\n\r\n")).decode()


async def chunk(client: RawHttp) -> bytes:
    length = int(await client.reader.readuntil(b"\r\n"), 16)
    return (await client.reader.readexactly(length + 2))[:-2]


async def test_each_chunk_is_sent_when_it_is_made() -> None:
    source = Source()
    async with streaming(source.stream) as (_, port), connected(port) as client:
        client.send(GET)
        headers = await head(client)
        assert "Transfer-Encoding: chunked" in headers
        assert "Content-Length" not in headers
        for text in (b"first", b"second"):
            await source.put(text)
            assert await chunk(client) == text
        await source.put(None)
        assert await client.rest() == b"0\r\n\r\n"


async def test_a_client_of_http_1_0_reads_until_the_end() -> None:
    source = Source()
    async with streaming(source.stream) as (_, port), connected(port) as client:
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert "chunked" not in await head(client)
        await source.put(b"all")
        await source.put(None)
        assert await client.rest() == b"all"


async def test_head_begins_no_stream() -> None:
    source = Source()
    async with streaming(source.stream) as (_, port), connected(port) as client:
        client.send(b"HEAD / HTTP/1.1\r\n\r\n")
        assert "text/event-stream" in await head(client)
        assert await client.rest() == b""
        assert not source.began.is_set()


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(lambda client: client.writer.transport.abort(), id="resets"),
        pytest.param(lambda client: client.writer.close(), id="closes"),
        pytest.param(lambda client: client.writer.write_eof(), id="ends its side"),
    ],
)
async def test_a_stream_ends_when_its_client(leave: Callable[[RawHttp], object]) -> None:
    source = Source()
    async with streaming(source.stream) as (server, port), connected(port) as client:
        client.send(GET)
        await source.put(b"first")
        await chunk_after_head(client)
        leave(client)
        await source.has_ended()
        while server.port_statistics().connections:
            await asyncio.to_thread(threading.Event().wait, 0.01)


async def chunk_after_head(client: RawHttp) -> bytes:
    await head(client)
    return await chunk(client)


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    ended = threading.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield bytes(1 << 20)
        finally:
            ended.set()

    async with streaming(endless, HttpLimits(write_seconds=0.05)) as (server, port):
        async with connected(port, limit=1) as client:
            client.send(GET)
            await asyncio.to_thread(ended.wait)
        assert server.port_statistics().timed_out == 1


async def test_a_stream_without_news_is_not_cut_off() -> None:
    source = Source()
    limits = HttpLimits(write_seconds=0.02, idle_seconds=0.02, head_seconds=0.5)
    async with streaming(source.stream, limits) as (server, port), connected(port) as client:
        client.send(GET)
        await source.put(b"first")
        await chunk_after_head(client)
        await asyncio.to_thread(source.ended.wait, 0.2)
        await source.put(b"second")
        assert await chunk(client) == b"second"
        assert server.port_statistics().timed_out == 0


async def test_a_stream_that_fails_is_logged_and_broken_off() -> None:
    source = Source()
    async with streaming(source.stream) as (_, port), connected(port) as client:
        client.send(GET)
        await source.put(b"first")
        await chunk_after_head(client)
        with capture_logs() as logs:
            await source.put(LookupError("no more"))
            assert await client.rest() == b"", "no end of the chunks: the client must notice"
        assert [(line["event"], line["error"]) for line in logs] == [
            ("stream failed", "LookupError: no more")
        ]


async def test_a_server_that_closes_ends_its_streams() -> None:
    source = Source()
    async with streaming(source.stream) as (server, port), connected(port) as client:
        client.send(GET)
        await source.put(b"first")
        await chunk_after_head(client)
        await asyncio.to_thread(server.close)
        assert await client.rest() == b""
        assert source.ended.is_set()


async def test_bytes_that_a_client_has_not_read_count_for_all_connections() -> None:
    """A stream's chunk takes part in the account that bounds slow readers."""
    ended = threading.Event()

    async def large() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield bytes(32 << 20)
        finally:
            ended.set()

    limits = HttpLimits(max_unread_bytes=40 << 20)
    async with streaming(large, limits) as (server, port):
        async with connected(port, limit=1) as first, connected(port, limit=1) as second:
            first.send(GET)
            await first.reader.readexactly(200)
            second.send(GET)
            await asyncio.to_thread(ended.wait)
        assert server.port_statistics().evicted >= 1

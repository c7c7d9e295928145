"""The HTTP/1.1 server, tested with raw bytes on a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from epp.lab.fleet import EngineConfig, Fleet

MakeFleet = Callable[..., Awaitable[Fleet]]
BODY = b'{"model":"tiny","prompt":"a","max_tokens":2}'
POST = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n"


@asynccontextmanager
async def connect(
    fleet: Fleet,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.ports[0])
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):  # The server may have closed it first.
            await writer.wait_closed()


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Return status, head and body of a response with a content-length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split(b" ")[1]), head, await reader.readexactly(length)


async def ask(fleet: Fleet, data: bytes) -> bytes:
    """Send bytes; return everything that the server sends until it closes the connection."""
    async with connect(fleet) as (reader, writer):
        writer.write(data)
        return await reader.read()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (POST + b"content-length: x\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /health HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (POST + b"content-length: 2000\r\n\r\n" + b"a" * 2000, 413),
    ],
    ids=["words", "TLS", "length", "chunk size", "long head", "long body"],
)
async def test_what_is_not_http_is_refused_and_the_server_lives_on(
    make_fleet: MakeFleet, data: bytes, status: int
) -> None:
    fleet = await make_fleet(max_body_bytes=1000)
    response = await ask(fleet, data)
    assert response.startswith(b"HTTP/1.1 %d " % status)
    assert b"x-served-by: endpoint-0\r\n" in response
    async with connect(fleet) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await read_response(reader))[0] == 200


async def test_a_connection_serves_many_requests_in_order(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet()
    async with connect(fleet) as (reader, writer):
        for _ in range(3):
            writer.write(POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
            assert (await read_response(reader))[0] == 200
        # Pipelined requests, the slowest first: the responses keep the order.
        pipelined = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
        writer.write(pipelined + b"GET /nowhere HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n\r\n")
        assert [(await read_response(reader))[0] for _ in range(3)] == [200, 404, 200]


async def test_a_chunked_body_is_put_together(make_fleet: MakeFleet) -> None:
    async with connect(await make_fleet()) as (reader, writer):
        parts = b"".join(b"%x\r\n%b\r\n" % (1, BODY[i : i + 1]) for i in range(len(BODY)))
        writer.write(POST + b"transfer-encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n")
        assert (await read_response(reader))[0] == 200


async def test_a_client_that_expects_100_continue_gets_it_first(make_fleet: MakeFleet) -> None:
    async with connect(await make_fleet()) as (reader, writer):
        writer.write(POST + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert (await read_response(reader))[0] == 200


async def test_connection_close_is_obeyed(make_fleet: MakeFleet) -> None:
    request = b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n"
    response = await ask(await make_fleet(), request)
    assert b"connection: close\r\n" in response


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        (b"GET /health HTTP/1.1\r\n", b"", 200),
        (POST + b"content-length: %d\r\n" % len(BODY), BODY, 400),
    ],
    ids=["without a body", "with a body"],
)
async def test_an_offer_to_upgrade_ends_the_connection(
    make_fleet: MakeFleet, head: bytes, body: bytes, status: int
) -> None:
    offer = b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"
    response = await ask(await make_fleet(), head + offer + body)
    assert response.startswith(b"HTTP/1.1 %d " % status)


async def test_a_stream_to_http_1_0_is_not_chunked_and_ends_with_the_connection(
    make_fleet: MakeFleet,
) -> None:
    body = b'{"model":"tiny","prompt":"a","max_tokens":2,"stream":true}'
    head = b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body)
    response = await ask(await make_fleet(), head + body)
    assert b"transfer-encoding" not in response
    assert response.endswith(b"}\n\ndata: [DONE]\n\n")


async def test_a_slow_client_gets_all_tokens_in_fewer_events(make_fleet: MakeFleet) -> None:
    physics = EngineConfig(max_model_len=30_000)
    fleet = await make_fleet(engine=physics, time_scale=0.0001)
    server = fleet.servers[0]
    tokens = 29_000
    body = b'{"model":"tiny","prompt":"a","stream":true,"max_tokens":%d}' % tokens
    async with connect(fleet) as (reader, writer):
        writer.write(POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(15):
            # The client reads nothing until the engine has finished.
            while not server.counters.completed:  # noqa: ASYNC110 -- a counter has no event
                await asyncio.sleep(0)
        assert server.engine.kv.in_use == 0
        response = await reader.read()
    # 29 000 events of 200 bytes do not fit in the buffers: the last tokens came in one event
    assert response.count(b"data: ") < tokens
    assert response.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    words = sum(part.split(b'"')[0].count(b" ") for part in response.split(b'"text":"')[1:])
    assert words == tokens

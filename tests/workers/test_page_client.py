"""Pages of a worker are streamed over its socket; an absent worker gives an error."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from epp.workers.page_client import InvalidTargetError, WorkerAwayError, fetch

Respond = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def worker(folder: Path, respond: Respond) -> AsyncIterator[Path]:
    """Answer each request on a socket, then close the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await respond(await reader.readuntil(b"\r\n\r\n"), writer)
        finally:
            writer.close()

    path = folder / "pages-0"
    server = await asyncio.start_unix_server(serve, path)
    try:
        yield path
    finally:
        server.close()


def whole(text: bytes) -> Respond:
    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(text)

    return respond


async def test_status_type_body_and_chosen_headers_come_back(tmp_path: Path) -> None:
    text = (
        b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
        b"www-authenticate: Bearer\r\ndate: now\r\n\r\n{}"
    )
    asked: list[bytes] = []

    async def respond(head: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(head)
        writer.write(text)

    async with worker(tmp_path, respond) as path:
        response = await fetch(path, b"/debug/x?a=b", method="POST", headers={"accept": "y"})
    assert response.status is HTTPStatus.UNAUTHORIZED
    assert (response.content_type, response.body) == ("application/json", b"{}")
    assert response.headers == (("www-authenticate", "Bearer"),)
    assert asked[0].startswith(b"POST /debug/x?a=b HTTP/1.1\r\n")
    assert b"\r\naccept: y\r\n" in asked[0]


async def test_a_target_and_headers_that_are_no_ascii_are_passed_on(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def respond(head: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(head)
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    async with worker(tmp_path, respond) as path:
        await fetch(path, b"/m\xc3\xa9?a=%20[]", headers={"user-agent": "\xe9"})
        with pytest.raises(InvalidTargetError):
            await fetch(path, b"http://elsewhere/", headers={})
    assert asked[0].startswith(b"GET /m%C3%A9?a=%20[] HTTP/1.1\r\n")
    assert b"user-agent: \xe9\r\n" in asked[0].lower()
    assert len(asked) == 1


async def test_a_feed_comes_as_a_stream_of_events(tmp_path: Path) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    text = head + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    async with worker(tmp_path, whole(text)) as path:
        response = await fetch(path, b"/debug/events", headers={})
        assert response.stream is not None
        assert b"".join([chunk async for chunk in response.stream()]) == b"onetwo"


async def test_a_worker_that_is_away_or_ends_amid_a_page_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkerAwayError, match="has ended, or is starting"):
        await fetch(tmp_path / "none", b"/metrics", headers={})
    half = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 9\r\n\r\nhalf"
    async with worker(tmp_path, whole(half)) as path:
        with pytest.raises(WorkerAwayError, match="closed the connection"):
            await fetch(path, b"/metrics", headers={})


async def test_a_worker_that_hangs_is_given_up(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def hang(_: bytes, writer: asyncio.StreamWriter) -> None:
        await over.wait()

    async with worker(tmp_path, hang) as path:
        with pytest.raises(WorkerAwayError, match=r"does not answer within 0\.05 s"):
            await fetch(path, b"/metrics", headers={}, timeout_seconds=0.05)
        over.set()

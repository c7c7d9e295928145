"""Fetch pages from a worker over its Unix socket."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

import httptools

from epp.observability import Response

_TIMEOUT_SECONDS: Final = 5.0
_CHUNK_BYTES: Final = 64 << 10
_PASSED_ON: Final = frozenset(
    {"cache-control", "www-authenticate", "retry-after", "x-accel-buffering", "allow"}
    | {"x-content-type-options", "content-security-policy", "referrer-policy"}
)
"""Headers of responses that clients get, too."""


class WorkerAwayError(Exception):
    """The worker does not answer: it has ended, or is starting, or hangs."""


class _Head(NamedTuple):
    status: HTTPStatus
    headers: Mapping[str, str]


class _Parser:
    """Collects a response."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.has_head = False
        self.is_complete = False
        self.body: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


class _Exchange:
    """One request and its response."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._parser = _Parser()
        self._feed = httptools.HttpResponseParser(self._parser)

    async def head(self) -> _Head:
        while not self._parser.has_head:
            await self._read()
        return _Head(HTTPStatus(self._feed.get_status_code()), self._parser.headers)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body while it comes."""
        parser = self._parser
        while True:
            body, parser.body = parser.body, []
            if body:
                yield b"".join(body)
            if parser.is_complete:
                return
            await self._read()

    async def _read(self) -> None:
        data = await self._reader.read(_CHUNK_BYTES)
        if not data:
            raise WorkerAwayError("the worker has closed the connection")
        self._feed.feed_data(data)


@asynccontextmanager
async def _exchange(
    socket: Path, method: str, target: bytes, headers: Mapping[str, str]
) -> AsyncIterator[_Exchange]:
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket))
    except OSError as error:
        raise WorkerAwayError("the worker has ended, or is starting") from error
    try:
        lines = [
            method.encode() + b" " + target + b" HTTP/1.1",
            b"host: worker",
            b"connection: close",
            *(f"{name}: {value}".encode("latin-1") for name, value in headers.items()),
        ]
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        yield _Exchange(reader)
    except OSError as error:
        raise WorkerAwayError("the worker has ended") from error
    finally:
        writer.close()


def _response(head: _Head, body: bytes) -> Response:
    passed = tuple((k, v) for k, v in head.headers.items() if k in _PASSED_ON)
    kind = head.headers.get("content-type", "application/octet-stream")
    return Response(head.status, kind, body, passed)


async def fetch(
    socket: Path,
    target: bytes,
    *,
    method: str = "GET",
    headers: Mapping[str, str],
    timeout_seconds: float = _TIMEOUT_SECONDS,
) -> Response:
    """Return the response of the worker that listens on ``socket``.

    A feed of events is returned as a stream, which takes another connection.

    Args:
        socket: The worker's socket file.
        target: Path and query of the request.
        method: Of the request.
        headers: Of the request, by name.
        timeout_seconds: For the whole response.

    Raises:
        WorkerAwayError: The worker does not answer.
    """
    try:
        async with (
            asyncio.timeout(timeout_seconds),
            _exchange(socket, method, target, headers) as exchange,
        ):
            head = await exchange.head()
            if head.headers.get("content-type") == "text/event-stream":
                return _response(head, b"")._replace(
                    stream=lambda: _stream(socket, target, headers)
                )
            return _response(head, b"".join([each async for each in exchange.chunks()]))
    except TimeoutError as error:
        raise WorkerAwayError(f"the worker does not answer within {timeout_seconds:g} s") from error


async def _stream(
    socket: Path, target: bytes, headers: Mapping[str, str]
) -> AsyncGenerator[bytes, None]:
    async with _exchange(socket, "GET", target, headers) as exchange:
        await exchange.head()
        async for chunk in exchange.chunks():
            yield chunk

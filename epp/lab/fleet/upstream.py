"""Requests from one fake server to another: HTTP/1.1, one connection per request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httptools

from epp.lab.fleet.errors import StageError

CONNECT_TIMEOUT_SECONDS = 5.0
_READ_BYTES = 64 * 1024
_OWN_HEADERS = frozenset(
    (b"host", b"connection", b"content-length", b"transfer-encoding", b"expect", b"keep-alive")
)
"""Headers that are not forwarded because they apply to one connection."""


class UpstreamResponse:
    """A response while it arrives."""

    def __init__(self, address: str, reader: asyncio.StreamReader) -> None:
        self.address = address
        """Address of the server, `host:port`."""
        self.headers: dict[bytes, bytes] = {}
        """Headers by lower-case name."""
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._has_head = False
        self._is_complete = False

    @property
    def status(self) -> int:
        """HTTP status."""
        status: int = self._parser.get_status_code()
        return status

    @property
    def served_by(self) -> str:
        """Name of the server in `x-served-by`, else its address."""
        return self.headers.get(b"x-served-by", self.address.encode()).decode("latin-1")

    async def read_head(self) -> None:
        """Read the status and the headers."""
        while not self._has_head:
            await self._feed()

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces as they arrive."""
        while True:
            parts, self._parts = self._parts, []
            if parts:
                yield b"".join(parts)
            elif self._is_complete:
                return
            else:
                await self._feed()

    async def body(self) -> bytes:
        """Return the complete body."""
        return b"".join([part async for part in self.parts()])

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = True

    async def _feed(self) -> None:
        data = await self._reader.read(_READ_BYTES)
        if not data:
            raise ConnectionError("the connection was closed before the end of the response")
        self._parser.feed_data(data)


@asynccontextmanager
async def post(
    address: str, path: bytes, headers: Mapping[bytes, bytes], body: bytes
) -> AsyncIterator[UpstreamResponse]:
    """Send a request and yield its response after its head has arrived.

    Raises:
        StageError: The server cannot be reached or closes the connection early; also raised from
            the body of the `async with` block.
    """
    host, _, port = address.rpartition(":")
    head = [b"POST %b HTTP/1.1\r\nhost: %b\r\n" % (path, address.encode("latin-1"))]
    head += [b"%b: %b\r\n" % pair for pair in headers.items() if pair[0] not in _OWN_HEADERS]
    head.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.write(b"".join([*head, body]))
        await writer.drain()
        response = UpstreamResponse(address, reader)
        await response.read_head()
        yield response
    except (
        OSError,  # TimeoutError is one
        ValueError,
        OverflowError,  # a port above 65535
        httptools.HttpParserError,
        httptools.HttpParserUpgrade,
    ) as error:
        raise StageError(address, str(error) or type(error).__name__) from error
    finally:
        if writer is not None:
            writer.transport.abort()

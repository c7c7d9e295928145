"""A client of the metrics port that sends raw bytes, with one connection per request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class RawHttp:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def response(self) -> "RawResponse":
        """Read one response with a Content-Length."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().rstrip().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }
        body = await self.reader.readexactly(int(headers["content-length"]))
        return RawResponse(int(first.split()[1]), headers, body)

    async def rest(self) -> bytes:
        """Read until the server closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


@dataclass
class RawResponse:
    status: int
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@asynccontextmanager
async def connected(port: int, *, limit: int = 1 << 16) -> AsyncIterator[RawHttp]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    try:
        yield RawHttp(reader, writer)
    finally:
        writer.transport.abort()

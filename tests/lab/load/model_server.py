"""A model server of a few lines that misbehaves on demand."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

Responder = Callable[[asyncio.StreamWriter], Awaitable[bool]]
"""Writes one response; True: the connection stays open for another request."""


def http_response(
    body: bytes, *, status: str = "200 OK", headers: str = "content-type: application/json\r\n"
) -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def sends(*parts: bytes, keep: bool = True) -> Responder:
    """Answers with `parts`, each in a write of its own."""

    async def respond(writer: asyncio.StreamWriter) -> bool:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        return keep

    return respond


class FakeServer:
    """Answers every request with `respond`; counts connections and requests in flight."""

    def __init__(self, respond: Responder) -> None:
        self.respond = respond
        self.requests: list[dict[str, Any]] = []
        self.heads: list[bytes] = []
        self.connections = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.in_flight = 0
        self.peak_in_flight = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            keep = True
            while keep:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                self.heads.append(head)
                self.requests.append(msgspec.json.decode(await reader.readexactly(length)))
                self.in_flight += 1
                self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
                try:
                    keep = await self.respond(writer)
                finally:
                    self.in_flight -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has left, or the test is over
        finally:
            writer.close()
            self.tasks.discard(task)


class StartServer(Protocol):
    async def __call__(self, respond: Responder) -> FakeServer: ...

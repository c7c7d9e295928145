"""A model server on a real socket that answers as each test wants."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

Responder = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Answers one request; a closed writer ends the connection."""


class StartServer(Protocol):
    """Starts a server on a port of its own; over TLS if there is a context."""

    async def __call__(
        self, respond: Responder, tls: ssl.SSLContext | None = None
    ) -> "MetricsServer": ...


PAGE = b"vllm:num_requests_waiting 3\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.25\n"


def raw_response(raw: bytes, *, then_close: bool = False) -> Responder:
    """Make a responder that writes ``raw`` as it is."""

    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        if then_close:
            writer.close()

    return respond


def page_response(body: bytes = PAGE, *, status: bytes = b"200 OK") -> Responder:
    """Make a responder that sends ``body`` with a Content-Length."""
    return raw_response(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


async def hang(writer: asyncio.StreamWriter) -> None:
    """Never answer."""


async def reset(writer: asyncio.StreamWriter) -> None:
    """Drop the connection with a RST."""
    writer.transport.abort()


class MetricsServer:
    """Counts connections and requests, and answers each with the present ``respond``."""

    def __init__(self, respond: Responder) -> None:
        self.respond = respond
        self.address = ""
        self.connections = 0
        self.requests: list[bytes] = []
        self.request_came = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        self.writers.append(writer)
        try:
            while not writer.is_closing():
                request = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(request)
                self.request_came.set()
                await self.respond(writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass
        finally:
            self.tasks.discard(task)
            writer.transport.abort()

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
        self, answer: Responder, tls: ssl.SSLContext | None = None
    ) -> "MetricsServer": ...


PAGE = b"vllm:num_requests_waiting 3\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.25\n"


def response_bytes(raw: bytes, *, then_close: bool = False) -> Responder:
    """Make an answerer that writes ``raw`` as it is."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        if then_close:
            writer.close()

    return answer


def page_response(body: bytes = PAGE, *, status: bytes = b"200 OK") -> Responder:
    """Make an answerer that sends ``body`` with a Content-Length."""
    return response_bytes(
        b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
    )


async def hang(writer: asyncio.StreamWriter) -> None:
    """Never answer."""


async def reset(writer: asyncio.StreamWriter) -> None:
    """Drop the connection with a RST."""
    writer.transport.abort()


class MetricsServer:
    """Counts connections and requests, and answers each with the present ``answer``."""

    def __init__(self, answer: Responder) -> None:
        self.answer = answer
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
                await self.answer(writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass
        finally:
            self.tasks.discard(task)
            writer.transport.abort()

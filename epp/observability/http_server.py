"""A small HTTP/1.1 server with its own thread and event loop.

It responds even while the main event loop is blocked, and uses at most one thread and
``max_connections`` descriptors.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from socket import socket

import structlog
import uvloop

from epp.observability.http_connection import HttpLimits, HttpServerConnection, Request, Response
from epp.observability.page_queue import PageQueueFullError
from epp.sockets import Acceptor, PortStatistics

_log = structlog.get_logger(__name__)


class HttpServer:
    """Serves requests without a body; starts on construction.

    Args:
        name: Name of the port and the thread.
        listening: Listening sockets, which the server closes.
        respond: Returns the response to a request; called on the server's loop.
        limits: Limits on clients.
        tls: Makes it HTTPS; None for plain HTTP.
        methods: Methods of requests; others are refused.
        closed: Called on the server's loop after the last request.
    """

    def __init__(
        self,
        name: str,
        listening: Iterable[socket],
        respond: Callable[[Request], Awaitable[Response]],
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
        *,
        methods: tuple[str, ...] = ("GET", "HEAD"),
        closed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.limits = limits
        self.methods = methods
        self.timed_out = 0
        """Connections closed because the client took too long."""
        self._respond = respond
        self._closed = closed
        self._evicted = 0
        self._refused = 0
        self._connections: set[HttpServerConnection] = set()
        self._sending: dict[HttpServerConnection, int] = {}
        """Bytes of the responses being sent, oldest first."""
        self._acceptor = Acceptor(
            name,
            lambda: HttpServerConnection(self),
            admit=lambda: tls is None or self._admit_handshake(),
            tls=tls,
            handshake_seconds=limits.head_seconds,
            exhausted=self._close_idle,
        )
        self._loop = uvloop.new_event_loop()
        self._loop.call_soon(self._acceptor.start, list(listening))
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and abort open connections; blocks briefly."""
        if self._loop.is_closed():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def close_idle(self) -> None:
        """Close connections without a response in progress; thread-safe."""
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self._loop.call_soon_threadsafe(self._close_idle)

    def port_statistics(self) -> PortStatistics:
        """Return statistics of the port; thread-safe."""
        return PortStatistics(
            connections=len(self._connections),
            limit=self.limits.max_connections,
            evicted=self._evicted,
            refused=self._refused,
            timed_out=self.timed_out,
            accept_pauses=self._acceptor.pauses,
        )

    def _admit_handshake(self) -> bool:
        """Make room for another TLS handshake; opened() makes room for the connection after it."""
        most, pending = self.limits.max_connections, self._acceptor.pending
        if pending and len(pending) >= max(most - len(self._connections), most // 4):
            self._evicted += 1
            self._acceptor.drop_oldest()
        return True

    # what connections report

    async def handle(self, request: Request) -> Response:
        try:
            return await self._respond(request)
        except PageQueueFullError:
            return Response.of_error(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too many pages are being made; try again later",
                ("Retry-After", "1"),
            )
        except Exception as error:
            _log.exception("page failed", target=request.target.decode("latin-1")[:256])
            return Response.of_error(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}"
            )

    def opened(self, connection: HttpServerConnection) -> None:
        self._connections.add(connection)
        if len(self._connections) <= self.limits.max_connections:
            return
        idle = [
            each
            for each in self._connections
            if each is not connection and not each.phase.is_responding
        ]
        victim = min(idle, key=lambda each: (each.phase.value, each.since), default=None)
        if victim is None:
            self._refused += 1
            self._drop(connection)
        else:
            self._evicted += 1
            self._drop(victim)

    def closed(self, connection: HttpServerConnection) -> None:
        self._connections.discard(connection)
        self._sending.pop(connection, None)

    def sending(self, connection: HttpServerConnection, body_bytes: int) -> None:
        self._sending.pop(connection, None)
        if not body_bytes:
            return
        while self._sending and (
            sum(self._sending.values()) + body_bytes > self.limits.max_unread_bytes
        ):
            slowest = next(iter(self._sending))
            self._evicted += 1
            self._drop(slowest)
        self._sending[connection] = body_bytes

    def stream_failed(self, error: Exception) -> None:
        _log.error("stream failed", error=f"{type(error).__name__}: {error}", exc_info=error)

    # the end

    def _drop(self, connection: HttpServerConnection) -> None:
        # connection_lost is called one loop iteration later; until then the connection would be
        # chosen again.
        self.closed(connection)
        connection.abort()

    def _close_idle(self) -> None:
        for each in list(self._connections):
            if not each.phase.is_responding:
                self._evicted += 1
                self._drop(each)

    async def _close(self) -> None:
        self._acceptor.close()
        await self._acceptor.settled()
        for each in list(self._connections):
            each.abort()
        # connection_lost is called in the next loop iteration and cancels the connection's tasks.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._closed is not None:
            await self._closed()

"""A small HTTP/1.1 server: `FakeServerConnection` passes each request to a handler.

The handler is a function that takes an `Exchange` and responds through it, at once or later. There
is no task per request, so that one core can serve thousands of requests per second. The requests of
a connection are served in order: pipelined requests wait in a queue, and reading pauses.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from epp.lab.fleet.exchange import Exchange

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of request line and headers; a longer head gets status 431."""

_NO_LINGER = struct.pack("ii", 1, 0)

Handler = Callable[[Exchange], None]


class FakeServerConnection(asyncio.Protocol):
    """One client connection."""

    def __init__(
        self,
        handler: Handler,
        connections: set[FakeServerConnection],
        *,
        common_headers: bytes,
        max_body_bytes: int,
    ) -> None:
        self._handler = handler
        self._connections = connections
        self.common_headers = common_headers
        """Header lines of every response, each with its line end."""
        self._max_body_bytes = max_body_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._current: Exchange | None = None
        self._pending: deque[Exchange] = deque()
        self._dead = False
        self.paused = False
        """Whether the write buffer is above its high-water mark."""
        self.is_http10 = False
        """Whether the current request is HTTP/1.0."""
        self._reset_message()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # create_server passes an asyncio.Transport, but the signature has its base class.
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._dead:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request itself has been handled; upgrades are not supported.
            self._dead = True
            if self._current is None:
                self.close()
            else:
                self._current.keep_alive = False
        except httptools.HttpParserError:
            self._refuse(400, b"Invalid HTTP request received.")

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._current is not None and self._current.on_writable is not None:
            self._current.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._dead = True
        self._connections.discard(self)
        self._pending.clear()
        current, self._current = self._current, None
        if current is not None:
            current.disconnected()

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._reset_message()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value
        self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._current is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body_bytes:
            self._refuse(413, b"Request body is too large.")
        elif not self._dead:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._dead:
            return
        if self._parser.should_upgrade() and self._has_body():
            # The parser treats the body as bytes of the other protocol.
            self._refuse(400, b"Upgrades are not supported.")
            return
        path = self._url.partition(b"?")[0]
        exchange = Exchange(
            self, self._parser.get_method(), path, self._headers, b"".join(self._body)
        )
        exchange.keep_alive = self._parser.should_keep_alive()
        if self._current is None:
            self._begin(exchange)
        else:
            self._pending.append(exchange)
            if self._transport is not None:
                self._transport.pause_reading()

    # For Exchange and the server

    def write(self, data: bytes) -> None:
        """Send bytes; discard them if the client has disconnected."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def exchange_ended(self, exchange: Exchange) -> None:
        """Begin the next request after a complete response, or close the connection."""
        if self._current is not exchange:
            return
        self._current = None
        if not exchange.keep_alive or self._dead:
            self.close()
        elif self._pending:
            # By a callback: with a direct call, thousands of pipelined requests would overflow the
            # stack.
            asyncio.get_running_loop().call_soon(self._begin_next)

    def close(self) -> None:
        """Close the connection after the buffered output is sent."""
        self._dead = True
        if self._transport is not None:
            self._transport.close()

    def close_when_idle(self) -> None:
        """Close the connection at once, or after the current response."""
        if self._current is None:
            self.close()
        else:
            self._current.keep_alive = False

    def reset(self) -> None:
        """Close the connection at once with a TCP reset, as when its process dies."""
        if self._transport is not None:
            connected = self._transport.get_extra_info("socket")
            if connected is not None:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.abort()

    def abort(self) -> None:
        """Close the connection at once and truncate the current response."""
        self._dead = True
        if self._transport is not None:
            self._transport.abort()

    def _begin_next(self) -> None:
        if self._pending and self._current is None and not self._dead:
            exchange = self._pending.popleft()
            if not self._pending and self._transport is not None:
                self._transport.resume_reading()
            self._begin(exchange)

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        self.is_http10 = self._parser.get_http_version() == "1.0"
        self._handler(exchange)

    def _refuse(self, status: int, text: bytes) -> None:
        """Send an error and close; abort instead if a response is in progress."""
        if self._dead:
            return
        if self._current is not None or self._pending:
            self.abort()
            return
        exchange = Exchange(self, b"", b"", {}, b"")
        exchange.keep_alive = False
        self._current = exchange
        exchange.respond(status, text, b"text/plain; charset=utf-8")

    def _has_body(self) -> bool:
        return self._headers.keys() & {b"content-length", b"transfer-encoding"} != set()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, b"Request head is too large.")

    def _reset_message(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0

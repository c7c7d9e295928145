"""One HTTP request and its response, complete or streamed."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

_STATUS_LINES = {
    int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class ExchangeConnection(Protocol):
    """The interface of a connection that an exchange uses."""

    common_headers: bytes
    paused: bool
    is_http10: bool

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def exchange_ended(self, exchange: Exchange) -> None:
        """Handle the end of the response."""

    def abort(self) -> None:
        """Close the connection at once."""


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_connection",
        "_framed",
        "body",
        "common_headers",
        "ended",
        "headers",
        "keep_alive",
        "method",
        "on_disconnect",
        "on_writable",
        "path",
        "started",
    )

    def __init__(
        self,
        connection: ExchangeConnection,
        method: bytes,
        path: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
    ) -> None:
        self._connection = connection
        self._framed = True
        self.method = method
        """Method in capitals."""
        self.path = path
        """Path without the query."""
        self.headers = headers
        """Headers by lower-case name, the last value of each."""
        self.body = body
        """The complete body, without chunked transfer coding."""
        self.common_headers = connection.common_headers
        """The server's common header lines for the response; may be replaced."""
        self.keep_alive = True
        """Whether the connection stays open after the response."""
        self.started = False
        """Whether the head of the response has been sent."""
        self.ended = False
        """Whether the response is complete or the client has disconnected."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called once if the client disconnects before the response is complete."""
        self.on_writable: Callable[[], None] | None = None
        """Called when `writable` becomes true again."""

    @property
    def writable(self) -> bool:
        """Whether the write buffer is below its high-water mark; if not, wait for `on_writable`."""
        return not self._connection.paused

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes = b"application/json",
        extra: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """Send a complete response."""
        if self.ended:
            return
        self.started = True
        head = [_STATUS_LINES[status], self.common_headers]
        head += [b"%b: %b\r\n" % pair for pair in extra]
        if body:
            head.append(b"content-type: %b\r\n" % content_type)
        head.append(b"content-length: %d\r\n" % len(body))
        head.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        head.append(body)
        self._connection.write(b"".join(head))
        self._end()

    def start_stream(self, content_type: bytes = b"text/event-stream; charset=utf-8") -> None:
        """Send the head of a streamed response with status 200 (HTTP/1.0: not chunked)."""
        if self.ended:
            return
        self.started = True
        self._framed = not self._connection.is_http10
        self.keep_alive &= self._framed
        head = [
            _STATUS_LINES[200],
            self.common_headers,
            b"content-type: %b\r\n" % content_type,
        ]
        head.append(b"transfer-encoding: chunked\r\n" if self._framed else b"")
        head.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self._connection.write(b"".join(head))

    def write(self, data: bytes) -> None:
        """Send the next part of a streamed body."""
        if data and not self.ended:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._framed else data)

    def finish(self, data: bytes = b"") -> None:
        """Send the last part of a streamed body."""
        if self.ended:
            return
        if self._framed:
            self._connection.write(
                b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
            )
        else:
            self._connection.write(data)
        self._end()

    def break_off(self) -> None:
        """Close the connection before the response is complete."""
        self.ended = True
        self._connection.abort()

    def disconnected(self) -> None:
        """Handle the disconnection of the client."""
        if not self.ended:
            self.ended = True
            if self.on_disconnect is not None:
                self.on_disconnect()

    def _end(self) -> None:
        self.ended = True
        self._connection.exchange_ended(self)

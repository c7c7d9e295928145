"""One connection of a small HTTP/1.1 server for scrapers and operators.

It handles requests without a body, one at a time, with time limits for sending their heads, for
idling between requests and for reading a response. Pipelined requests are not read: the connection
closes after the response. A response may be a stream, which is sent while it is produced.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import formatdate
from enum import Enum
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast

import httptools

from epp.observability.bounded_text import MAX_RESPONSE_CHARS, json_line, printable

_CHUNK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits on clients."""

    max_connections: int = 64
    max_head_bytes: int = 16 << 10
    """Request line and headers together."""
    head_seconds: float = 5.0
    """Time from accept, or from a request's first byte, to the end of the request's head."""
    idle_seconds: float = 30.0
    """Time between two requests."""
    write_seconds: float = 30.0
    """Time for the client to read a response, or one chunk of a stream."""
    linger_seconds: float = 1.0
    """Time for the client to close the connection after the last response."""
    max_unread_bytes: int = 64 << 20
    """Limit on response bytes that clients have not read yet, over all connections. Beyond it, the
    connection that has been sending longest is aborted."""


class Request(NamedTuple):
    """The head of a request."""

    method: str
    target: bytes
    headers: Mapping[str, str]
    """By lower-case name; repeated ones are joined by a comma."""
    client: str = ""
    """Address of the client."""


class Response(NamedTuple):
    """A response."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    stream: Callable[[], AsyncGenerator[bytes, None]] | None = None
    """Yields the chunks, none empty, of a body that is produced while it is sent, instead of
    ``body``. A chunk is requested when the client has read the previous one."""

    @classmethod
    def of_error(
        cls, status: HTTPStatus, error: str, *headers: tuple[str, str], **more: object
    ) -> "Response":
        """Return a JSON error document."""
        text = printable(error, MAX_RESPONSE_CHARS)
        return cls(status, "application/json", as_json({"error": text, **more}), headers)


def method_error(method: str) -> tuple[HTTPStatus, str, tuple[str, str]]:
    """Return status, text and header of the response to a request that should be a GET."""
    text = f"{method} is not allowed here; use GET or HEAD"
    return HTTPStatus.METHOD_NOT_ALLOWED, text, ("Allow", "GET, HEAD")


def as_json(document: object) -> bytes:
    """Return a line of JSON; values without a JSON type are shown as their ``repr``."""
    return json_line(document) + b"\n"


class Phase(Enum):
    """State of a connection. On a full port, connections are closed in this order."""

    CLOSING = 0
    """The last response was sent; waiting for the client to close."""
    HEAD = 1
    """Receiving the head of a request."""
    IDLE = 2
    """Between two requests."""
    RESPONDING = 3
    """Creating the response."""
    SENDING = 4
    """Sending the response."""
    STREAMING = 5
    """Sending a response while it is produced."""

    @property
    def is_responding(self) -> bool:
        """Whether a response is being created or sent."""
        return self in {Phase.RESPONDING, Phase.SENDING, Phase.STREAMING}


class HttpConnectionOwner(Protocol):
    """The server, as seen by a connection."""

    limits: HttpLimits
    methods: tuple[str, ...]
    timed_out: int

    async def handle(self, request: Request) -> Response:
        """Return the response."""

    def opened(self, connection: "HttpServerConnection") -> None:
        """Add a connection."""

    def closed(self, connection: "HttpServerConnection") -> None:
        """Remove a connection."""

    def sending(self, connection: "HttpServerConnection", body_bytes: int) -> None:
        """Record the length of a response to be sent; 0 once it has been sent."""

    def stream_failed(self, error: Exception) -> None:
        """Record that a stream could not be produced; its connection is closed."""


class HttpServerConnection(asyncio.Protocol):
    """Parses requests, sends responses, enforces time limits."""

    _transport: asyncio.Transport

    def __init__(self, owner: HttpConnectionOwner) -> None:
        self._owner = owner
        self._limits = owner.limits
        self._loop = asyncio.get_running_loop()
        self.phase = Phase.HEAD
        self.since = self._loop.time()
        """Loop time at which the phase began."""
        self._timer: asyncio.TimerHandle | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._keeps_alive = True
        self._has_ended = False
        """Whether the client has half-closed."""
        self._task: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()
        self._drained.set()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)  # writable: everything is written
        self._enter(Phase.HEAD, self._limits.head_seconds)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.phase is Phase.CLOSING:
            return
        if self.phase.is_responding:
            self._keeps_alive = False
            return
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEAD, self._limits.head_seconds)
        head = data[: self._limits.max_head_bytes - self._head_bytes]
        self._head_bytes += len(head)
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            self._keeps_alive = False
        except httptools.HttpParserError as error:
            # The parser also raises for a request that a callback has refused.
            self._refuse(HTTPStatus.BAD_REQUEST, f"not HTTP/1.1: {error}")
        if self.phase is not Phase.HEAD:
            self._keeps_alive = self._keeps_alive and len(head) == len(data)
        elif self._head_bytes >= self._limits.max_head_bytes:
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the head of the request is longer than {self._limits.max_head_bytes} bytes",
            )

    def eof_received(self) -> bool:
        # A client may half-close after its request; the response is still sent.
        self._keeps_alive = False
        self._has_ended = True
        if self.phase is Phase.STREAMING:  # it would never end by itself
            return False
        return self.phase.is_responding and self._transport.can_write_eof()  # not so with TLS

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        # Break the reference cycle with the parser: the garbage collector that would free it also
        # pauses the main event loop.
        del self._parser
        self.phase = Phase.CLOSING
        self._owner.closed(self)

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self.phase is Phase.HEAD:
            self._target = b""
            self._headers = {}
        else:
            self._keeps_alive = False  # pipelined

    def on_url(self, url: bytes) -> None:
        if self.phase is Phase.HEAD:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not Phase.HEAD:
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        if self.phase is not Phase.HEAD:
            return
        method = self._parser.get_method().decode("latin-1")
        if method not in self._owner.methods:
            self._refuse(*method_error(method))
        elif (
            self._headers.get("content-length", "0") != "0" or "transfer-encoding" in self._headers
        ):
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a request has no body here")

    def on_message_complete(self) -> None:
        if self.phase is not Phase.HEAD:
            return
        self._keeps_alive = (
            self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
        )
        peer = self._transport.get_extra_info("peername")
        request = Request(
            self._parser.get_method().decode(), self._target, self._headers, str(peer and peer[0])
        )
        self._enter(Phase.RESPONDING, None)
        self._task = self._loop.create_task(self._respond(request), name="http-response")

    # for the server

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # the response

    async def _respond(self, request: Request) -> None:
        response = await self._owner.handle(request)
        has_body = request.method != "HEAD"
        if response.stream is None:
            await self._send(response, has_body=has_body)
        else:
            await self._send_stream(response, response.stream, has_body=has_body)

    def _refuse(self, status: HTTPStatus, error: str, *headers: tuple[str, str]) -> None:
        if self.phase is not Phase.HEAD:
            return
        self._keeps_alive = False
        self._enter(Phase.RESPONDING, None)
        response = Response.of_error(status, error, *headers)
        has_body = self._parser.get_method() != b"HEAD"
        self._task = self._loop.create_task(self._send(response, has_body=has_body))

    async def _send(self, response: Response, *, has_body: bool) -> None:
        self._enter(Phase.SENDING, self._limits.write_seconds)
        body = memoryview(response.body)
        self._owner.sending(self, len(body) if has_body else 0)
        self._transport.write(self._head_of(response))
        for start in range(0, len(body) if has_body else 0, _CHUNK_BYTES):
            self._transport.write(body[start : start + _CHUNK_BYTES])
            await self._drained.wait()
        await self._drained.wait()
        self._owner.sending(self, 0)
        self._sent()

    async def _send_stream(
        self,
        response: Response,
        stream: Callable[[], AsyncGenerator[bytes, None]],
        *,
        has_body: bool,
    ) -> None:
        self._keeps_alive = False
        is_chunked = self._parser.get_http_version() != "1.0"
        self._enter(Phase.STREAMING, self._limits.write_seconds)
        framing = ("Transfer-Encoding: chunked",) if is_chunked else ()
        self._transport.write(self._head_of(response, *framing))
        try:
            if has_body:
                async with aclosing(stream()) as chunks:
                    async for chunk in chunks:
                        await self._send_chunk(chunk, is_chunked=is_chunked)
                if is_chunked:
                    self._transport.write(b"0\r\n\r\n")
            await self._drained.wait()
        except Exception as error:
            self._owner.stream_failed(error)
            self._transport.abort()
        else:
            self._sent()

    async def _send_chunk(self, chunk: bytes, *, is_chunked: bool) -> None:
        self._owner.sending(self, len(chunk))
        self._enter(Phase.STREAMING, self._limits.write_seconds)
        framed = b"%x\r\n%b\r\n" % (len(chunk), chunk) if is_chunked else chunk
        self._transport.write(framed)
        await self._drained.wait()
        self._owner.sending(self, 0)
        self._enter(Phase.STREAMING, None)

    def _sent(self) -> None:
        """Wait for the next request, or for the client to close."""
        self._task = None
        self._head_bytes = 0
        if self._keeps_alive:
            self._enter(Phase.IDLE, self._limits.idle_seconds)
            return
        if self._has_ended or not self._transport.can_write_eof():
            self._transport.close()
            return
        # Closing a socket with unread data resets it, and the response would be lost.
        self._enter(Phase.CLOSING, self._limits.linger_seconds)
        self._transport.write_eof()

    def _head_of(self, response: Response, *framing: str) -> bytes:
        status = response.status
        if response.stream is None:
            framing = (f"Content-Length: {len(response.body)}",)
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Date: {formatdate(usegmt=True)}",  # RFC 9110 §6.6.1: the doctor compares clocks
            f"Content-Type: {response.content_type}",
            *framing,
            *(f"{name}: {value}" for name, value in response.headers),
        ]
        if not self._keeps_alive:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    # time

    def _enter(self, phase: Phase, seconds: float | None) -> None:
        self.phase = phase
        self.since = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._late)

    def _late(self) -> None:
        if self.phase is not Phase.CLOSING:
            self._owner.timed_out += 1
        self._transport.abort()

"""A small HTTP/1.1 client: one `asyncio.Protocol` per connection, httptools for the framing.

httpx costs 750 us per request and aiohttp 102 us, an `asyncio.Protocol` 25 us: with either of the
two the generator, not the gateway, would be what is measured. There is no pipelining, no redirect
and no retry: a load generator reports what happened. An answer that overtakes its request (a 4xx
before the whole body was read) ends the exchange, and its connection is not used again if the
server says ``connection: close``.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Protocol, cast

import httptools

from epp.lab.load.record import ErrorKind, RequestFailedError

_FRAMING = (b"content-length", b"transfer-encoding")
_INFORMATIONAL_BELOW = 200


class Receiver(Protocol):
    """What takes an answer while it arrives; its methods must not raise."""

    def on_headers(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Takes status and headers, names in lower case; a repeated name keeps its last value."""

    def on_body(self, chunk: bytes) -> bool:
        """Takes bytes of the body; False closes the connection and ends the exchange."""


class LoadConnection(asyncio.Protocol):
    """One connection, one exchange at a time; while it is open it is a member of `register`."""

    def __init__(self, register: set["LoadConnection"]) -> None:
        self._register = register
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._receiver: Receiver | None = None
        self._done: asyncio.Future[None] | None = None
        self._until_close = False
        self.lost = asyncio.Event()
        """Set when the connection has ended."""
        self.reusable = True
        """Whether another exchange may follow the last one."""

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        """Sends `request` and passes the answer to `receiver` until it is complete.

        A cancelled exchange closes the connection.

        Raises:
            RequestFailedError: RESET if the connection ended first, MALFORMED if it was not HTTP.
        """
        if self._transport is None or not self.reusable:
            raise RequestFailedError(ErrorKind.RESET, "the connection is closed")
        self._receiver = receiver
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._done
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._receiver = self._done = None

    def close(self) -> None:
        """Closes the connection; idempotent."""
        self.reusable = False
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection without sending what is still buffered; idempotent."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not isinstance: uvloop's transports are no subclass of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self._register.add(self)

    def data_received(self, data: bytes) -> None:
        if self._done is None:
            self.close()  # nobody asked: an idle connection must be silent
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.abort()  # a bug in the receiver: it surfaces from exchange()
            if self._done is not None and not self._done.done():
                self._done.set_exception(error.__context__ or error)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort()
            self._fail(ErrorKind.MALFORMED, f"{type(error).__name__}: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._transport = None
        self._register.discard(self)
        self.lost.set()
        if exc is None and self._until_close:
            self._finish()
        else:
            self._fail(ErrorKind.RESET, str(exc or "closed before the end of the answer"))

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._headers = {}
        if self._done is None or self._done.done():
            self.close()  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._receiver is None or status < _INFORMATIONAL_BELOW:
            return
        self._until_close = not any(name in self._headers for name in _FRAMING)
        self._receiver.on_headers(status, self._headers)

    def on_body(self, chunk: bytes) -> None:
        if self._receiver is None or self._done is None or self._done.done():
            return
        if not self._receiver.on_body(chunk):
            self.close()
            self._finish()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < _INFORMATIONAL_BELOW:
            return
        self._until_close = False
        if not self._parser.should_keep_alive():
            self.close()
        self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, kind: ErrorKind, message: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(RequestFailedError(kind, message))


class ConnectionPool:
    """Kept connections to one address, the last used first; opens as many as are asked for."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._idle: list[LoadConnection] = []
        self._open: set[LoadConnection] = set()

    async def acquire(self) -> LoadConnection:
        """A connection, kept or new; give it back with `release`.

        Raises:
            RequestFailedError: REFUSED or CONNECT.
        """
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: LoadConnection(self._open), self._host, self._port, ssl=self._tls
            )
        except ConnectionRefusedError as error:
            raise RequestFailedError(ErrorKind.REFUSED, str(error)) from None
        except OSError as error:  # ssl.SSLError and socket.gaierror are OSErrors too
            raise RequestFailedError(ErrorKind.CONNECT, str(error)) from None
        return connection

    def release(self, connection: LoadConnection) -> None:
        """Takes a connection back after its exchange, good or failed."""
        if connection.reusable:
            self._idle.append(connection)

    async def aclose(self) -> None:
        """Closes every connection."""
        self._idle.clear()
        for connection in tuple(self._open):
            connection.abort()
            await connection.lost.wait()

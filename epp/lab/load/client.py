"""A small HTTP/1.1 client: one `asyncio.Protocol` per connection, httptools for the framing.

An `asyncio.Protocol` costs 25 us per request, aiohttp 102 us and httpx 750 us: with either library
a measurement would show the limits of the generator instead of the gateway. The client does not
pipeline, follow redirects or retry, so that every failure is reported. A response that is complete
before the server has read the request (an early 4xx) ends the exchange; the connection is not
reused if the response has ``connection: close``.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Protocol, cast

import httptools

from epp.lab.load.errors import RequestFailedError
from epp.lab.results.record import ErrorKind

_FRAMING = (b"content-length", b"transfer-encoding")
_INFORMATIONAL_BELOW = 200


class ResponseReceiver(Protocol):
    """Receives a response while it arrives; its methods must not raise."""

    def on_headers(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Receive the status and the headers by lower-case name, the last value of each."""

    def on_body(self, chunk: bytes) -> bool:
        """Receive bytes of the body; return False to close the connection and end the exchange."""


class LoadConnection(asyncio.Protocol):
    """A client connection with one exchange at a time; `register` contains it while it is open."""

    def __init__(self, register: set["LoadConnection"]) -> None:
        self._register = register
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._receiver: ResponseReceiver | None = None
        self._done: asyncio.Future[None] | None = None
        self._until_close = False
        self.lost = asyncio.Event()
        """Set when the connection has ended."""
        self.reusable = True
        """Whether another exchange may follow the last one."""

    async def exchange(self, request: bytes, receiver: ResponseReceiver) -> None:
        """Send `request` and pass the response to `receiver`; return when it is complete.

        Cancellation closes the connection.

        Raises:
            RequestFailedError: RESET if the connection was closed before the response was complete,
                MALFORMED if the response is not HTTP.
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
        """Close the connection; idempotent."""
        self.reusable = False
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection and discard buffered output; idempotent."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not isinstance: uvloop's transports do not inherit from asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self._register.add(self)

    def data_received(self, data: bytes) -> None:
        if self._done is None:
            self.close()  # data without a request
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.abort()  # a bug in the receiver: exchange() raises it
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
            self._fail(ErrorKind.RESET, str(exc or "closed before the end of the response"))

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._headers = {}
        if self._done is None or self._done.done():
            self.close()  # a second response to one request

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
    """An unbounded pool of connections to one address; the last released is reused first."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._idle: list[LoadConnection] = []
        self._open: set[LoadConnection] = set()

    async def acquire(self) -> LoadConnection:
        """Return an idle or a new connection; pass it to `release` after the exchange.

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
        """Return a connection to the pool after its exchange, successful or not."""
        if connection.reusable:
            self._idle.append(connection)

    async def aclose(self) -> None:
        """Close all connections."""
        self._idle.clear()
        for connection in tuple(self._open):
            connection.abort()
            await connection.lost.wait()

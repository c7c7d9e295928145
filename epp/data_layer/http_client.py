"""The scraper's HTTP/1.1 client: one persistent connection per endpoint, one GET at a time.

One GET of a 54 KB page costs 750 us with httpx, 102 us with aiohttp and 25 us with an
``asyncio.Protocol`` and httptools; with a hundred endpoints scraped 20 times a second only the last
is affordable. It supports TLS, but neither redirects nor compression. The caller sets the time
limit; a cancelled GET closes its connection, because the rest of its response would be mistaken for
the next one.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from time import thread_time
from typing import Final, cast

import httptools

from epp.data_layer.address import split_address
from epp.data_layer.errors import (
    PageTooLargeError,
    ScrapeConnectError,
    ScrapeError,
    ScrapeProtocolError,
    ScrapeResetError,
    ScrapeStatusError,
)
from epp.data_layer.plugins import OpenPage, Page

MAX_PAGE_BYTES: Final = 8 * 1024 * 1024
"""Larger pages are refused; a vLLM page has 54 KB."""

_MAX_HEAD_BYTES: Final = 64 * 1024
"""Allowance for the headers of a response."""

_OK: Final = 200
_FRAMING: Final = (b"content-length", b"transfer-encoding")


class HttpClientConnection(asyncio.Protocol):
    """One TCP connection; ``exchange`` sends a request and waits for the response body.

    Args:
        max_page_bytes: Longer bodies are refused.
        remedy: How to fix that, for the error text.
    """

    def __init__(
        self,
        max_page_bytes: int,
        remedy: str = "have the server publish fewer series, or raise --max-scrape-page-bytes",
    ) -> None:
        self.max_page_bytes = max_page_bytes
        """May be changed between two exchanges."""
        self._remedy = remedy
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[bytes] | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._received_bytes = 0
        self._framed = False
        self._until_close = False
        self.answering = False
        """Whether part of the current response has arrived."""
        self.reusable = True
        """Whether another request may be sent."""
        self.spent_seconds = 0.0
        """CPU time spent on receiving."""

    async def exchange(self, request: bytes) -> bytes:
        """Send ``request`` and return the body; a cancelled exchange closes the connection.

        Raises:
            ScrapeError: As for :meth:`HttpClient.get`.
        """
        if self._transport is None:
            raise ScrapeResetError("the connection was closed")
        self.answering = False
        self._received_bytes = 0
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._answer = None

    def abort(self) -> None:
        """Close the connection at once; idempotent."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance: uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # data on an idle connection is a protocol error
            return
        # The thread's CPU time, not wall time: a busy machine does not make a page expensive.
        began = thread_time()
        self._receive(data)
        self.spent_seconds += thread_time() - began

    def _receive(self, data: bytes) -> None:
        self.answering = True
        self._received_bytes += len(data)
        if self._received_bytes > 2 * self.max_page_bytes + _MAX_HEAD_BYTES:
            self._refuse_size()  # endless headers, or endless tiny chunks
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ScrapeProtocolError(f"the answer is not HTTP/1.1: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.reusable = False
        if exc is None and self._until_close:
            self._complete()  # RFC 9112 §6.3: without a length the close is the end of the body
        else:
            reason = f": {exc}" if exc else ""
            what = f"the connection ended before the page was complete{reason}"
            self._fail(ScrapeResetError(what))
        # Break the reference cycle with the parser, which only the garbage collector would free.
        del self._parser

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # a second response to one request would be taken for the next one
        self._body = []
        self._body_bytes = 0
        self._framed = self._until_close = False

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        self._framed = self._framed or lowered in _FRAMING
        if lowered == b"content-length" and value.isdigit() and int(value) > self.max_page_bytes:
            self._refuse_size()

    def on_headers_complete(self) -> None:
        self._until_close = not self._framed and self._parser.get_status_code() >= _OK

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self.max_page_bytes:
            self._refuse_size()
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < _OK:
            return  # 1xx: the final response is still to come
        self._until_close = False
        self._complete()
        if not self._parser.should_keep_alive():
            self.abort()

    def _refuse_size(self) -> None:
        self._fail(
            PageTooLargeError(
                f"the page is larger than {self.max_page_bytes} bytes: {self._remedy}"
            )
        )

    def _complete(self) -> None:
        if self._answer is None or self._answer.done():
            return
        status = self._parser.get_status_code()
        if status == _OK:
            self._answer.set_result(b"".join(self._body))
        else:
            self._answer.set_exception(ScrapeStatusError(status))
        self._body = []

    def _fail(self, error: ScrapeError) -> None:
        self.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class HttpClient:
    """Gets one page from one ``ip:port`` over a persistent connection; connects as needed.

    Args:
        address: ``ip:port``, an IPv6 address in brackets.
        path: Request path; printable ASCII without spaces.
        tls: For https; the certificate is checked against the IP address if the context says so.
        clock: Clock for the timestamps of pages, in seconds.
        max_page_bytes: Longer bodies are refused.
    """

    def __init__(
        self,
        address: str,
        path: str,
        tls: ssl.SSLContext | None = None,
        *,
        clock: Callable[[], float],
        max_page_bytes: int = MAX_PAGE_BYTES,
    ) -> None:
        self._address = address
        self._host, self._port = split_address(address)
        self._tls = tls
        self._clock = clock
        self._max_page_bytes = max_page_bytes
        self._connection: HttpClientConnection | None = None
        self._spent_before = 0.0
        self._request = (
            f"GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: text/plain, application/json\r\n"
            f"user-agent: endpoint-picker\r\n\r\n"
        ).encode("ascii")

    @property
    def spent_seconds(self) -> float:
        """CPU time spent on receiving so far."""
        connection = self._connection
        return self._spent_before + (0.0 if connection is None else connection.spent_seconds)

    async def get(self) -> Page:
        """Return the page; one call at a time.

        Raises:
            ScrapeError: No connection, no complete response, not HTTP, not 200, or too large; the
                subclass says which.
        """
        connection = self._connection
        if connection is not None and connection.reusable:
            try:
                return await self._exchange(connection)
            except ScrapeResetError:
                # The server may close an idle connection just as we write. If no byte of a response
                # has arrived, a retry is safe (RFC 9110 §9.2.2: GET is idempotent).
                if connection.answering:
                    raise
        return await self._exchange(await self._connect())

    def close(self) -> None:
        """Close the connection; idempotent, and a later ``get`` opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._spent_before += connection.spent_seconds
            connection.abort()

    async def _connect(self) -> HttpClientConnection:
        self.close()
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: HttpClientConnection(self._max_page_bytes),
                self._host,
                self._port,
                ssl=self._tls,
                server_hostname=self._host if self._tls else None,
            )
        except OSError as error:  # includes failed TLS handshakes
            raise ScrapeConnectError(f"cannot connect to {self._address}: {error}") from None
        self._connection = connection
        return connection

    async def _exchange(self, connection: HttpClientConnection) -> Page:
        requested_at = self._clock()
        return Page(await connection.exchange(self._request), requested_at)


def page_opener(clock: Callable[[], float], *, max_page_bytes: int = MAX_PAGE_BYTES) -> OpenPage:
    """Return the service ``open_page``; its clients take the timestamps of pages from ``clock``."""
    return partial(HttpClient, clock=clock, max_page_bytes=max_page_bytes)

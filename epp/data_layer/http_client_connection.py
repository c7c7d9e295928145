"""One HTTP/1.1 connection of a client: one request at a time, its response read with httptools.

It supports TLS, but neither redirects nor compression. A cancelled exchange closes the connection,
because the rest of its response would be mistaken for the next one.
"""

import asyncio
from time import thread_time
from typing import Final, cast

import httptools

from epp.data_layer.errors import (
    PageTooLargeError,
    ScrapeError,
    ScrapeProtocolError,
    ScrapeResetError,
    ScrapeStatusError,
)

_MAX_HEAD_BYTES: Final = 64 * 1024
"""Allowance for the headers of a response."""

_OK: Final = 200
_LENGTH: Final = b"content-length"
_FRAMING: Final = (_LENGTH, b"transfer-encoding")


class HttpClientConnection(asyncio.Protocol):
    """One TCP connection; ``exchange`` sends a request and waits for the response body.

    Args:
        max_page_bytes: Longer bodies are refused.
        remedy: How to fix that, for the error text.
    """

    __slots__ = (
        "_body",
        "_body_bytes",
        "_framed",
        "_parser",
        "_received_bytes",
        "_remedy",
        "_response",
        "_transport",
        "_until_close",
        "is_responding",
        "max_page_bytes",
        "reusable",
        "spent_seconds",
    )

    def __init__(
        self,
        max_page_bytes: int,
        remedy: str = "have the server publish fewer series, or raise --max-scrape-page-bytes",
    ) -> None:
        self.max_page_bytes = max_page_bytes
        """May be changed between two exchanges."""
        self._remedy = remedy
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser
        """Exists only during an exchange: it takes 1.2 KB, and 0.3 us to make."""
        self._response: asyncio.Future[bytes] | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._received_bytes = 0
        self._framed = False
        self._until_close = False
        self.is_responding = False
        """Whether part of the current response has arrived."""
        self.reusable = True
        """Whether another request may be sent."""
        self.spent_seconds = 0.0
        """CPU time spent on receiving."""

    async def exchange(self, request: bytes) -> bytes:
        """Send ``request`` and return the body; a cancelled exchange closes the connection.

        Raises:
            ScrapeError: No complete response, not HTTP, not 200, or too large; the subclass says
                which.
        """
        if self._transport is None:
            raise ScrapeResetError("the connection was closed")
        self.is_responding = False
        self._received_bytes = 0
        self._parser = httptools.HttpResponseParser(self)
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._response
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._response = None
            # It refers to this object; only the garbage collector would free the two.
            del self._parser

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
        if self._response is None or self._response.done():
            self.abort()  # data on an idle connection is a protocol error
            return
        # The thread's CPU time, not wall time: a busy machine does not make a page expensive.
        began = thread_time()
        self._receive(data)
        self.spent_seconds += thread_time() - began

    def _receive(self, data: bytes) -> None:
        self.is_responding = True
        self._received_bytes += len(data)
        if self._received_bytes > 2 * self.max_page_bytes + _MAX_HEAD_BYTES:
            self._refuse_size()  # endless headers, or endless tiny chunks
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ScrapeProtocolError(f"the response is not HTTP/1.1: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.reusable = False
        if exc is None and self._until_close:
            self._complete()  # RFC 9112 §6.3: without a length the close is the end of the body
        else:
            reason = f": {exc}" if exc else ""
            what = f"the connection ended before the page was complete{reason}"
            self._fail(ScrapeResetError(what))

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self._response is None or self._response.done():
            self.abort()  # a second response to one request would be taken for the next one
        self._body = []
        self._body_bytes = 0
        self._framed = self._until_close = False

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered in _FRAMING:
            self._framed = True
            if lowered == _LENGTH and value.isdigit() and int(value) > self.max_page_bytes:
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
        if self._response is None or self._response.done():
            return
        status = self._parser.get_status_code()
        if status == _OK:
            self._response.set_result(b"".join(self._body))
        else:
            self._response.set_exception(ScrapeStatusError(status))
        self._body = []

    def _fail(self, error: ScrapeError) -> None:
        self.abort()
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)

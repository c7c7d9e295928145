"""The scraper's HTTP/1.1 client: gets one page of one server over a persistent connection.

One GET of a 54 KB page costs 750 us with httpx, 102 us with aiohttp and 25 us with an
``asyncio.Protocol`` and httptools; with a hundred endpoints scraped 20 times a second only the last
is affordable. The caller sets the time limit.
"""

import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from epp.data_layer.errors import ScrapeResetError
from epp.data_layer.http_client_connection import HttpClientConnection
from epp.data_layer.plugins import OpenPage, Page
from epp.data_layer.shared_connections import ServerConnections, SharedConnections

MAX_PAGE_BYTES: Final = 8 * 1024 * 1024
"""Larger pages are refused; a vLLM page has 54 KB."""


class HttpClient:
    """Gets one page from one ``ip:port``; connects as needed.

    Args:
        address: ``ip:port``, an IPv6 address in brackets.
        path: Request path; printable ASCII without spaces.
        tls: For https; the certificate is checked against the IP address if the context says so.
        clock: Clock for the timestamps of pages, in seconds.
        max_page_bytes: Longer bodies are refused.
        connections: Connections to share with other clients; None to share none.

    Raises:
        ValueError: The address is malformed.
    """

    __slots__ = (
        "_address",
        "_clock",
        "_connection",
        "_connections",
        "_max_page_bytes",
        "_request",
        "_server",
        "_tls",
        "spent_seconds",
    )

    def __init__(
        self,
        address: str,
        path: str,
        tls: ssl.SSLContext | None = None,
        *,
        clock: Callable[[], float],
        max_page_bytes: int = MAX_PAGE_BYTES,
        connections: SharedConnections | None = None,
    ) -> None:
        self._address = address
        self._tls = tls
        self._clock = clock
        self._max_page_bytes = max_page_bytes
        self._connections = connections or SharedConnections()
        self._server: ServerConnections | None = self._connections.join(address, tls)
        self._connection: HttpClientConnection | None = None
        """The connection in use."""
        self.spent_seconds = 0.0
        """CPU time spent on receiving so far."""
        self._request = (
            f"GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: text/plain, application/json\r\n"
            f"user-agent: endpoint-picker\r\n\r\n"
        ).encode("ascii")

    async def get(self) -> Page:
        """Return the page; one call at a time. A cancelled call closes its connection.

        Raises:
            ScrapeError: No connection, no complete response, not HTTP, not 200, or too large; the
                subclass says which.
        """
        server = self._server
        if server is None:
            server = self._server = self._connections.join(self._address, self._tls)
        connection = server.take()
        if connection is not None:
            try:
                return await self._exchange(server, connection)
            except ScrapeResetError:
                # The server may close an idle connection just as we write. If no byte of a response
                # has arrived, a retry is safe (RFC 9110 §9.2.2: GET is idempotent).
                if connection.is_responding:
                    raise
        return await self._exchange(server, await server.connect())

    def close(self) -> None:
        """Close the connection; idempotent, and a later ``get`` opens another."""
        server, self._server = self._server, None
        if server is not None:
            self._connections.leave(server)
        if self._connection is not None:
            self._connection.abort()

    async def _exchange(self, server: ServerConnections, connection: HttpClientConnection) -> Page:
        connection.max_page_bytes = self._max_page_bytes
        spent_before = connection.spent_seconds
        self._connection = connection
        requested_at = self._clock()
        try:
            return Page(await connection.exchange(self._request), requested_at)
        finally:
            self._connection = None
            self.spent_seconds += connection.spent_seconds - spent_before
            server.give_back(connection)


def page_opener(
    clock: Callable[[], float],
    *,
    max_page_bytes: int = MAX_PAGE_BYTES,
    connections: SharedConnections | None = None,
) -> OpenPage:
    """Return the service ``open_page``.

    Args:
        clock: Clock for the timestamps of pages, in seconds.
        max_page_bytes: Longer pages are refused.
        connections: Connections to share with other clients; None for new ones.
    """
    return partial(
        HttpClient,
        clock=clock,
        max_page_bytes=max_page_bytes,
        connections=connections or SharedConnections(),
    )

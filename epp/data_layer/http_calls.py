"""HTTP POST client with a connection pool, for plugins that call another process per request.

It uses the connections of the scraper (:mod:`.http_client_connection`). Connections, waiting
callers and the length of a response are bounded, because clients determine the rate of calls and
the server may be faulty.
"""

import asyncio
import ssl
from typing import Final

from epp.data_layer.address import split_address
from epp.data_layer.errors import CallerBusyError, ScrapeConnectError, ScrapeResetError
from epp.data_layer.http_client_connection import HttpClientConnection

_REMEDY: Final = "it is not the expected response"


class Slots:
    """Limits the concurrent calls to one server, and the callers waiting for a slot.

    Args:
        server: Name for messages.
        most: Concurrent calls.
        most_waiting: Callers that may wait.
    """

    def __init__(self, server: str, most: int, most_waiting: int) -> None:
        self._server = server
        self._free = asyncio.Semaphore(most)
        self._most_waiting = most_waiting
        self._waiting = 0

    async def __aenter__(self) -> None:
        """Wait for a slot.

        Raises:
            CallerBusyError: Too many calls are waiting.
        """
        if self._free.locked() and self._waiting >= self._most_waiting:
            raise CallerBusyError(f"{self._waiting} calls to {self._server} are waiting already")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        """Release the slot."""
        self._free.release()


class HttpCalls:
    """A client for one ``host:port``.

    Args:
        address: ``host:port``, an IPv6 address in brackets; a name is looked up at each connect.
        tls: For https; None for plaintext.
        max_connections: Concurrent calls.
        max_waiting: Calls that may wait for a connection; more are refused.
    """

    def __init__(
        self,
        address: str,
        tls: ssl.SSLContext | None = None,
        *,
        max_connections: int,
        max_waiting: int,
    ) -> None:
        self._address = address
        self._host, self._port = split_address(address)
        self._tls = tls
        self._slots = Slots(address, max_connections, max_waiting)
        self._open: set[HttpClientConnection] = set()
        self._idle: list[HttpClientConnection] = []
        self._is_closed = False

    async def post(self, path: str, body: bytes, *, max_response_bytes: int) -> bytes:
        """Send the JSON ``body`` and return the response body; for idempotent calls only.

        The call is retried if the server has meanwhile closed the idle connection. The caller sets
        the time limit; a cancelled call closes its connection.

        Raises:
            ScrapeError: No connection, no complete response, not HTTP, not 200, or too long; the
                subclass says which.
            CallerBusyError: Too many calls are waiting.
        """
        async with self._slots:
            head = (
                f"POST {path} HTTP/1.1\r\nhost: {self._address}\r\n"
                "content-type: application/json\r\naccept: application/json\r\n"
                f"user-agent: endpoint-picker\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            return await self._send(b"".join((head.encode("ascii"), body)), max_response_bytes)

    def close(self) -> None:
        """Close all connections; calls in flight fail."""
        self._is_closed = True
        for connection in self._open:
            connection.abort()
        self._open.clear()
        self._idle.clear()

    async def _send(self, request: bytes, max_response_bytes: int) -> bytes:
        while self._idle:
            connection = self._idle.pop()
            if not connection.reusable:
                self._open.discard(connection)
                continue
            try:
                return await self._exchange(connection, request, max_response_bytes)
            except ScrapeResetError:
                if connection.is_responding:
                    raise
        return await self._exchange(await self._connect(), request, max_response_bytes)

    async def _exchange(
        self, connection: HttpClientConnection, request: bytes, max_response_bytes: int
    ) -> bytes:
        connection.max_page_bytes = max_response_bytes
        try:
            return await connection.exchange(request)
        finally:
            if connection.reusable and not self._is_closed:
                self._idle.append(connection)
            else:
                self._open.discard(connection)

    async def _connect(self) -> HttpClientConnection:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: HttpClientConnection(0, _REMEDY),
                self._host,
                self._port,
                ssl=self._tls,
                server_hostname=self._host if self._tls else None,
            )
        except OSError as error:  # includes failed TLS handshakes and unknown host names
            raise ScrapeConnectError(f"cannot connect to {self._address}: {error}") from None
        if self._is_closed:
            connection.abort()
            raise ScrapeConnectError(f"the client of {self._address} is closed")
        self._open.add(connection)
        return connection

"""The connections of several clients to the same server.

A metrics page and a health check of one server use the same connection in turn. If it is in use,
the other client opens a second one, so that none waits for the response to the other. One idle
connection is kept. A second idle connection to each of a thousand servers would take 3 MB.
"""

import asyncio
import ssl

from epp.data_layer.address import split_address
from epp.data_layer.errors import ScrapeConnectError
from epp.data_layer.http_client_connection import HttpClientConnection


class ServerConnections:
    """The connections to one server; created by :class:`SharedConnections`.

    Args:
        address: ``ip:port``, an IPv6 address in brackets.
        tls: For https.
    """

    __slots__ = ("_host", "_idle", "_port", "address", "clients", "tls")

    def __init__(self, address: str, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self._host, self._port = split_address(address)
        self.tls = tls
        self.clients = 0
        self._idle: HttpClientConnection | None = None

    def take(self) -> HttpClientConnection | None:
        """Return the idle connection, None if there is none."""
        idle, self._idle = self._idle, None
        return idle if idle is not None and idle.reusable else None

    async def connect(self) -> HttpClientConnection:
        """Return a new connection.

        Raises:
            ScrapeConnectError: Connecting or the TLS handshake failed.
        """
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: HttpClientConnection(0),
                self._host,
                self._port,
                ssl=self.tls,
                server_hostname=self._host if self.tls else None,
            )
        except OSError as error:  # includes failed TLS handshakes
            raise ScrapeConnectError(f"cannot connect to {self.address}: {error}") from None
        return connection

    def give_back(self, connection: HttpClientConnection) -> None:
        """Keep a connection that is no longer in use, or close it."""
        if not connection.reusable:
            return
        if self.clients and (self._idle is None or not self._idle.reusable):
            self._idle = connection
        else:
            connection.abort()

    def close(self) -> None:
        """Close the idle connection."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.abort()


class SharedConnections:
    """The connections of all clients to all servers."""

    def __init__(self) -> None:
        self._servers: dict[tuple[str, ssl.SSLContext | None], ServerConnections] = {}

    def join(self, address: str, tls: ssl.SSLContext | None) -> ServerConnections:
        """Return the connections to a server, for one more client.

        Raises:
            ValueError: The address is malformed.
        """
        server = self._servers.get((address, tls))
        if server is None:
            server = self._servers[address, tls] = ServerConnections(address, tls)
        server.clients += 1
        return server

    def leave(self, server: ServerConnections) -> None:
        """Remove a client; after the last one, the idle connection is closed."""
        server.clients -= 1
        if not server.clients:
            del self._servers[server.address, server.tls]
            server.close()

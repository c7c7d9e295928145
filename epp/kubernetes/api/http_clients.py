"""The HTTP client of an API server, replaced together with the connection."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2

from epp.kubernetes.api.connection import Connection
from epp.kubernetes.api.followed_connection import FollowedConnection

_RELAY: Final = "http://watch-relay"
"""Base URL of a relay, which errors show; its host name is not resolved."""


def open_relay(path: Path) -> httpx2.AsyncClient:
    """Return a client of a relay; the caller closes it, and sets the time limits of calls.

    Args:
        path: The relay's socket file.
    """
    return httpx2.AsyncClient(
        base_url=_RELAY,
        headers={"accept-encoding": "identity"},
        timeout=None,
        trust_env=False,
        transport=httpx2.AsyncHTTPTransport(
            verify=False,  # there is no TLS, and certificate authorities take 25 ms to load
            uds=str(path),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=4),
        ),
    )


class _Counted:
    """The HTTP client of a connection, and how many calls use it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.http = connection.open()
        self.calls = 0


class HttpClients:
    """The client of the current connection, and former ones whose last call has not ended.

    A kept connection stays authenticated by the certificate with which it was opened, so new calls
    need new connections.

    Args:
        connection: Server and credentials.
    """

    def __init__(self, connection: Connection) -> None:
        self._followed = FollowedConnection(connection)
        self._newest = _Counted(connection)
        self._former: list[_Counted] = []

    @property
    def connection(self) -> Connection:
        """The current connection."""
        return self._newest.connection

    @asynccontextmanager
    async def newest(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """Yield the client of the current connection, for one call."""
        connection = await self._followed.current()
        if connection is not self._newest.connection:
            self._former.append(self._newest)
            self._newest = _Counted(connection)
            await self._close_unused()
        used = self._newest
        used.calls += 1
        try:
            yield used.http
        finally:
            used.calls -= 1
            await self._close_unused()

    async def close(self) -> None:
        """Close all connections; open calls fail."""
        for each in (self._newest, *self._former):
            await each.http.aclose()

    async def _close_unused(self) -> None:
        unused = [each for each in self._former if not each.calls]
        self._former = [each for each in self._former if each.calls]
        for each in unused:
            await each.http.aclose()

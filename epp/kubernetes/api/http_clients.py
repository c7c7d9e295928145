"""The HTTP client of an API server, replaced when the certificates change."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2

from epp.kubernetes.api.connection import Connection


class _Counted:
    """An HTTP client, and how many calls use it."""

    def __init__(self, http: httpx2.AsyncClient, tls: ssl.SSLContext) -> None:
        self.http = http
        self.tls = tls
        self.calls = 0


class HttpClients:
    """The client with the present certificates, and those whose last call has not ended.

    A kept connection stays authenticated by the certificate with which it was opened, so new calls
    need new connections.

    Args:
        connection: Server and credentials.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._newest = self._open(connection.tls.context)
        self._former: list[_Counted] = []

    @asynccontextmanager
    async def newest(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """Yield the client with the present certificates, for one call."""
        tls = await self._connection.tls.current()
        if tls is not self._newest.tls:
            self._former.append(self._newest)
            self._newest = self._open(tls)
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

    def _open(self, tls: ssl.SSLContext) -> _Counted:
        return _Counted(self._connection.open(tls), tls)

    async def _close_unused(self) -> None:
        unused = [each for each in self._former if not each.calls]
        self._former = [each for each in self._former if each.calls]
        for each in unused:
            await each.http.aclose()

"""Sends requests over HTTP/2: a few connections, each with many streams at the same time."""

import asyncio
import ssl
from collections.abc import Iterable

from epp.lab.load.client import ResponseReceiver
from epp.lab.load.errors import RequestFailedError
from epp.lab.load.http2_connection import Http2ClientConnection
from epp.lab.load.plan import LoadPlan
from epp.lab.results.record import ErrorKind

MAX_STREAMS = 100
"""Streams of one connection, if the server allows as many; Envoy serves a connection with one
thread."""


class Http2Transport:
    """Connections to the plan's address, opened when all others are full."""

    def __init__(self, plan: LoadPlan, headers: dict[str, str], tls: ssl.SSLContext | None) -> None:
        address = plan.address
        self._host = address.hostname or ""
        self._port = plan.port
        self._tls = tls
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        named = {
            ":method": "POST",
            ":scheme": address.scheme,
            ":authority": headers.pop("host", address.netloc),
            ":path": plan.path,
            **headers,
        }
        self._fields = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
        self._connections: list[Http2ClientConnection] = []
        self._connecting = asyncio.Lock()

    async def exchange(
        self, headers: Iterable[tuple[str, str]], body: bytes, receiver: ResponseReceiver
    ) -> None:
        """Send a request with these headers in addition; pass the response to `receiver`.

        Raises:
            RequestFailedError: There is no complete response.
        """
        fields = [
            *self._fields,
            *((name.encode(), value.encode("latin-1")) for name, value in headers),
            (b"content-length", b"%d" % len(body)),
        ]
        connection = self._free() or await self._another()
        await connection.exchange(fields, body, receiver)

    async def aclose(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()
            await connection.lost.wait()

    def _free(self) -> Http2ClientConnection | None:
        for connection in self._connections:
            if connection.free_streams(MAX_STREAMS) > 0:
                return connection
        return None

    async def _another(self) -> Http2ClientConnection:
        async with self._connecting:  # one at a time: the next may find room in the new one
            if (connection := self._free()) is not None:
                return connection
            self._connections = [each for each in self._connections if not each.lost.is_set()]
            connection = await self._connect()
            self._connections.append(connection)
            try:
                await connection.ready()
            except BaseException:
                connection.close()
                raise
            return connection

    async def _connect(self) -> Http2ClientConnection:
        loop = asyncio.get_running_loop()
        try:
            transport, connection = await loop.create_connection(
                Http2ClientConnection, self._host, self._port, ssl=self._tls
            )
        except ConnectionRefusedError as error:
            raise RequestFailedError(ErrorKind.REFUSED, str(error)) from None
        except OSError as error:  # ssl.SSLError and socket.gaierror are OSErrors too
            raise RequestFailedError(ErrorKind.CONNECT, str(error)) from None
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            transport.abort()
            raise RequestFailedError(
                ErrorKind.CONNECT, "the server does not offer HTTP/2 (ALPN protocol h2)"
            )
        return connection

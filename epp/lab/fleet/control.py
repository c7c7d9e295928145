"""The control port of a fleet: statistics and the request log, independent of faults.

`GET /lab/stats` returns the load of the fleet's own process, `GET /lab/requests` the latest
requests as JSON lines (`ServedRequest`).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import msgspec

from epp.lab.fleet.errors import PortTakenError
from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.http import FakeServerConnection
from epp.lab.fleet.request_log import RequestLog

STATS = b"/lab/stats"
REQUESTS = b"/lab/requests"
_MAX_BODY_BYTES = 64 * 1024


class ControlServer:
    """Serves the control port."""

    def __init__(
        self, stats: Callable[[], dict[str, Any]], log: RequestLog, *, host: str, port: int | None
    ) -> None:
        self.port = port
        """Port; None if there is none, 0 until it is started on a free one."""
        self._stats = stats
        self._log = log
        self._host = host
        self._connections: set[FakeServerConnection] = set()
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str | None:
        """URL without a path; None if there is no control port."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return None if self.port is None else f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Listen, if there is a port.

        Raises:
            PortTakenError: It is in use.
        """
        if self.port is None:
            return
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self._connection, self._host, self.port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTakenError("the control port", self._host, self.port) from error
            raise
        self.port = self._listener.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop, and close all connections."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in tuple(self._connections):
            connection.abort()

    def _connection(self) -> FakeServerConnection:
        return FakeServerConnection(
            self._handle,
            self._connections,
            common_headers=b"server: fake-vllm\r\n",
            max_body_bytes=_MAX_BODY_BYTES,
        )

    def _handle(self, exchange: Exchange) -> None:
        if exchange.path not in {STATS, REQUESTS}:
            known = f'{{"detail":"Not Found","paths":["{STATS.decode()}","{REQUESTS.decode()}"]}}'
            exchange.respond(404, known.encode())
        elif exchange.method != b"GET":
            exchange.respond(405, b'{"detail":"Method Not Allowed"}', extra=((b"allow", b"GET"),))
        elif exchange.path == STATS:
            exchange.respond(200, msgspec.json.encode(self._stats()))
        else:
            log = self._log
            counts = ((b"x-requests-ended", str(log.ended).encode()),)
            exchange.respond(200, log.lines(), b"application/jsonl", extra=counts)

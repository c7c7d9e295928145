"""The side door of Prometheus: /metrics."""

import asyncio
import contextlib
import socket
from types import TracebackType
from typing import Self

import prometheus_client

from epp.observability.metrics import Metrics


class PortError(Exception):
    """A port of ours cannot be listened on."""


class MetricsServer:
    """/metrics over plain HTTP, in a thread of its own."""

    def __init__(self, metrics: Metrics, *, host: str, port: int) -> None:
        try:
            self._server, self._thread = prometheus_client.start_http_server(
                port, addr=host, registry=metrics.registry
            )
        except OSError as error:
            raise PortError(
                f"cannot serve metrics on {host} port {port}: {error.strerror};"
                " stop the other process, or give another --metrics-port or --host"
            ) from error

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        # Its thread looks every 0.5 s whether to end; the end of what it listens on wakes it. (Only
        # Linux lets a listener be shut down; elsewhere the thread is waited for.)
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

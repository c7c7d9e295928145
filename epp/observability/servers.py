"""The side door of Prometheus and of operators: /metrics and what is below /debug/."""

import asyncio
import contextlib
import socket
from types import TracebackType
from typing import Self

import prometheus_client

from epp.observability.debug_pages import LIMIT_SECONDS, DebugPages, Pages, no_pages
from epp.observability.metrics import Metrics


class PortError(Exception):
    """A port of ours cannot be listened on."""


class MetricsServer:
    """/metrics and debug pages over plain HTTP, in threads of its own.

    /metrics needs nothing of the event loop and is served also while that stands still. The loop on
    which the server is entered makes the debug pages.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        host: str,
        port: int,
        pages: Pages = no_pages,
        page_limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        """Serve /metrics from now on, and the debug pages once the server is entered.

        Args:
            metrics: What /metrics tells.
            host: Where to listen.
            port: Likewise; 0 for any.
            pages: The debug pages that there are.
            page_limit_seconds: How long the event loop is waited for when it shall make one.

        Raises:
            PortError: It cannot be listened there.
        """
        self._registry = metrics.registry
        self._pages = pages
        self._page_limit_seconds = page_limit_seconds
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
        self._server.set_app(
            DebugPages(
                prometheus_client.make_wsgi_app(self._registry),
                self._pages,
                asyncio.get_running_loop(),
                limit_seconds=self._page_limit_seconds,
            )
        )
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

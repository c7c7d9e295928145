"""The metrics port: /metrics for Prometheus; /debug/ and the live page, /ui/, for operators."""

import asyncio
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Self
from urllib.parse import parse_qs, unquote_to_bytes

import structlog
from prometheus_client.exposition import choose_encoder, gzip_accepted

from epp.observability.admin_calls import AdminCalls, parameters
from epp.observability.authorization import Authorizer, refusal
from epp.observability.debug_pages import (
    PREFIX,
    DebugPages,
    DebugPagesCallback,
    name_of,
    no_pages,
)
from epp.observability.event_feeds import MAX_VIEWERS, EventFeeds, EventSource
from epp.observability.exposition import Exposition, MetricsRegistry
from epp.observability.http_connection import HttpLimits, Request, Response, method_error
from epp.observability.http_server import HttpServer
from epp.observability.loop_calls import LIMIT_SECONDS, LoopCalls
from epp.observability.metrics import Metrics
from epp.observability.page_queue import PageQueue
from epp.sockets import PortStatistics, listen_on

_log = structlog.get_logger(__name__)

_PATH = "/metrics"
_LIVE_PAGE = "/ui/"
_OPENMETRICS = "application/openmetrics-text"
_MAX_WAITING_PAGES = 8
_VIEWERS_SHARE = 4
"""One connection out of this many may be a viewer of a feed, which keeps it open."""
_SLICE_SECONDS = 0.001
"""Rendering time after which the thread releases the GIL for as long."""
_GZIP_LEVEL = 1
"""A page of 1 MB becomes 51 kB in 7 ms; with the library's level, 9, 25 kB in 24 ms."""
_GZIP_WINDOW = 31
"""The largest window, with gzip's header."""


class PortError(Exception):
    """A port cannot be opened."""


def listen_for_metrics(host: str, port: int, path: Path | None = None) -> list[socket.socket]:
    """Open the metrics port; blocks: it resolves the host.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 for any free one.
        path: Socket file to listen on instead.

    Raises:
        PortError: It cannot be opened.
    """
    try:
        return listen_on(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            if path is None
            else [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", str(path))]
        )
    except OSError as error:
        raise PortError(
            f"cannot serve metrics on {host} port {port}: {error.strerror};"
            " stop the other process, or give another --metrics-port or --host"
        ) from error


class _Form(NamedTuple):
    """Variant of the page that a client requests."""

    is_openmetrics: bool
    content_type: str
    is_gzip: bool
    names: tuple[str, ...]


class MetricsServer:
    """Serves /metrics and debug pages over HTTP in a separate thread.

    /metrics does not need the main event loop and is served even while that is blocked. Debug pages
    are rendered on the loop on which the server is entered.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        host: str,
        port: int,
        path: Path | None = None,
        pools: Callable[[], Mapping[str, MetricsRegistry]] = dict,
        pages: DebugPagesCallback = no_pages,
        feeds: Callable[[], Mapping[str, EventSource]] = dict,
        files: Mapping[str, Response] = MappingProxyType({}),
        admin: AdminCalls | None = None,
        authorizer: Authorizer | None = None,
        page_limit_seconds: float = LIMIT_SECONDS,
        limits: HttpLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Start to serve /metrics; debug pages are served once the server is entered.

        Args:
            metrics: The metrics.
            pools: Returns the metrics of each pool that are not among ``metrics``; called in
                another thread.
            host: Address to listen on.
            port: Port to listen on; 0 for any free one.
            path: Socket file to listen on instead, in a directory of this process.
            pages: Returns the current debug pages.
            feeds: Returns the current feeds of events by path below /debug/; called in another
                thread.
            files: Responses to GET by path, which contain nothing about this process: they are
                served to every client, so that a browser can load the page that asks for a token.
            admin: The changing calls below /debug/; None for none.
            authorizer: Decides about all other requests but those for ``files``, whatever their
                path; None allows them all.
                The server closes it.
            page_limit_seconds: How long to wait for the event loop to render a debug page.
            limits: Limits on clients.
            tls: Makes it HTTPS.

        Raises:
            PortError: The port cannot be opened.
        """
        self._exposition = Exposition(metrics.registry, pools)
        self._pages = pages
        self._sources = feeds
        self._files = files
        self._limits = limits or HttpLimits()
        self._admin = admin or AdminCalls()
        self._authorizer = authorizer
        self._page_limit_seconds = page_limit_seconds
        self._debug: DebugPages | None = None
        self._feeds: EventFeeds | None = None
        self._metrics_queue: PageQueue[bytes] = PageQueue(_MAX_WAITING_PAGES)
        self._debug_queue: PageQueue[Response] = PageQueue(_MAX_WAITING_PAGES)
        listening = listen_for_metrics(host, port, path)
        self.port: int = listening[0].getsockname()[1] if path is None else 0
        """The port number; 0 for a socket file."""
        self._server = HttpServer(
            "metrics",
            listening,
            self._respond,
            self._limits,
            tls=tls,
            methods=("GET", "HEAD", "POST"),
            closed=None if authorizer is None else authorizer.close,
        )

    def port_statistics(self) -> PortStatistics:
        """Return statistics of the port; thread-safe."""
        return self._server.port_statistics()

    def close_idle(self) -> None:
        """Close connections without a response in progress; thread-safe."""
        self._server.close_idle()

    async def __aenter__(self) -> Self:
        calls = LoopCalls(asyncio.get_running_loop(), limit_seconds=self._page_limit_seconds)
        most = self._limits.max_connections // _VIEWERS_SHARE
        self._feeds = EventFeeds(self._sources, calls, max_viewers=max(1, min(MAX_VIEWERS, most)))
        self._debug = DebugPages(self._pages, calls)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._server.close()

    async def _respond(self, request: Request) -> Response:
        raw, _, query = request.target.partition(b"?")
        path = unquote_to_bytes(raw).decode("utf-8", "replace")
        is_post = request.method == "POST"
        if not is_post and (file := self._files.get(path)) is not None:
            return file
        # A changing call has a token of its own, in the same header.
        is_change = is_post and name_of(path) in self._admin.actions()
        if self._authorizer is not None and not is_change:
            refused = await refusal(self._authorizer, request, path)
            if refused is not None:
                return refused
        if is_post:
            return await self._act(request, name_of(path), query)
        if path == PREFIX or path.startswith(f"{PREFIX}/"):
            return await self._debug_page(path, query)
        if path != _PATH:
            return self._not_found(path)
        form = _form(request, query)
        body = await self._metrics_queue.page(form, lambda: self._render(form))
        headers = (("Content-Encoding", "gzip"),) if form.is_gzip else ()
        return Response(HTTPStatus.OK, form.content_type, body, headers)

    async def _debug_page(self, path: str, query: bytes) -> Response:
        debug, feeds = self._debug, self._feeds
        if debug is None or feeds is None:
            return self._not_found(path)
        feed = feeds.respond(name_of(path))
        if feed is not None:
            return feed
        given = parameters(query)
        return await self._debug_queue.page((path, query), lambda: debug.respond(path, given))

    def _not_found(self, path: str) -> Response:
        if path == "/favicon.ico":  # a browser asks for it beside every page
            return Response(HTTPStatus.OK, "image/x-icon", b"")
        pages = [_PATH, f"{PREFIX}/", *sorted(self._files.keys() & {_LIVE_PAGE})]
        return Response.of_error(HTTPStatus.NOT_FOUND, f"nothing is at {path}", pages=pages)

    async def _act(self, request: Request, name: str, query: bytes) -> Response:
        action = self._admin.actions().get(name)
        if action is None or self._debug is None:
            return Response.of_error(*method_error(request.method))
        refusal = await self._admin.refusal(request)
        if refusal is not None:
            _log.warning(
                "changing call refused",
                call=f"{PREFIX}/{name}",
                client=request.client,
                status=refusal.status.value,
            )
            return refusal
        return await self._debug.act(name, action, parameters(query), request.client)

    async def _render(self, form: _Form) -> bytes:
        compressor = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WINDOW) if form.is_gzip else None
        parts: list[bytes] = []
        began = time.perf_counter()
        for piece in self._exposition.render(openmetrics=form.is_openmetrics, names=form.names):
            parts.append(piece if compressor is None else compressor.compress(piece))
            if time.perf_counter() - began >= _SLICE_SECONDS:
                # A mere turn of this loop would take the GIL back before another thread has woken
                # up.
                await asyncio.sleep(_SLICE_SECONDS)
                began = time.perf_counter()
        if compressor is not None:
            parts.append(compressor.flush())
        return b"".join(parts)


def _form(request: Request, query: bytes) -> _Form:
    try:
        _, content_type = choose_encoder(request.headers.get("accept", ""))
    except TypeError:  # a version that is no number
        _, content_type = choose_encoder("")
    names = parse_qs(query.decode("latin-1")).get("name[]", [])
    return _Form(
        is_openmetrics=content_type.startswith(_OPENMETRICS),
        content_type=content_type,
        is_gzip=gzip_accepted(request.headers.get("accept-encoding", "")),
        names=tuple(sorted(set(names))),
    )

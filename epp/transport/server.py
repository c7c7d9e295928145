"""The transport of our own: gRPC over HTTP/2 on asyncio, plaintext with prior knowledge or TLS.

A connection is one ``asyncio.Protocol``; from the bytes read to the bytes written everything is one
call. One timer per server, once a second, looks after what takes time.
"""

import asyncio
import errno
import os
import ssl
from collections.abc import Mapping

import structlog

from epp.transport.errors import ListenError
from epp.transport.http2 import HeaderCache
from epp.transport.interface import OpenStream
from epp.transport.protocol import ConnectionProtocol
from epp.transport.settings import TransportSettings
from epp.transport.statistics import ServerCounters, TransportStatistics

log = structlog.get_logger()

_TICK_SECONDS = 1.0
_CUT_SECONDS = 1.5
"""For the last bytes, and a tick, which ends what is behind TLS."""
_BACKLOG = 1024
_ACCEPT_TURNS = 3
"""Turns of asyncio's loop until a socket that it has just accepted is a connection to be closed."""


class Http2Server:
    """Serves streaming methods of gRPC."""

    def __init__(
        self,
        methods: Mapping[str, OpenStream],
        *,
        host: str = "0.0.0.0",  # noqa: S104 - a gateway on another host has to reach it
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        settings: TransportSettings | None = None,
    ) -> None:
        """Make a server that does not listen yet.

        Args:
            methods: By path, ``/package.Service/Method``.
            host: Address to listen on.
            port: 0 for any.
            tls: Context that offers ALPN h2; None for plaintext.
            settings: Limits and timeouts.
        """
        self.methods = dict(methods)
        self.settings = settings or TransportSettings()
        self.counters = ServerCounters()
        self.cache = HeaderCache(self.settings.header_cache_bytes)
        self.connections: set[ConnectionProtocol] = set()
        """Those open now."""
        self._host = host
        self._port = port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False

    @property
    def open_streams(self) -> int:
        """Streams open on all connections."""
        return sum(len(each.connection.streams) for each in self.connections)

    def statistics(self) -> TransportStatistics:
        """Return what there is now, and what has happened since the start."""
        http2, grpc, cache = self.counters.http2, self.counters.grpc, self.cache
        senders = [each.connection.sender for each in self.connections]
        return TransportStatistics(
            connections=len(self.connections),
            streams=self.open_streams,
            waiting_bytes=sum(sender.waiting_bytes for sender in senders),
            header_cache_bytes=cache.bytes,
            connections_total=self.counters.connections_opened,
            streams_total=http2.streams_opened,
            header_cache_hits=cache.hits,
            header_cache_misses=cache.misses,
            refused={
                "connection": self.counters.connections_refused,
                "stream": http2.streams_refused,
                "header_list": http2.header_lists_refused,
                "call": grpc.calls_refused,
                "message": grpc.messages_refused,
            },
            ended={
                "idle": self.counters.connections_idle,
                "timeout": self.counters.connections_timed_out,
                **http2.connection_faults,
            },
            held_back={
                "stream_full": http2.streams_filled,
                "read_paused": self.counters.reads_paused,
                "keepalive_ping": self.counters.pings_sent,
            },
            broken_off={
                "client_reset": http2.streams_reset_early,
                "client_fault": http2.stream_faults,
                "deadline": grpc.deadlines_exceeded,
                "unread_answers": grpc.calls_overflowed,
                "handler_failure": grpc.handler_failures,
            },
        )

    async def start(self) -> int:
        loop = asyncio.get_running_loop()
        timeout = self.settings.timeouts.preface_seconds if self._tls is not None else None
        try:
            # In two steps: create_server waits once more after listening, and whoever is cancelled
            # there never hears of the server it has to close.
            self._server = await loop.create_server(
                lambda: ConnectionProtocol(self, loop),
                self._host,
                self._port,
                ssl=self._tls,
                ssl_handshake_timeout=timeout,
                reuse_port=self.settings.reuse_port,
                backlog=_BACKLOG,
                start_serving=False,
            )
            await self._server.start_serving()
        except OSError as error:
            # asyncio puts its own sentence into strerror, with the address once more.
            code = error.errno or 0
            reason = os.strerror(code) if code in errno.errorcode else error.strerror or str(error)
            raise ListenError(f"{self._host}:{self._port}", reason) from error
        self._timer = loop.call_later(_TICK_SECONDS, self._tick)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self, grace_seconds: float) -> None:
        if self._server is None:
            return
        self._is_stopping = True  # for those in the middle of a TLS handshake
        self._server.close()
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
        for each in list(self.connections):
            each.begin_shutdown()
        if not await self._is_empty_within(grace_seconds):
            for each in list(self.connections):
                each.cut()
            if not await self._is_empty_within(_CUT_SECONDS):
                for each in list(self.connections):
                    each.abort()
                await self._is_empty_within(_CUT_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
        self._server = None

    async def _is_empty_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while self.connections:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    # --- what connections tell ------------------------------------------------------------------

    def opened(self, protocol: ConnectionProtocol) -> bool:
        """Take note of a connection; False if there are too many."""
        self.connections.add(protocol)
        self.counters.connections_opened += 1
        return len(self.connections) <= self.settings.max_connections and not self._is_stopping

    def closed(self, protocol: ConnectionProtocol) -> None:
        """A connection is gone."""
        self.connections.discard(protocol)
        self._changed.set()

    def _tick(self) -> None:
        # First of all: no fault may end the time of all connections.
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        for each in list(self.connections):
            try:
                each.tick()
            except Exception:
                log.exception("connection could not be looked after")

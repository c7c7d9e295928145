"""The transport of our own: gRPC over HTTP/2 on asyncio, plaintext with prior knowledge or TLS.

A connection is one ``asyncio.Protocol``; from the bytes read to the bytes written everything is one
call. One timer per server, once a second, looks after what takes time.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from epp.transport.budget import Budget, ByteBudget
from epp.transport.errors import ListenError
from epp.transport.http2 import HeaderCache
from epp.transport.interface import OpenStream
from epp.transport.protocol import ConnectionProtocol
from epp.transport.replaceable_context import ReplaceableContext
from epp.transport.settings import TransportSettings
from epp.transport.sockets import EVERY_ADDRESS, SocketFile, bind_to_every_address
from epp.transport.statistics import ServerCounters, TransportStatistics

log = structlog.get_logger()

_TICK_SECONDS = 1.0
_CUT_SECONDS = 1.5
"""For the last bytes, and a tick, which ends what is behind TLS."""
_BACKLOG = 1024
_MAX_FAULTS = 100
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
        path: Path | None = None,
        tls: ssl.SSLContext | None = None,
        settings: TransportSettings | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Make a server that does not listen yet.

        Args:
            methods: By path, ``/package.Service/Method``.
            host: Address to listen on.
            port: 0 for any.
            path: Of a socket file to listen on instead.
            tls: Context that offers ALPN h2; None for plaintext.
            settings: Limits and timeouts.
            budget: What the bytes kept for all connections are a part of; None for nothing else.
        """
        self.methods = dict(methods)
        self.settings = settings or TransportSettings()
        self.counters = ServerCounters()
        self.cache = HeaderCache(self.settings.header_cache_bytes)
        self.budget = ByteBudget(self.settings.max_total_buffered_bytes, budget)
        """For the bytes that are kept for all connections."""
        self.connections: set[ConnectionProtocol] = set()
        """Those open now."""
        self._host = host
        self._port = port
        self._file = None if path is None else SocketFile(path)
        self._tls = None if tls is None else ReplaceableContext(tls, self._handshake_failed)
        self._handshake_faults: set[str] = set()
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
            buffered_bytes=self.budget.used_bytes,
            header_cache_bytes=cache.bytes,
            connections_total=self.counters.connections_opened,
            streams_total=http2.streams_opened,
            header_cache_hits=cache.hits,
            header_cache_misses=cache.misses,
            refused={
                "connection": self.counters.connections_refused,
                "handshake": self.counters.handshakes_failed,
                "stream": http2.streams_refused,
                "header_list": http2.header_lists_refused,
                "call": grpc.calls_refused,
                "message": grpc.messages_refused,
                "sent_message": grpc.answers_refused,
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

    def use_context(self, context: ssl.SSLContext) -> None:
        """Make the connections to come with another TLS context; callable from any thread."""
        if self._tls is None:
            raise ValueError("this server speaks plaintext")
        self._tls.replace(context)
        self._handshake_faults.clear()

    async def start(self) -> int:
        loop = asyncio.get_running_loop()
        file = self._file
        bound = None if file is None else await asyncio.to_thread(file.bind)
        try:
            # In two steps: create_server waits once more after listening, and whoever is cancelled
            # there never hears of the server it has to close.
            self._server = await self._listen(loop, bound)
            await self._server.start_serving()
        except OSError as error:
            # asyncio puts its own sentence into strerror, with the address once more.
            code = error.errno or 0
            reason = os.strerror(code) if code in errno.errorcode else error.strerror or str(error)
            address = f"{self._host}:{self._port}" if file is None else file.address
            raise ListenError(address, reason) from error
        self._timer = loop.call_later(_TICK_SECONDS, self._tick)
        if file is not None:
            return 0
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _listen(
        self, loop: asyncio.AbstractEventLoop, bound: socket.socket | None
    ) -> asyncio.Server:
        def make() -> ConnectionProtocol:
            return ConnectionProtocol(self, loop)

        options: dict[str, Any] = {
            "ssl": self._tls,
            "ssl_handshake_timeout": self.settings.timeouts.preface_seconds if self._tls else None,
            "backlog": _BACKLOG,
            "start_serving": False,
        }
        if self._file is not None:
            return await loop.create_unix_server(make, sock=bound, **options)
        reuse_port = self.settings.reuse_port
        if self._host == EVERY_ADDRESS:
            bound = bind_to_every_address(self._port, reuse_port=reuse_port)
            return await loop.create_server(make, sock=bound, **options)
        return await loop.create_server(
            make, self._host, self._port, reuse_port=reuse_port, **options
        )

    async def stop(self, grace_seconds: float) -> None:
        if self._server is None:
            return
        self._is_stopping = True  # for those in the middle of a TLS handshake
        self._server.close()
        if self._file is not None:
            await asyncio.to_thread(self._file.remove)
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

    def _handshake_failed(self, error: ssl.SSLError) -> None:
        self.counters.handshakes_failed += 1
        reason = error.reason or str(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = f"{reason}: {error.verify_message}"
        # Once each: whoever scans ports shall not fill the log.
        if reason not in self._handshake_faults and len(self._handshake_faults) < _MAX_FAULTS:
            self._handshake_faults.add(reason)
            log.warning("TLS handshake failed", reason=reason, note="the next are only counted")

    def _tick(self) -> None:
        # First of all: no fault may end the time of all connections.
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        for each in list(self.connections):
            try:
                each.tick()
            except Exception:
                log.exception("connection could not be looked after")

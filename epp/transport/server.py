"""The transport of our own: gRPC over HTTP/2 on asyncio, plaintext with prior knowledge or TLS.

A connection is one ``asyncio.Protocol``; from the bytes read to the bytes written everything is one
call. One timer per server, once a second, looks after what takes time.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from epp.sockets import BACKLOG, Acceptor, PortFigures, listen_on
from epp.transport.backlog import Backlog
from epp.transport.budget import Budget, ByteBudget
from epp.transport.errors import ListenError
from epp.transport.eviction import Evictor
from epp.transport.http2 import HeaderCache
from epp.transport.interface import OpenStream
from epp.transport.protocol import ConnectionProtocol
from epp.transport.replaceable_context import ReplaceableContext
from epp.transport.settings import TransportSettings
from epp.transport.sockets import SocketFile
from epp.transport.statistics import ServerCounters, TransportStatistics

log = structlog.get_logger()

_TICK_SECONDS = 1.0
_CUT_SECONDS = 1.5
"""For the last bytes, and a tick, which ends what is behind TLS."""
_MAX_FAULTS = 100


def _exhausted() -> None:
    """Close nothing."""


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
        name: str = "ext_proc",
        evicts_streams: bool = False,
        exhausted: Callable[[], None] = _exhausted,
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
            name: Of the port, for the log.
            evicts_streams: When the port is full and every connection has a stream, the oldest
                connection is closed for the newcomer. Otherwise the newcomer is.
            exhausted: Called when the process has no descriptor for a connection; may close others.
        """
        self.methods = dict(methods)
        self.settings = settings or TransportSettings()
        self.counters = ServerCounters()
        self.cache = HeaderCache(self.settings.header_cache_bytes)
        self.budget = ByteBudget(self.settings.max_total_buffered_bytes, budget)
        """For the bytes that are kept for all connections."""
        self.backlog = Backlog()
        """Connections that have read more than they could handle in a turn of the loop."""
        self.connections: set[ConnectionProtocol] = set()
        """Those open now."""
        self._host = host
        self._port = port
        self._file = None if path is None else SocketFile(path)
        self._tls = None if tls is None else ReplaceableContext(tls, self._handshake_failed)
        self._handshake_faults: set[str] = set()
        self._acceptor = Acceptor(
            name,
            lambda: ConnectionProtocol(self, asyncio.get_running_loop()),
            admit=self._admit,
            tls=self._tls,
            handshake_seconds=self.settings.timeouts.preface_seconds,
            exhausted=exhausted,
        )
        self._evictor = Evictor(
            self.connections,
            self._acceptor,
            limit=self.settings.max_connections,
            evicts_streams=evicts_streams,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
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
                "evicted": self._evictor.evicted,
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

    def figures(self) -> PortFigures:
        """Return what there is to say of the port."""
        return PortFigures(
            connections=len(self.connections) + len(self._acceptor.pending),
            limit=self.settings.max_connections,
            evicted=self._evictor.evicted,
            refused=self.counters.connections_refused,
            timed_out=self.counters.connections_timed_out,
            accept_pauses=self._acceptor.pauses,
        )

    def use_context(self, context: ssl.SSLContext) -> None:
        """Make the connections to come with another TLS context; callable from any thread."""
        if self._tls is None:
            raise ValueError("this server speaks plaintext")
        self._tls.replace(context)
        self._handshake_faults.clear()

    def close_idle(self) -> None:
        """Close idle connections, as descriptors have run out; callable from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._evictor.free)

    async def start(self) -> int:
        loop = self._loop = asyncio.get_running_loop()
        file = self._file
        try:
            if file is not None:
                listening = [await asyncio.to_thread(file.bind)]
                listening[0].listen(BACKLOG)
            else:
                addresses = await loop.getaddrinfo(
                    self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
                # Nothing is awaited from here on: whoever is cancelled leaves no socket behind.
                listening = listen_on(addresses, reuse_port=self.settings.reuse_port)
            self._acceptor.start(listening)
        except OSError as error:
            # A name that is not known has a number of its own, and no text of the system's.
            code = error.errno or 0
            reason = os.strerror(code) if code in errno.errorcode else error.strerror or str(error)
            address = f"{self._host}:{self._port}" if file is None else file.address
            raise ListenError(address, reason) from error
        self._timer = loop.call_later(_TICK_SECONDS, self._tick)
        if file is not None:
            return 0
        port: int = listening[0].getsockname()[1]
        return port

    async def stop(self, grace_seconds: float) -> None:
        if self._timer is None:
            return
        self._is_stopping = True
        self._acceptor.close()
        if self._file is not None:
            await asyncio.to_thread(self._file.remove)
        await self._acceptor.settled()
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
            self._timer = None

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
        """Take note of a connection; False if the server is stopping."""
        self.connections.add(protocol)
        self._evictor.opened(protocol)
        self.counters.connections_opened += 1
        return not self._is_stopping

    def established(self, protocol: ConnectionProtocol) -> None:
        """A client's preface has come."""
        self._evictor.established(protocol)

    def closed(self, protocol: ConnectionProtocol) -> None:
        """A connection is gone."""
        self.connections.discard(protocol)
        self._evictor.closed(protocol)
        self._changed.set()

    def _admit(self) -> bool:
        is_admitted = self._evictor.admit()
        self.counters.connections_refused += not is_admitted
        return is_admitted

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
        self._evictor.tick()

"""This project's transport: gRPC over HTTP/2 on asyncio, with TLS or plaintext (prior knowledge).

A connection is one ``asyncio.Protocol``: a single call leads from the bytes read to the bytes
written. One timer per server applies the time limits of all connections once a second.
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

from epp.sockets import BACKLOG, Acceptor, PortStatistics, listen_on
from epp.transport.budget import Budget, ByteBudget
from epp.transport.errors import ListenError
from epp.transport.eviction import Evictor
from epp.transport.http2 import HeaderCache
from epp.transport.interface import OpenStream
from epp.transport.protocol import ConnectionProtocol
from epp.transport.read_scheduling import ReadBacklog
from epp.transport.replaceable_context import ReplaceableContext
from epp.transport.settings import TransportSettings
from epp.transport.socket_file import SocketFile
from epp.transport.statistics import ServerCounters, TransportStatistics

log = structlog.get_logger(__name__)

_TICK_SECONDS = 1.0
_CUT_SECONDS = 1.5
"""Time to send the last bytes, including a tick, which closes TLS connections."""
_MAX_FAULTS = 100


def _exhausted() -> None:
    """Do nothing."""


class Http2Server:
    """Serves bidirectional streaming methods of gRPC."""

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
        """Create the server; :meth:`start` makes it listen.

        Args:
            methods: Handlers by method path, ``/package.Service/Method``.
            host: Address to listen on.
            port: Port to listen on; 0 for any free one.
            path: Socket file to listen on instead.
            tls: Context that offers ALPN h2; None for plaintext.
            settings: Limits and timeouts.
            budget: Larger memory budget that the buffered bytes count towards, too.
            name: Name of the port, for the log.
            evicts_streams: If the port is full and every connection has a stream, close the oldest
                connection to admit a new one; otherwise refuse the new one.
            exhausted: Called when the process runs out of descriptors; may close connections.
        """
        self.methods = dict(methods)
        self.settings = settings or TransportSettings()
        self.counters = ServerCounters()
        self.cache = HeaderCache(self.settings.header_cache_bytes)
        self.budget = ByteBudget(self.settings.max_total_buffered_bytes, budget)
        """Budget for the bytes buffered for all connections."""
        self.backlog = ReadBacklog()
        self.connections: set[ConnectionProtocol] = set()
        """The open connections."""
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
        """Number of open streams on all connections."""
        return sum(len(each.connection.streams) for each in self.connections)

    def statistics(self) -> TransportStatistics:
        """Return the current state, and counts since the start."""
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
                "sent_message": grpc.responses_refused,
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
                "unread_responses": grpc.calls_overflowed,
                "handler_failure": grpc.handler_failures,
            },
        )

    def port_statistics(self) -> PortStatistics:
        """Return statistics of the port; thread-safe."""
        return PortStatistics(
            connections=len(self.connections) + len(self._acceptor.pending),
            limit=self.settings.max_connections,
            evicted=self._evictor.evicted,
            refused=self.counters.connections_refused,
            timed_out=self.counters.connections_timed_out,
            accept_pauses=self._acceptor.pauses,
        )

    def use_context(self, context: ssl.SSLContext) -> None:
        """Use another TLS context for new connections; thread-safe."""
        if self._tls is None:
            raise ValueError("this server speaks plaintext")
        self._tls.replace(context)
        self._handshake_faults.clear()

    def close_idle(self) -> None:
        """Close idle connections to free descriptors; thread-safe."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._evictor.free_descriptors)

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
                # No await after this: a cancelled start must not leave a socket open.
                listening = listen_on(addresses, reuse_port=self.settings.reuse_port)
            self._acceptor.start(listening)
        except OSError as error:
            # Errors of getaddrinfo have their own numbers, unknown to os.strerror.
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
                each.end_streams()
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

    # --- events of connections ------------------------------------------------------------------

    def opened(self, protocol: ConnectionProtocol) -> bool:
        """Add a connection; return False if the server is stopping."""
        self.connections.add(protocol)
        self._evictor.opened(protocol)
        self.counters.connections_opened += 1
        return not self._is_stopping

    def established(self, protocol: ConnectionProtocol) -> None:
        """Mark a connection as established: the client's preface has arrived."""
        self._evictor.established(protocol)

    def closed(self, protocol: ConnectionProtocol) -> None:
        """Remove a connection."""
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
        # Once per reason: a port scan must not fill the log.
        if reason not in self._handshake_faults and len(self._handshake_faults) < _MAX_FAULTS:
            self._handshake_faults.add(reason)
            log.warning(
                "TLS handshake failed",
                reason=reason,
                note="further ones are only counted",
            )

    def _tick(self) -> None:
        # Before anything can fail: an exception must not stop the timer of all connections.
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        for each in list(self.connections):
            try:
                each.tick()
            except Exception:
                log.exception("time limits of a connection could not be applied")
        self._evictor.tick()

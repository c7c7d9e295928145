"""One connection on asyncio: moves bytes between the socket and the session, and closes cleanly.

Closing loses no written bytes. If a socket is closed while its peer still sends, the kernel sends a
reset, and the peer's kernel drops everything unread. So the server closes its write side first, and
drops what arrives until the peer has closed its side. TLS on asyncio cannot close one side; there
the response to a last PING shows that the peer has read everything.
"""

import asyncio
import ssl
from typing import Final, Protocol, cast

import structlog

from epp.transport.budget import ByteBudget
from epp.transport.connection_timer import SHORT_PATIENCE_TICKS, ConnectionTimer, TimerAction
from epp.transport.grpc import GrpcSession
from epp.transport.http2 import HeaderCache, Http2Connection
from epp.transport.interface import OpenStream
from epp.transport.read_scheduling import PauseReason, ReadBacklog, ReadPauses
from epp.transport.settings import TransportSettings
from epp.transport.statistics import ServerCounters

log = structlog.get_logger(__name__)

_KEEPALIVE_PING = b"liveness"
_FAREWELL_PING = b"farewell"
_LARGE_READ_BYTES: Final = 128 << 10


class ConnectionOwner(Protocol):
    """What a connection needs from its server."""

    settings: TransportSettings
    counters: ServerCounters
    cache: HeaderCache
    methods: dict[str, OpenStream]
    budget: ByteBudget
    backlog: ReadBacklog

    def opened(self, protocol: "ConnectionProtocol") -> bool:
        """Add a connection; return False if the server is stopping."""

    def established(self, protocol: "ConnectionProtocol") -> None:
        """Mark a connection as established: the client's preface has arrived."""

    def closed(self, protocol: "ConnectionProtocol") -> None:
        """Remove a connection."""


class ConnectionProtocol(asyncio.Protocol):
    """Serves one connection."""

    _transport: asyncio.Transport
    _pauses: ReadPauses

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._backlog = owner.backlog
        self._loop = loop
        self._limits = owner.settings.connection
        self.connection = Http2Connection(
            self._limits,
            cache=owner.cache,
            counters=owner.counters.http2,
            budget=owner.budget,
        )
        self._session = GrpcSession(
            self.connection,
            owner.methods,
            write=self._write,
            call_later=loop.call_later,
            limits=owner.settings.messages,
            counters=owner.counters.grpc,
            clock=owner.backlog.clock,
        )
        self.virtual_seconds = 0.0
        self._timer = ConnectionTimer(owner.settings.timeouts)
        self.accepted_at = loop.time()
        self._is_write_paused = False
        self._unread_output_bytes = 0
        self._pings_sent = 0
        self._is_shutting_down = False
        self._is_farewell_sent = False
        self._is_closing = False
        """Nothing more is written, and received bytes are dropped."""
        self._is_unfinished = True
        """The client's preface has not arrived."""

    # --- callbacks of asyncio -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        self._pauses = ReadPauses(self._transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if not self._owner.opened(self) or (
            tls is not None and tls.selected_alpn_protocol() != "h2"
        ):
            self._owner.counters.connections_refused += 1
            self._is_closing = True
            self._transport.abort()
            return
        self._timer.connected(self._loop.time() - self.accepted_at)
        self._transport.set_write_buffer_limits(high=self._limits.write_burst_bytes)
        self._session.flush()

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        size = len(data)
        self._timer.read_bytes += size
        session, backlog = self._session, self._backlog
        if not backlog.waiting:
            if session.receive_message(data):
                if not self.connection.streams:
                    self._close_if_finished()
                return
            session.receive(data)
        elif backlog.precedes(self):
            session.receive(data, later=True)
        else:
            with backlog.charged(self):
                session.receive(data)
        if self._is_unfinished and self.connection.is_established:
            self._is_unfinished = False
            self._owner.established(self)
        if session.is_behind:
            if PauseReason.BACKLOG not in self._pauses.reasons:
                self._pauses.begin(PauseReason.BACKLOG)
                backlog.add(self, self._loop)
            return
        if size >= _LARGE_READ_BYTES:
            self._let_others_read()
        if not self.connection.streams:
            self._close_if_finished()

    def _let_others_read(self) -> None:
        """Pause reading until the event loop's next iteration.

        libuv reads a socket that fills its buffer up to 32 times before it polls the others: with
        8 MB of small requests in it, the other connections waited for 5 s.
        """
        self._pauses.begin(PauseReason.TURN)
        self._loop.call_soon(self._pauses.end, PauseReason.TURN)

    def handle_more(self) -> bool:
        """Handle more of the bytes read; return whether some are left."""
        self._session.handle_more()
        if self._session.is_behind:
            return True
        self._pauses.end(PauseReason.BACKLOG)
        if not self.connection.streams:
            self._close_if_finished()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._owner.closed(self)
        self._session.lost()
        self.connection.close()

    def eof_received(self) -> None:
        # The peer may still read: bytes already written are sent, within a time limit. Nothing more
        # arrives, so closing the socket cannot cause a reset.
        self._session.lost()
        self._close()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._unread_output_bytes = 0
        self._timer.drained()
        self._pauses.end(PauseReason.OUTPUT)
        self.connection.resume_writing()
        self._session.flush()

    def _write(self, data: bytes) -> None:
        if self._is_closing:
            return
        was_paused = self._is_write_paused
        self._transport.write(data)
        if was_paused:
            # Replies to PING, SETTINGS and the like are still written. If they pile up, because the
            # peer does not read them, the peer is not read either.
            self._unread_output_bytes += len(data)
            is_too_much = self._unread_output_bytes > self._limits.max_control_output_bytes
            if is_too_much and PauseReason.OUTPUT not in self._pauses.reasons:
                self._owner.counters.reads_paused += 1
                self._pauses.begin(PauseReason.OUTPUT)

    # --- calls of the server --------------------------------------------------------------------

    def begin_shutdown(self) -> None:
        """Accept no new streams, and close when the open ones have ended."""
        if self._is_closing:
            return
        if not self.connection.is_established:
            self._close()  # there is no stream to wait for
            return
        if not self._is_shutting_down:
            self._is_shutting_down = True
            self._pings_sent += 1  # sent with the GOAWAY
            self._timer.shutting_down()
            self.connection.begin_shutdown()
            self._session.flush()
            self._close_if_finished()

    def end_streams(self) -> None:
        """End all open streams, notifying their handlers, and write nothing more."""
        self.connection.limit_shutdown()
        self._session.flush()
        self._session.lost()
        self._end_writing()

    @property
    def is_ending(self) -> bool:
        """Whether nothing more is written, and received bytes are dropped."""
        return self._is_closing

    @property
    def unused_seconds(self) -> int:
        """Seconds without streams."""
        return self._timer.unused_seconds

    def abort(self) -> None:
        """Close without sending the bytes that wait to be written."""
        self._transport.abort()

    def tick(self) -> None:
        """Apply time limits; called once a second."""
        self.connection.replenish_flood_budgets()
        self._close_if_finished()  # a handler may have ended the last stream
        action = self._timer.tick(
            self.connection,
            self._transport.get_write_buffer_size(),
            is_read_held=PauseReason.OUTPUT in self._pauses.reasons,
            is_write_paused=self._is_write_paused,
        )
        if action is not TimerAction.NOTHING:
            self._do(action)

    def _do(self, action: TimerAction) -> None:
        counters = self._owner.counters
        if action is TimerAction.PING:
            counters.pings_sent += 1
            self._send_ping(_KEEPALIVE_PING)
        elif action is TimerAction.SHUTDOWN:
            counters.connections_idle += 1
            self.begin_shutdown()
        elif action is TimerAction.LIMIT:
            self.connection.limit_shutdown()
            self._session.flush()
            self._close_if_finished()
        elif action is TimerAction.CLOSE:
            if self._transport.can_write_eof() or self._transport.is_closing():
                self._transport.abort()
            else:
                self._close()
        elif action.is_timeout:
            counters.connections_timed_out += 1
            peer = self._transport.get_extra_info("peername")
            log.info("connection timed out", reason=action.value, peer=peer)
            self._transport.abort()

    def _send_ping(self, payload: bytes) -> None:
        self._pings_sent += 1
        self.connection.send_ping(payload)
        self._session.flush()

    # --- closing --------------------------------------------------------------------------------

    def _close_if_finished(self) -> None:
        connection = self.connection
        if not connection.is_finished or self._is_closing:
            return
        if connection.is_closed:
            self._end_writing()
        elif self._is_farewell_sent:
            if connection.pings_acknowledged >= self._pings_sent:
                self._close()
        else:
            self._is_farewell_sent = True
            connection.limit_shutdown()  # sends GOAWAY, if only the peer has sent one
            self._timer.ending()
            if self._transport.can_write_eof():
                self._session.flush()
                self._close_write_side()
            else:
                self._send_ping(_FAREWELL_PING)

    def _end_writing(self) -> None:
        """Close, with a short time limit for bytes already written."""
        self._timer.ending(SHORT_PATIENCE_TICKS if self._transport.can_write_eof() else 1)
        self._close_write_side()

    def _close_write_side(self) -> None:
        self._is_closing = True
        self._pauses.end(PauseReason.OUTPUT)
        if self._transport.can_write_eof() and not self._transport.is_closing():
            try:
                self._transport.write_eof()
            except OSError:  # the peer has reset the connection, but that was not read yet
                self._transport.abort()

    def _close(self) -> None:
        """Close both sides, after sending the bytes already written."""
        self._is_closing = True
        self._timer.ending(SHORT_PATIENCE_TICKS)
        if not self._transport.is_closing():  # asyncio's TLS allows only one close()
            self._transport.close()

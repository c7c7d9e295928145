"""One connection on asyncio: moves bytes between the socket and the session, and ends in order.

An end loses nothing that was written. A socket closed while its peer still sends answers with a
reset, at which the peer's kernel drops what it has not read: so our side ends first, and what comes
is dropped until the peer has ended its own. TLS on asyncio cannot end one side; there the answer to
a last PING says that the peer has read everything.
"""

import asyncio
import ssl
from typing import Protocol, cast

import structlog

from epp.transport.backlog import Backlog
from epp.transport.budget import ByteBudget
from epp.transport.grpc import GrpcSession
from epp.transport.http2 import Connection, HeaderCache
from epp.transport.interface import OpenStream
from epp.transport.pauses import Pause, ReadPauses
from epp.transport.settings import TransportSettings
from epp.transport.statistics import ServerCounters
from epp.transport.timekeeping import SHORT_PATIENCE_TICKS, Due, Timekeeper

log = structlog.get_logger()

_KEEPALIVE_PING = b"liveness"
_FAREWELL_PING = b"farewell"
_LARGE_READ_BYTES = 128 << 10


class ConnectionOwner(Protocol):
    """The server, as its connections see it."""

    settings: TransportSettings
    counters: ServerCounters
    cache: HeaderCache
    methods: dict[str, OpenStream]
    budget: ByteBudget
    backlog: Backlog

    def opened(self, protocol: "ConnectionProtocol") -> bool:
        """Take note of a connection; False if the server is stopping."""

    def established(self, protocol: "ConnectionProtocol") -> None:
        """A client's preface has come."""

    def closed(self, protocol: "ConnectionProtocol") -> None:
        """A connection is gone."""


class ConnectionProtocol(asyncio.Protocol):
    """Serves one connection; ``tick`` is called once a second."""

    _transport: asyncio.Transport
    _pauses: ReadPauses

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._limits = owner.settings.connection
        self.connection = Connection(
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
        self._time = Timekeeper(owner.settings.timeouts)
        self.accepted_at = loop.time()
        self._is_write_paused = False
        self._unread_output_bytes = 0
        self._pings_sent = 0
        self._is_shutting_down = False
        self._is_farewell_sent = False
        self._is_closing = False
        """Nothing more is written, and what comes is dropped."""
        self._is_unfinished = True
        """The client's preface has not come."""

    # --- asyncio's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
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
        self._time.connected(self._loop.time() - self.accepted_at)
        self._transport.set_write_buffer_limits(high=self._limits.write_burst_bytes)
        self._session.flush()

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        size = len(data)
        self._time.read_bytes += size
        session, backlog = self._session, self._owner.backlog
        session.receive(data, later=bool(backlog))
        if self._is_unfinished and self.connection.is_established:
            self._is_unfinished = False
            self._owner.established(self)
        if session.is_behind:
            if Pause.BACKLOG not in self._pauses.reasons:
                self._pauses.begin(Pause.BACKLOG)
                backlog.add(self._go_on, self._loop)
            return
        if size >= _LARGE_READ_BYTES:
            self._let_others_read()
        if not self.connection.streams:
            self._close_if_finished()

    def _let_others_read(self) -> None:
        """Read on in the loop's next turn.

        libuv reads a socket that fills its buffer up to 32 times before it looks at another one:
        with 8 MB of small requests in it, the other connections waited for 5 s.
        """
        self._pauses.begin(Pause.TURN)
        self._loop.call_soon(self._pauses.end, Pause.TURN)

    def _go_on(self) -> bool:
        """Handle more of what was read; return whether there is still more."""
        self._session.go_on()
        if self._session.is_behind:
            return True
        self._pauses.end(Pause.BACKLOG)
        if not self.connection.streams:
            self._close_if_finished()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._owner.closed(self)
        self._session.lost()
        self.connection.close()

    def eof_received(self) -> None:
        # The other half may still be read, by a peer that is there or by none: what is written goes
        # out, in bounded time, and no more is made. Nothing more comes, so no reset can follow.
        self._session.lost()
        self._hang_up()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self.connection.hold()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._unread_output_bytes = 0
        self._time.drained()
        self._pauses.end(Pause.OUTPUT)
        self.connection.resume()
        self._session.flush()

    def _write(self, data: bytes) -> None:
        if self._is_closing:
            return
        was_paused = self._is_write_paused
        self._transport.write(data)
        if was_paused:
            # Answers to PING, SETTINGS and the like go on; a peer that has us pile them up is not
            # read any more until it reads.
            self._unread_output_bytes += len(data)
            is_too_much = self._unread_output_bytes > self._limits.max_control_output_bytes
            if is_too_much and Pause.OUTPUT not in self._pauses.reasons:
                self._owner.counters.reads_paused += 1
                self._pauses.begin(Pause.OUTPUT)

    # --- the server's side ----------------------------------------------------------------------

    def begin_shutdown(self) -> None:
        """Let the open streams end, take no new ones, and close."""
        if self._is_closing:
            return
        if not self.connection.is_established:
            self._hang_up()  # nobody waits for anything
            return
        if not self._is_shutting_down:
            self._is_shutting_down = True
            self._pings_sent += 1  # it comes with the announcement
            self._time.shutting_down()
            self.connection.begin_shutdown()
            self._session.flush()
            self._close_if_finished()

    def cut(self) -> None:
        """Write no more; the handlers of open streams are told that they are gone."""
        self.connection.limit_shutdown()
        self._session.flush()
        self._session.lost()
        self._end_writing()

    @property
    def is_ending(self) -> bool:
        """Nothing more is written, and what comes is dropped."""
        return self._is_closing

    @property
    def unused_seconds(self) -> int:
        """For how long it has had no stream."""
        return self._time.unused_seconds

    def abort(self) -> None:
        """Close without waiting for what is still to be written."""
        self._transport.abort()

    def tick(self) -> None:
        """Look after everything that takes time."""
        self.connection.forgive()
        self._close_if_finished()  # by a handler that has answered since
        due = self._time.tick(
            self.connection,
            self._transport.get_write_buffer_size(),
            is_read_held=Pause.OUTPUT in self._pauses.reasons,
            is_write_paused=self._is_write_paused,
        )
        if due is not Due.NOTHING:
            self._do(due)

    def _do(self, due: Due) -> None:
        counters = self._owner.counters
        if due is Due.PING:
            counters.pings_sent += 1
            self._send_ping(_KEEPALIVE_PING)
        elif due is Due.SHUTDOWN:
            counters.connections_idle += 1
            self.begin_shutdown()
        elif due is Due.LIMIT:
            self.connection.limit_shutdown()
            self._session.flush()
            self._close_if_finished()
        elif due is Due.HANG_UP:
            if self._transport.can_write_eof() or self._transport.is_closing():
                self._transport.abort()
            else:
                self._hang_up()
        elif due.is_timeout:
            counters.connections_timed_out += 1
            peer = self._transport.get_extra_info("peername")
            log.info("connection timed out", reason=due.value, peer=peer)
            self._transport.abort()

    def _send_ping(self, payload: bytes) -> None:
        self._pings_sent += 1
        self.connection.send_ping(payload)
        self._session.flush()

    # --- the end --------------------------------------------------------------------------------

    def _close_if_finished(self) -> None:
        connection = self.connection
        if not connection.is_finished or self._is_closing:
            return
        if connection.is_closed:
            self._end_writing()
        elif self._is_farewell_sent:
            if connection.pings_acknowledged >= self._pings_sent:
                self._hang_up()
        else:
            self._is_farewell_sent = True
            connection.limit_shutdown()  # our GOAWAY, if it is the peer that leaves
            self._time.ending()
            if self._transport.can_write_eof():
                self._session.flush()
                self._write_no_more()
            else:
                self._send_ping(_FAREWELL_PING)

    def _end_writing(self) -> None:
        """End without much ado: what is written may still go out."""
        self._time.ending(SHORT_PATIENCE_TICKS if self._transport.can_write_eof() else 1)
        self._write_no_more()

    def _write_no_more(self) -> None:
        self._is_closing = True
        self._pauses.end(Pause.OUTPUT)
        if self._transport.can_write_eof() and not self._transport.is_closing():
            try:
                self._transport.write_eof()
            except OSError:  # the peer has reset the connection, and we have not read that yet
                self._transport.abort()

    def _hang_up(self) -> None:
        """Close both sides, after what is written."""
        self._is_closing = True
        self._time.ending(SHORT_PATIENCE_TICKS)
        if not self._transport.is_closing():  # asyncio's TLS takes no second close()
            self._transport.close()

"""One connection on asyncio: moves bytes between the socket and the session, and keeps time."""

import asyncio
import ssl
from typing import Protocol, cast

import structlog

from epp.transport.grpc import Session
from epp.transport.http2 import Connection, HeaderCache
from epp.transport.interface import OpenStream
from epp.transport.settings import TransportSettings
from epp.transport.statistics import ServerCounters

log = structlog.get_logger()

_KEEPALIVE_PING = b"liveness"
_LARGE_READ_BYTES = 128 << 10
_PATIENCE_TICKS = 3
"""For the answer to a shutdown's PING, and for the last bytes of a connection that is closing."""


class ConnectionOwner(Protocol):
    """The server, as its connections see it."""

    settings: TransportSettings
    counters: ServerCounters
    cache: HeaderCache
    methods: dict[str, OpenStream]

    def opened(self, protocol: "ConnectionProtocol") -> bool:
        """Take note of a connection; False if there are too many."""

    def closed(self, protocol: "ConnectionProtocol") -> None:
        """A connection is gone."""


class ConnectionProtocol(asyncio.Protocol):
    """Serves one connection; ``tick`` is called once a second."""

    _transport: asyncio.Transport

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._limits = owner.settings.connection
        self._timeouts = owner.settings.timeouts
        self.connection = Connection(self._limits, cache=owner.cache, counters=owner.counters.http2)
        self._session = Session(
            self.connection,
            owner.methods,
            write=self._write,
            call_later=loop.call_later,
            limits=owner.settings.messages,
            counters=owner.counters.grpc,
        )
        self._is_write_paused = False
        self._is_read_paused = False
        self._unread_output_bytes = 0
        self._is_closing = False
        self._ping_is_out = False
        # Seconds, as counted by ticks:
        self._silent_ticks = 0
        self._unused_ticks = 0
        self._last_seen_stream_id = 0
        self._stalled_ticks = 0
        self._ending_ticks = 0
        self._is_ending = False
        self._unwritten_bytes = 0

    # --- asyncio's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if not self._owner.opened(self) or (
            tls is not None and tls.selected_alpn_protocol() != "h2"
        ):
            self._owner.counters.connections_refused += 1
            self._is_closing = True
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._limits.write_burst_bytes)
        self._session.flush()

    def data_received(self, data: bytes) -> None:
        self._silent_ticks = 0
        self._session.receive(data)
        if len(data) >= _LARGE_READ_BYTES:
            self._let_others_read()
        if not self.connection.streams:
            self._close_if_finished()

    def _let_others_read(self) -> None:
        """Read on in the loop's next turn.

        libuv reads a socket that fills its buffer up to 32 times before it looks at another one:
        with 8 MB of small requests in it, the other connections waited for 5 s.
        """
        if not self._is_read_paused and not self._transport.is_closing():
            self._is_read_paused = True
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._is_read_paused and not self._transport.is_closing():
            self._is_read_paused = False
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._owner.closed(self)
        self._session.lost()

    def eof_received(self) -> None:
        # The other half may still be read, by a peer that is there or by none: what is written goes
        # out, in bounded time, and no more is made.
        self._session.lost()
        self._close()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self.connection.hold()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._unread_output_bytes = 0
        self._silent_ticks = self._stalled_ticks = self._unwritten_bytes = 0
        if self._is_read_paused and not self._is_closing:
            self._is_read_paused = False
            self._transport.resume_reading()
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
            if (
                self._unread_output_bytes > self._limits.max_control_output_bytes
                and not self._is_read_paused
            ):
                self._is_read_paused = True
                self._transport.pause_reading()

    # --- the server's side ----------------------------------------------------------------------

    def begin_shutdown(self) -> None:
        """Let the open streams end, take no new ones, and close."""
        self._is_ending = True
        if not self.connection.is_established:
            self._close()
            return
        self.connection.begin_shutdown()
        self._session.flush()
        self._close_if_finished()

    def cut(self) -> None:
        """Close now; the handlers of open streams are told that they are gone."""
        self.connection.limit_shutdown()
        self._session.flush()
        self._session.lost()
        self._close()

    def abort(self) -> None:
        """Close without waiting for what is still to be written."""
        self._transport.abort()

    def tick(self) -> None:
        """Look after everything that takes time."""
        connection, timeouts = self.connection, self._timeouts
        connection.forgive()
        self._silent_ticks += 1
        if connection.streams or connection.highest_stream_id != self._last_seen_stream_id:
            self._last_seen_stream_id = connection.highest_stream_id
            self._unused_ticks = 0
        else:
            self._unused_ticks += 1
        if self._is_closing or self._is_ending:
            self._tick_of_the_end()
        self._close_if_finished()
        if self._is_closing:
            return
        if not connection.is_established:
            if self._unused_ticks >= timeouts.preface_seconds:
                self._time_out("no HTTP/2 preface")
        elif (
            connection.is_mid_frame
            and not self._is_read_paused
            and self._silent_ticks >= timeouts.frame_seconds
        ):
            self._time_out("a frame was begun and not ended")
        elif self._unused_ticks >= timeouts.idle_seconds and not self._is_ending:
            self.begin_shutdown()
        elif self._is_write_paused:
            self._watch_reader()
        else:
            self._keep_alive()

    def _tick_of_the_end(self) -> None:
        self._ending_ticks += 1
        if self._ending_ticks < _PATIENCE_TICKS:
            return
        if self._is_closing:
            self._transport.abort()
        else:
            self.connection.limit_shutdown()
            self._session.flush()

    def _watch_reader(self) -> None:
        """Give up a peer that has stopped to read; a PING would only wait with the rest."""
        before, self._unwritten_bytes = (
            self._unwritten_bytes,
            self._transport.get_write_buffer_size(),
        )
        self._stalled_ticks = 0 if self._unwritten_bytes < before else self._stalled_ticks + 1
        timeouts = self._timeouts
        if self._stalled_ticks >= timeouts.keepalive_seconds + timeouts.keepalive_timeout_seconds:
            self._time_out("the peer does not read")

    def _keep_alive(self) -> None:
        timeouts = self._timeouts
        if self._silent_ticks < timeouts.keepalive_seconds:
            self._ping_is_out = False
        elif not self._ping_is_out:
            self._ping_is_out = True
            self.connection.send_ping(_KEEPALIVE_PING)
            self._session.flush()
        elif self._silent_ticks >= timeouts.keepalive_seconds + timeouts.keepalive_timeout_seconds:
            self._time_out("no answer to a PING")

    def _time_out(self, reason: str) -> None:
        self._owner.counters.connections_timed_out += 1
        peer = self._transport.get_extra_info("peername")
        log.info("connection timed out", reason=reason, peer=peer)
        self._transport.abort()

    def _close_if_finished(self) -> None:
        if self.connection.is_finished:
            self._close()

    def _close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._ending_ticks = 0
            self._transport.close()

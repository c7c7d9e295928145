"""A server's HTTP/2 connection as a state machine: bytes in, events and bytes out (RFC 9113).

It has no socket and no clock. :meth:`Http2Connection.receive` takes the bytes read and returns
events; the caller responds with ``send_headers``, ``send_data``, ``end`` and ``reset``;
``take_output`` returns the bytes to write. Only complete frames are handled, so the events do not
depend on how the bytes were split.
"""

from sys import maxsize
from typing import Final

from epp.transport.budget import ByteBudget
from epp.transport.http2 import frames
from epp.transport.http2.constants import DEFAULT_WINDOW, MAX_STREAM_ID, ErrorCode, Setting
from epp.transport.http2.errors import ConnectionFault
from epp.transport.http2.events import ConnectionFailed, Event, StreamReset
from epp.transport.http2.floods import FloodGuard
from epp.transport.http2.headers import HeaderCache, HeaderDecoder
from epp.transport.http2.limits import ConnectionLimits
from epp.transport.http2.parser import FrameParser
from epp.transport.http2.receiver import SHUTDOWN_PING, Receiver
from epp.transport.http2.sender import Sender
from epp.transport.http2.stream import Http2Stream, StreamState
from epp.transport.http2.stream_table import StreamTable
from epp.transport.statistics import Http2Counters

_CLOSED: Final = StreamState.CLOSED
_MIN_REMEMBERED_STREAMS: Final = 2048


class Http2Connection:
    """One connection of a server that never pushes."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        *,
        cache: HeaderCache | None = None,
        counters: Http2Counters | None = None,
        budget: ByteBudget | None = None,
    ) -> None:
        """Create the connection; the first output is the server's SETTINGS.

        Args:
            limits: Limits of this connection.
            cache: Cache of decoded headers, shared between connections.
            counters: Counts for metrics, shared between connections.
            budget: Memory budget of all connections together; None for no limit.
        """
        limits = limits or ConnectionLimits()
        counters = counters if counters is not None else Http2Counters()
        self.budget = ByteBudget(limits.max_buffered_bytes, budget)
        """Budget for all bytes buffered for this connection, also by the caller."""
        self.sender = Sender(limits, self.budget, counters)
        self.is_closed = False
        """GOAWAY was sent because of a connection error: nothing more is read or sent."""
        self._counters = counters
        self._max_frame_bytes = limits.max_frame_bytes
        self._guard = FloodGuard(limits)
        remembered = max(_MIN_REMEMBERED_STREAMS, limits.max_concurrent_streams)
        self._table = StreamTable(self.sender, self._guard, counters, remembered)
        self.streams = self._table.open
        """Open streams by id."""
        decoder = HeaderDecoder(
            cache if cache is not None else HeaderCache(), limits.max_header_list_bytes
        )
        self._receiver = Receiver(
            limits,
            self.sender,
            self._table,
            decoder=decoder,
            guard=self._guard,
            counters=counters,
        )
        self._parser = FrameParser(
            self._receiver.handlers(),
            max_frame_bytes=limits.max_frame_bytes,
            max_block_bytes=decoder.max_block_bytes,
            guard=self._guard,
            faulted=self._receiver.reset_stream,
            plain_data=self._receiver.receive_plain_data,
        )
        self._send_settings(limits)

    # --- bytes in, bytes out --------------------------------------------------------------------

    def receive(self, data: bytes, max_header_blocks: int = maxsize) -> list[Event]:
        """Handle bytes read from the peer; return their events in order.

        Args:
            data: The bytes; empty to continue with those left unread.
            max_header_blocks: Header blocks to decode in this call, because a new one costs up to
                40 us. The bytes after them are kept for the next call.
        """
        if self.is_closed:
            return []
        receiver = self._receiver
        try:
            self._parser.feed(data, max_header_blocks)
        except ConnectionFault as fault:
            self._fail(fault)
        events = receiver.events
        # Keep no reference: the next read may be far away, and events hold streams and data.
        receiver.events = []
        return events

    def receive_plain_data(self, stream_id: int, size: int) -> Http2Stream | None:
        """Receive a read that is one whole DATA frame without flags, by its header alone.

        Args:
            stream_id: Its stream, as the frame says.
            size: Bytes of its payload, at least 1.

        Returns:
            The stream that gets the payload; None if the read has to go to :meth:`receive`.
        """
        if self.is_closed or size > self._max_frame_bytes or not self._parser.is_between_frames:
            return None
        return self._receiver.plain_data(stream_id, size)

    @property
    def has_unread(self) -> bool:
        """Whether the last :meth:`receive` kept bytes because of ``max_header_blocks``."""
        return not self.is_closed and self._parser.has_unread

    def take_output(self) -> bytes:
        """Return the bytes to write now; empty if there are none.

        Waiting data follows in the next call, unless :meth:`pause_writing` is called before.
        """
        sender = self.sender
        if sender.ready and sender.is_pump_due:  # mostly nothing waits: saves a call
            for stream in sender.pump():
                self._table.trailers_sent(stream)
        return sender.take() if sender.output else b""

    @property
    def has_more(self) -> bool:
        """Whether there is more to write now, or :meth:`take_writable` has streams."""
        sender = self.sender
        return bool(sender.ready or sender.writable) and sender.has_more

    def take_writable(self) -> list[Http2Stream]:
        """Return the streams that have become writable again since the last call."""
        streams = [stream for stream in self.sender.take_writable() if stream.state is not _CLOSED]
        for stream in streams:
            self._receiver.renew_window(stream)
        return streams

    def pause_writing(self) -> None:
        """Hold back DATA, because the socket is full; control frames are still sent."""
        self.sender.is_paused = True

    def resume_writing(self) -> None:
        """Undo :meth:`pause_writing`."""
        self.sender.is_paused = False

    def close(self) -> None:
        """Release all resources, because the socket is closed; nothing is received after this."""
        self.is_closed = True
        self._parser.close()
        self.budget.detach()

    # --- streams --------------------------------------------------------------------------------

    def send_headers(self, stream: Http2Stream, block: bytes) -> None:
        """Send the response headers."""
        if stream.state is not _CLOSED:
            self._table.send_block(stream, block)

    def send_data(self, stream: Http2Stream, data: bytes) -> None:
        """Send content, now or when windows and socket allow.

        Raises:
            WaitingBytesExceededError: Too much data is waiting already.
        """
        if stream.state is not _CLOSED:
            self.sender.data(stream, data)

    def end(self, stream: Http2Stream, trailers: bytes) -> None:
        """Send ``trailers``, a header block, after all waiting data, and close the stream."""
        self._table.end(stream, trailers)

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        """End the stream with RST_STREAM."""
        self._table.reset(stream, code)

    def drop_waiting(self, stream: Http2Stream) -> None:
        """Drop the stream's waiting data, so that it can end at once."""
        self.sender.drop_waiting(stream)

    def is_writable(self, stream: Http2Stream) -> bool:
        """Return whether less than ``writable_below_bytes`` wait on the stream."""
        return stream.state is not _CLOSED and not self.sender.is_full(stream)

    def pause_reading(self, stream: Http2Stream) -> None:
        """Stop renewing the stream's receive window; the connection's is still renewed."""
        stream.is_reading_paused = True

    def resume_reading(self, stream: Http2Stream) -> None:
        """Undo :meth:`pause_reading`."""
        stream.is_reading_paused = False
        if stream.state is not _CLOSED:
            self._receiver.renew_window(stream)

    def is_reading_paused(self, stream: Http2Stream) -> bool:
        """Return whether the stream is paused or unwritable, so that its window is not renewed."""
        return self._receiver.is_reading_paused(stream)

    def hold_window(self, stream: Http2Stream) -> None:
        """Stop renewing the stream's window in favour of other streams, paused or not."""
        self._receiver.hold_window(stream)

    def release_window(self, stream: Http2Stream) -> None:
        """Undo :meth:`hold_window`."""
        self._receiver.release_window(stream)

    # --- keepalive and shutdown -----------------------------------------------------------------

    @property
    def is_established(self) -> bool:
        """Whether the peer's preface has arrived."""
        return self._parser.is_established

    @property
    def is_settled(self) -> bool:
        """Whether the peer has acknowledged the server's SETTINGS."""
        return self._receiver.is_settled

    @property
    def is_mid_frame(self) -> bool:
        """Whether the preface, a frame or a header block has arrived only in part."""
        return self._parser.is_mid_frame

    @property
    def highest_stream_id(self) -> int:
        """The last stream that the peer has opened; 0 for none."""
        return self._table.highest_id

    @property
    def pings_acknowledged(self) -> int:
        """Number of PINGs that the peer has acknowledged."""
        return self._receiver.pings_acknowledged

    def send_ping(self, payload: bytes) -> None:
        """Send a PING with 8 octets."""
        if not self.is_closed:
            self.sender.write(frames.ping(payload))

    def replenish_flood_budgets(self) -> None:
        """Replenish the budgets against floods; call this about once a second."""
        self._guard.replenish()

    def begin_shutdown(self) -> None:
        """Announce a graceful shutdown (§6.8), without a limit of streams at first.

        No stream that is on its way is lost: the limit is set when the peer acknowledges the PING
        that follows the GOAWAY.
        """
        receiver = self._receiver
        if not (receiver.is_shutting_down or self._table.is_limited or self.is_closed):
            receiver.is_shutting_down = True
            self.sender.write(frames.goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR))
            self.sender.write(frames.ping(SHUTDOWN_PING))

    def limit_shutdown(self) -> None:
        """Accept no stream above the highest so far; open streams continue."""
        if not self.is_closed:
            self._table.limit()

    @property
    def has_received_goaway(self) -> bool:
        """Whether the peer has announced that it opens no more streams."""
        return self._receiver.has_received_goaway

    @property
    def is_finished(self) -> bool:
        """Whether no stream is open, and none will be."""
        if self.streams:
            return False
        return self.is_closed or self.has_received_goaway or self._table.is_limited

    def _send_settings(self, limits: ConnectionLimits) -> None:
        ours = {
            Setting.HEADER_TABLE_SIZE: 0,
            Setting.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
            Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
            Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
        }
        self.sender.write(frames.settings(ours.items()))
        window = max(limits.connection_window_bytes, DEFAULT_WINDOW)
        if window > DEFAULT_WINDOW:
            self.sender.write(frames.window_update(0, window - DEFAULT_WINDOW))

    def _fail(self, fault: ConnectionFault) -> None:
        self.is_closed = True
        self._counters.connection_faults[fault.code.name] += 1
        # "An endpoint MUST NOT increase the value they send in the last stream identifier" (§6.8)
        last = min(self._table.highest_id, self._table.last_accepted_id)
        self.sender.write(frames.goaway(last, fault.code, fault.reason))
        events = self._receiver.events
        for stream in list(self.streams.values()):
            self._table.close(stream, may_receive=False)
            events.append(StreamReset(stream, fault.code))
        events.append(ConnectionFailed(fault.code, fault.reason))

"""A server's HTTP/2 connection as a state machine: bytes in, events and bytes out (RFC 9113).

No socket and no clock. ``receive`` takes what was read and returns what it means; the layer above
answers through ``send_headers``, ``send_data``, ``end`` and ``reset``; ``take_output`` returns what
is to be written. Whole frames are handled at once, and an event is made when its frame is complete:
the same events come out however the bytes were cut.

Every fault of the peer has one of two ends: :class:`StreamFault` becomes RST_STREAM, and
:class:`ConnectionFault` becomes GOAWAY and the last event.
"""

from sys import maxsize

from epp.transport.budget import ByteBudget
from epp.transport.http2 import frames
from epp.transport.http2.constants import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    MAX_STREAM_ID,
    PADDED,
    PRIORITY_BYTES,
    ErrorCode,
    FrameType,
    Setting,
)
from epp.transport.http2.counters import Http2Counters
from epp.transport.http2.errors import ConnectionFault, StreamFault
from epp.transport.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    RequestReceived,
    StreamReset,
)
from epp.transport.http2.floods import FloodGuard
from epp.transport.http2.headers import (
    TABLE_SIZE_UPDATE,
    HeaderCache,
    HeaderDecoder,
    Headers,
    encode,
    trailers_problem,
)
from epp.transport.http2.late_frames import LateFrames
from epp.transport.http2.limits import ConnectionLimits
from epp.transport.http2.parser import FrameParser, unpadded
from epp.transport.http2.sender import Sender
from epp.transport.http2.settings import PeerSettings
from epp.transport.http2.stream import Stream, StreamInput, StreamState

_OPEN, _CLOSED = StreamState.OPEN, StreamState.CLOSED
_STREAMS_PER_CONTROL_FRAME = 64
"""How many streams are visited, because a setting has changed, at the cost of a control frame."""
_REMEMBERED_STREAMS = 2048
_NO_LIMIT = MAX_STREAM_ID + 1
_SHUTDOWN_PING = b"shutdown"
_TOO_LARGE = encode(((b":status", b"431"),))


class Connection:
    """One connection of a server that never pushes."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        *,
        cache: HeaderCache | None = None,
        counters: Http2Counters | None = None,
        budget: ByteBudget | None = None,
    ) -> None:
        """Begin a connection; our SETTINGS are the first output.

        Args:
            limits: What it may cost.
            cache: Headers seen before; shared between connections.
            counters: Where it is counted; shared between connections.
            budget: What all connections may hold together; None for any amount.
        """
        self.limits = limits = limits or ConnectionLimits()
        self.counters = counters if counters is not None else Http2Counters()
        self.budget = ByteBudget(limits.max_buffered_bytes, budget)
        """For all bytes that are kept for this connection, by the layer above, too."""
        self.sender = Sender(limits, self.budget, self.counters)
        self.streams: dict[int, Stream] = {}
        """Open streams by id."""
        self.is_closed = False
        """GOAWAY was sent because of a fault: nothing is read or sent any more."""
        self.is_peer_leaving = False
        """The peer has sent GOAWAY: it opens no more streams."""
        self.is_settled = False
        """The peer has acknowledged our SETTINGS."""
        self.pings_acknowledged = 0
        self._peer = PeerSettings()
        self._guard = FloodGuard(limits)
        self._decoder = HeaderDecoder(
            cache if cache is not None else HeaderCache(), limits.max_header_list_bytes
        )
        self._parser = FrameParser(
            {
                FrameType.DATA: self._data,
                FrameType.HEADERS: self._headers,
                FrameType.PRIORITY: self._priority,
                FrameType.RST_STREAM: self._rst_stream,
                FrameType.SETTINGS: self._settings,
                FrameType.PING: self._ping,
                FrameType.GOAWAY: self._goaway,
                FrameType.WINDOW_UPDATE: self._window_update,
            },
            max_frame_bytes=limits.max_frame_bytes,
            max_block_bytes=self._decoder.max_block_bytes,
            guard=self._guard,
            faulted=self._fault,
        )
        self._events: list[Event] = []
        self._held_windows: set[Stream] = set()
        self._late = LateFrames(max(_REMEMBERED_STREAMS, limits.max_concurrent_streams))
        self._highest_stream_id = 0
        self._last_stream_id = _NO_LIMIT
        self._receive_window = max(limits.connection_window_bytes, DEFAULT_WINDOW)
        self._to_acknowledge = 0
        self._stream_batch_bytes = (limits.stream_window_bytes + 1) // 2
        # Until the peer has read our SETTINGS it knows of no window but the default one.
        self._stream_window = max(limits.stream_window_bytes, DEFAULT_WINDOW)
        self._has_sent_block = False
        self._is_shutting_down = False
        self._greet()

    # --- bytes in, bytes out --------------------------------------------------------------------

    @property
    def has_unread(self) -> bool:
        """The last call of ``receive`` left frames unread, because of ``most_blocks``."""
        return not self.is_closed and self._parser.has_unread

    def receive(self, data: bytes, most_blocks: int = maxsize) -> list[Event]:
        """Take bytes read from the peer and return what they mean, in order.

        Args:
            data: The bytes; none to go on with those left unread.
            most_blocks: Header blocks to be read in this call; a new one costs up to 40 us. What
                comes after them is kept.
        """
        events: list[Event] = []
        if self.is_closed:
            return events
        self._events = events
        try:
            self._parser.feed(data, most_blocks)
        except ConnectionFault as fault:
            self._fail(fault)
        # Not kept until the next read, which may be far: they hold streams, and what was read.
        self._events = []
        return events

    def close(self) -> None:
        """Release everything: the socket is gone. Nothing is received after this."""
        self.is_closed = True
        self._parser.close()
        self.budget.part()

    def take_output(self) -> bytes:
        """Return the bytes to write now; b"" if there are none.

        What waits for room follows in the next call, if ``hold`` is not called in between.
        """
        sender = self.sender
        if sender.ready and sender.is_pump_due:  # mostly nothing waits: a call less
            for stream in sender.pump():
                self._ended(stream)
        return sender.take() if sender.output else b""

    @property
    def has_more(self) -> bool:
        """There is more to write at once, or a stream to be told that it is writable."""
        sender = self.sender
        return bool(sender.ready or sender.writable) and sender.has_more

    def take_writable(self) -> list[Stream]:
        """Return the streams that had too much waiting, and have room again since the last call."""
        streams = [stream for stream in self.sender.take_writable() if stream.state is not _CLOSED]
        for stream in streams:
            self._acknowledge(stream)
        return streams

    def hold(self) -> None:
        """The socket is full: DATA waits until ``resume``; control frames are still answered."""
        self.sender.is_held = True

    def resume(self) -> None:
        """The socket has room again."""
        self.sender.is_held = False

    @property
    def is_established(self) -> bool:
        """The peer's preface has come."""
        return self._parser.is_established

    @property
    def highest_stream_id(self) -> int:
        """The last stream that the peer has opened; 0 for none."""
        return self._highest_stream_id

    @property
    def is_mid_frame(self) -> bool:
        """The preface, a frame or a header block has begun and not ended."""
        return self._parser.is_mid_frame

    # --- streams, as the layer above sees them --------------------------------------------------

    def send_headers(self, stream: Stream, block: bytes) -> None:
        """Send the response's headers."""
        if stream.state is not _CLOSED:
            self._write_block(stream, block, END_HEADERS)

    def send_data(self, stream: Stream, data: bytes) -> None:
        """Send content, now or when there is room.

        Raises:
            WaitingBytesExceededError: There is no room, and enough waits already.
        """
        if stream.state is not _CLOSED:
            self.sender.data(stream, data)

    def end(self, stream: Stream, trailers: bytes) -> None:
        """Send ``trailers``, a header block, after everything else, and close the stream."""
        if stream.state is _CLOSED or stream.trailers is not None:
            return
        if stream.waiting:
            stream.trailers = trailers
        else:
            self._write_block(stream, trailers, END_HEADERS | END_STREAM)
            self._ended(stream)

    def drop_waiting(self, stream: Stream) -> None:
        """Drop what waits on the stream, so that its end need not wait."""
        self.sender.forget(stream)

    def is_writable(self, stream: Stream) -> bool:
        """Return whether more may be sent without piling up."""
        return stream.state is not _CLOSED and not self.sender.is_full(stream)

    def pause(self, stream: Stream) -> None:
        """Renew the stream's receive window no more; that of the connection is."""
        stream.is_paused = True

    def unpause(self, stream: Stream) -> None:
        """Renew it again, and now."""
        stream.is_paused = False
        if stream.state is not _CLOSED:
            self._acknowledge(stream)

    def is_stopped(self, stream: Stream) -> bool:
        """Return whether the window is not renewed for a reason that is the stream's own."""
        return stream.is_paused or self.sender.is_full(stream)

    def hold_window(self, stream: Stream) -> None:
        """Do the same for the sake of other streams, whether it is paused or not."""
        self._held_windows.add(stream)

    def renew_window(self, stream: Stream) -> None:
        """End that."""
        self._held_windows.discard(stream)
        if stream.state is not _CLOSED:
            self._acknowledge(stream)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End the stream with RST_STREAM."""
        if stream.state is not _CLOSED:
            self.sender.write(frames.reset(stream.id, code))
            self._close(stream, may_send=not stream.has_peer_ended)

    # --- the connection, as its driver sees it --------------------------------------------------

    def send_ping(self, payload: bytes) -> None:
        """Ask for a sign of life: 8 octets that come back."""
        if not self.is_closed:
            self.sender.write(frames.ping(payload))

    def forgive(self) -> None:
        """Refill the budgets against floods; to be called about once a second."""
        self._guard.forgive()

    def begin_shutdown(self) -> None:
        """Announce the end (§6.8): first without a limit, so that no stream under way is lost.

        The answer to the PING that goes with it says that the peer knows, and sets the limit.
        """
        if not self._is_shutting_down and not self.is_closed:
            self._is_shutting_down = True
            self.sender.write(frames.goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR))
            self.sender.write(frames.ping(_SHUTDOWN_PING))

    def limit_shutdown(self) -> None:
        """Take no stream above the highest so far; those below go on."""
        if self._last_stream_id == _NO_LIMIT and not self.is_closed:
            self._is_shutting_down = True
            self._last_stream_id = self._highest_stream_id
            self.sender.write(frames.goaway(self._last_stream_id, ErrorCode.NO_ERROR))

    @property
    def is_finished(self) -> bool:
        """No stream is open, and none will be."""
        if self.streams:
            return False
        return self.is_closed or self.is_peer_leaving or self._last_stream_id != _NO_LIMIT

    # --- frames of streams ----------------------------------------------------------------------

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._require_closed(stream_id, "DATA")
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "connection window exceeded")
        # The connection's credit comes back whatever becomes of the data (§5.1, §6.9).
        self._to_acknowledge += size
        if self._to_acknowledge >= self._receive_window:
            self._acknowledge_connection()
        data = unpadded(payload) if flags & PADDED else payload
        if stream is None:
            self._discard(stream_id, data)
            return
        if stream.state is not _OPEN:  # where data changes nothing: 0.15 us less
            stream.advance(StreamInput.RECEIVE_DATA)
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "stream window exceeded")
        end_stream = flags & END_STREAM != 0
        if stream.expected_bytes is not None:
            _count_down(stream, len(data), end_stream)
        if end_stream:
            stream.advance(StreamInput.RECEIVE_END_STREAM)
        else:
            stream.to_acknowledge += size
            if stream.to_acknowledge >= self._stream_batch_bytes:
                self._acknowledge(stream)
            if not data:
                self._guard.control_frame()
                return
        self._events.append(DataReceived(stream, data, end_stream))

    def _headers(self, flags: int, stream_id: int, block: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        end_stream = flags & END_STREAM != 0
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._trailers(stream, self._decoder.decode(block), end_stream)
        elif stream_id > self._highest_stream_id:
            headers = self._decoder.decode(block)
            self._highest_stream_id = stream_id
            if stream_id <= self._last_stream_id:
                self._open(stream_id, headers, end_stream)
            else:
                # Sent before our GOAWAY was read; so is what follows on it (§6.8).
                self._late.expect(stream_id)
        elif stream_id in self._late:
            # Trailers that crossed our end of the stream; the table has to stay in step (§4.3).
            self._decoder.decode(block)
            self._guard.control_frame()
        else:
            # "The identifier of a newly established stream MUST be numerically greater than all
            # streams that the initiating endpoint has opened" (§5.1.1)
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} used again")

    def _open(self, stream_id: int, headers: Headers, end_stream: bool) -> None:
        if len(self.streams) >= self.limits.max_concurrent_streams:
            self.counters.streams_refused += 1
            self._late.expect(stream_id)
            self.sender.write(frames.reset(stream_id, ErrorCode.REFUSED_STREAM))
            return
        if headers.problem:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, headers.problem)
        if end_stream and headers.content_length:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "content-length without content")
        is_oversized = self._decoder.is_oversized(headers)
        if is_oversized:
            self.counters.header_lists_refused += 1
            self._guard.control_frame()  # before there is a stream: one that nobody was told of
        stream = Stream(stream_id, self._stream_window, headers.content_length)
        self.streams[stream_id] = stream
        self.counters.streams_opened += 1
        self._guard.streams_opened += 1
        if end_stream:
            stream.advance(StreamInput.RECEIVE_END_STREAM)
        if is_oversized:
            self.end(stream, _TOO_LARGE)
            return
        self._events.append(RequestReceived(stream, headers, end_stream))

    def _trailers(self, stream: Stream, headers: Headers, end_stream: bool) -> None:
        stream.advance(StreamInput.RECEIVE_TRAILERS)
        problem = trailers_problem(headers)
        if problem or not end_stream:
            # "MUST treat the corresponding request or response as malformed" (§8.1)
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, problem or "HEADERS twice")
        if stream.expected_bytes is not None:
            _count_down(stream, 0, end_stream)
        stream.advance(StreamInput.RECEIVE_END_STREAM)
        self._events.append(DataReceived(stream, b"", end_stream=True))

    def _priority(self, _: int, stream_id: int, payload: bytes) -> None:
        self._guard.control_frame()
        if len(payload) != PRIORITY_BYTES and stream_id in self.streams:
            raise StreamFault(ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")

    def _rst_stream(self, _: int, stream_id: int, payload: bytes) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            self._require_closed(stream_id, "RST_STREAM")
            if stream_id in self._late:
                # Envoy resets every stream, those that we have just ended too: once each is free.
                self._late.expect_no_more(stream_id)
            else:
                self._guard.late_reset()
            return
        if not stream.has_sent_data:
            self.counters.streams_reset_early += 1
            self._guard.early_reset()
        self._close(stream, may_send=False)
        self._events.append(StreamReset(stream, int.from_bytes(payload, "big")))

    def _window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        increment = int.from_bytes(payload, "big") & MAX_STREAM_ID
        sender = self.sender
        self._guard.window_update(sender.data_frames)
        if stream_id == 0:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "window increment 0")
            sender.window_update(increment)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._require_closed(stream_id, "WINDOW_UPDATE")
            return
        if not increment:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "window increment 0")
        sender.stream_window_update(stream, increment)

    # --- frames of the connection ---------------------------------------------------------------

    def _settings(self, flags: int, _: int, payload: bytes) -> None:
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS ACK with payload")
            self._guard.control_frame()
            if not self.is_settled:
                self.is_settled = True
                self._stream_window = self.limits.stream_window_bytes
                self._decoder.settings_acknowledged()
            return
        self._guard.control_frame(1 + self._peer.update(payload))
        sender = self.sender
        sender.max_frame_bytes = self._peer.max_frame_bytes
        if self._peer.initial_window_bytes != sender.initial_window:
            self._guard.control_frame(len(self.streams) // _STREAMS_PER_CONTROL_FRAME)
            sender.initial_window_changed(self._peer.initial_window_bytes, self.streams)
        sender.write(frames.SETTINGS_ACK)

    def _ping(self, flags: int, _: int, payload: bytes) -> None:
        self._guard.control_frame()
        if not flags & ACK:
            self.sender.write(frames.ping(payload, ACK))
            return
        self.pings_acknowledged += 1
        if payload == _SHUTDOWN_PING and self._is_shutting_down:
            self.limit_shutdown()

    def _goaway(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        self._guard.control_frame()
        self.is_peer_leaving = True

    # --- windows and ends -----------------------------------------------------------------------

    def _greet(self) -> None:
        limits = self.limits
        ours = {
            Setting.HEADER_TABLE_SIZE: 0,
            Setting.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
            Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
            Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
        }
        self.sender.write(frames.settings(ours.items()))
        if self._receive_window > DEFAULT_WINDOW:
            self.sender.write(frames.window_update(0, self._receive_window - DEFAULT_WINDOW))

    def _acknowledge_connection(self) -> None:
        self._receive_window += self._to_acknowledge
        self.sender.write(frames.window_update(0, self._to_acknowledge))
        self._to_acknowledge = 0

    def _acknowledge(self, stream: Stream) -> None:
        """Renew the stream's receive window, unless it has to wait or its own answers pile up."""
        if stream in self._held_windows or self.is_stopped(stream):
            return
        if stream.to_acknowledge:
            stream.receive_window += stream.to_acknowledge
            self.sender.write(frames.window_update(stream.id, stream.to_acknowledge))
            stream.to_acknowledge = 0

    def _require_closed(self, stream_id: int, what: str) -> None:
        if stream_id > self._highest_stream_id or not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{what} on idle stream {stream_id}")

    def _discard(self, stream_id: int, data: bytes) -> None:
        if stream_id not in self._late:
            raise StreamFault(ErrorCode.STREAM_CLOSED, "DATA on a closed stream")
        if not data:
            # The rest of large bodies, refused at their headers, is no flood: windows bound it.
            self._guard.control_frame()

    def _write_block(self, stream: Stream, block: bytes, flags: int) -> None:
        if not self._has_sent_block:
            self._has_sent_block = True
            block = TABLE_SIZE_UPDATE + block
        self.sender.write(frames.headers(stream.id, block, flags))

    def _ended(self, stream: Stream) -> None:
        """Take note that our END_STREAM is on its way."""
        stream.advance(StreamInput.SEND_END_STREAM)
        if stream.state is _CLOSED:
            self._close(stream, may_send=False)
        else:
            # "a server MAY request that the client abort transmission of a request without error
            # by sending a RST_STREAM with an error code of NO_ERROR" (§8.1)
            self.reset(stream, ErrorCode.NO_ERROR)

    def _close(self, stream: Stream, *, may_send: bool) -> None:
        stream.state = _CLOSED
        if stream.has_sent_data:
            self.counters.streams_answered += 1
            self._guard.answered()
        if stream.waiting:
            self.sender.forget(stream)
        del self.streams[stream.id]
        if may_send:
            self._late.expect(stream.id)

    def _fault(self, stream_id: int, fault: StreamFault) -> None:
        """Reset a stream because the peer broke a rule on it."""
        self.counters.stream_faults += 1
        self._guard.stream_fault()
        self.sender.write(frames.reset(stream_id, fault.code))
        stream = self.streams.get(stream_id)
        if stream is None:
            self._late.expect(stream_id)
        else:
            self._close(stream, may_send=not stream.has_peer_ended)
            self._events.append(StreamReset(stream, fault.code))

    def _fail(self, fault: ConnectionFault) -> None:
        self.is_closed = True
        self.counters.connection_faults[fault.code.name] += 1
        # "An endpoint MUST NOT increase the value they send in the last stream identifier" (§6.8)
        last = min(self._highest_stream_id, self._last_stream_id)
        self.sender.write(frames.goaway(last, fault.code, fault.reason))
        for stream in list(self.streams.values()):
            self._close(stream, may_send=False)
            self._events.append(StreamReset(stream, fault.code))
        self._events.append(ConnectionFailed(fault.code, fault.reason))


def _count_down(stream: Stream, size: int, end_stream: bool) -> None:
    """Hold the content against its announced length (§8.1.1)."""
    left = stream.expected_bytes = (stream.expected_bytes or 0) - size
    if left < 0 or (end_stream and left):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, "content-length is not that of the content")

"""The sending side of a connection: control frames at once, DATA as windows and the socket allow.

DATA without room waits on its stream. Streams that wait only for the connection or the socket are
served round-robin, one frame each, so that a large response does not starve small ones.
"""

from collections import OrderedDict, deque
from typing import Final

from epp.transport.budget import ByteBudget
from epp.transport.http2 import frames
from epp.transport.http2.constants import (
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    MAX_WINDOW,
    MIN_MAX_FRAME_BYTES,
    ErrorCode,
    FrameType,
)
from epp.transport.http2.errors import (
    ConnectionFault,
    StreamFault,
    WaitingBytesExceededError,
)
from epp.transport.http2.limits import ConnectionLimits
from epp.transport.http2.stream import Http2Stream, Piece, StreamState, append_piece
from epp.transport.statistics import Http2Counters

_DATA: Final = int(FrameType.DATA)
_pack: Final = FRAME_HEADER.pack
_CLOSED: Final = StreamState.CLOSED


class Sender:
    """Sends frames on one connection.

    Args:
        limits: Limits of the connection.
        budget: Memory budget for waiting DATA.
        counters: Counts for metrics.
    """

    __slots__ = (
        "_budget",
        "_burst_bytes",
        "_counters",
        "_limits",
        "data_frames",
        "initial_window",
        "is_paused",
        "max_frame_bytes",
        "output",
        "ready",
        "waiting_bytes",
        "window",
        "writable",
        "write",
    )

    def __init__(
        self, limits: ConnectionLimits, budget: ByteBudget, counters: Http2Counters
    ) -> None:
        self._counters = counters
        self._limits = limits
        self._budget = budget
        # An OrderedDict, because streams are also removed from the middle.
        self.ready: OrderedDict[int, Http2Stream] = OrderedDict()
        """Streams that wait for the connection or the socket, not for their own window, by id."""
        self._burst_bytes = 0
        self.output: list[Piece] = []
        """Bytes to write, in order."""
        self.write = self.output.append
        """Append a frame that is not subject to flow control."""
        self.window = DEFAULT_WINDOW
        """Send window of the connection."""
        self.initial_window = DEFAULT_WINDOW
        """The peer's INITIAL_WINDOW_SIZE."""
        self.max_frame_bytes = MIN_MAX_FRAME_BYTES
        self.is_paused = False
        """DATA waits, because the socket is full."""
        self.waiting_bytes = 0
        """DATA waiting on all streams."""
        self.data_frames = 0
        """DATA frames sent so far."""
        self.writable: list[Http2Stream] = []
        """Streams that have become writable again, for :meth:`take_writable`."""

    @property
    def is_pump_due(self) -> bool:
        """Whether waiting DATA could be sent now."""
        return bool(self.ready) and self.window > 0 and not self.is_paused

    @property
    def has_more(self) -> bool:
        """Whether waiting DATA could be sent now, or a stream has become writable again."""
        return bool(self.writable) or self.is_pump_due

    @property
    def ready_streams(self) -> int:
        """Number of streams that wait for the connection or the socket."""
        return len(self.ready)

    def take(self) -> bytes:
        """Return everything to write since the last call."""
        data = b"".join(self.output)
        self.output.clear()
        self._burst_bytes = 0
        return data

    def take_writable(self) -> list[Http2Stream]:
        """Return the streams that have become writable again since the last call."""
        streams = self.writable
        if streams:
            self.writable = []
        return streams

    def data(self, stream: Http2Stream, data: bytes) -> None:
        """Send ``data`` now, or let it wait for room.

        Raises:
            WaitingBytesExceededError: Too much data is waiting already.
        """
        size = len(data)
        if (
            size > self.window
            or size > self.initial_window + stream.send_credit
            or stream.waiting
            or self.ready
            or self.is_paused
            or self._burst_bytes + size > self._limits.write_burst_bytes
        ):
            self._wait(stream, data)
            return
        self.window -= size
        stream.send_credit -= size
        stream.has_sent_data = True
        self._burst_bytes += size
        if size <= self.max_frame_bytes:
            self.data_frames += 1
            self.write(_pack(size << 8 | _DATA, 0, stream.id))
            self.write(data)
        else:
            view = memoryview(data)
            for start in range(0, size, self.max_frame_bytes):
                piece = view[start : start + self.max_frame_bytes]
                self.data_frames += 1
                self.write(_pack(len(piece) << 8 | _DATA, 0, stream.id))
                self.write(piece)

    def takes_frame(self, stream: Http2Stream, size: int) -> bool:
        """Count a DATA frame of ``size`` bytes, if it can be sent now as one frame.

        Returns:
            Whether the caller has to write the frame at once; False, with nothing counted, if the
            bytes have to go to :meth:`data`.
        """
        if (
            stream.state is _CLOSED
            or size > self.max_frame_bytes
            or size > self.window
            or size > self.initial_window + stream.send_credit
            or stream.waiting
            or self.ready
            or self.is_paused
            or self._burst_bytes + size > self._limits.write_burst_bytes
        ):
            return False
        self.window -= size
        stream.send_credit -= size
        stream.has_sent_data = True
        self._burst_bytes += size
        self.data_frames += 1
        return True

    def drop_waiting(self, stream: Http2Stream) -> None:
        """Drop the waiting data and trailers of a stream."""
        self.waiting_bytes -= stream.waiting_bytes
        self._budget.give_back(stream.waiting_bytes)
        stream.waiting_bytes = 0
        stream.waiting = None
        stream.trailers = None
        self.ready.pop(stream.id, None)

    def is_full(self, stream: Http2Stream) -> bool:
        """Return whether the stream is unwritable: ``writable_below_bytes`` or more wait on it."""
        return stream.waiting_bytes >= self._limits.writable_below_bytes

    # --- windows and waiting data -----------------------------------------------------------------

    def window_update(self, increment: int) -> None:
        """Enlarge the connection's window.

        Raises:
            ConnectionFault: It exceeds 2^31 - 1 (§6.9.1).
        """
        self.window += increment
        if self.window > MAX_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "connection window above 2^31-1")

    def stream_window_update(self, stream: Http2Stream, increment: int) -> None:
        """Enlarge a stream's window.

        Raises:
            StreamFault: It exceeds 2^31 - 1 (§6.9.1).
        """
        stream.send_credit += increment
        if self.initial_window + stream.send_credit > MAX_WINDOW:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "stream window above 2^31-1")
        self._enqueue(stream)

    def initial_window_changed(self, size: int, streams: dict[int, Http2Stream]) -> None:
        """Change the windows of all open streams by the difference (§6.9.2).

        Raises:
            ConnectionFault: A window exceeds 2^31 - 1.
        """
        grows = size > self.initial_window
        self.initial_window = size
        if not grows:
            return
        for stream in streams.values():
            if size + stream.send_credit > MAX_WINDOW:
                raise ConnectionFault(
                    ErrorCode.FLOW_CONTROL_ERROR, f"window of stream {stream.id} above 2^31-1"
                )
            self._enqueue(stream)

    def pump(self) -> list[Http2Stream]:
        """Send waiting DATA round-robin; return the streams whose trailers were sent with it."""
        ended: list[Http2Stream] = []
        ready = self.ready
        while ready and self.window > 0 and not self.is_paused:
            if self._burst_bytes >= self._limits.write_burst_bytes:
                break
            _, stream = ready.popitem(last=False)
            waiting = stream.waiting
            window = self.initial_window + stream.send_credit
            if not waiting or window <= 0:
                continue
            self._send_frame(stream, waiting, min(window, self.window, self.max_frame_bytes))
            if waiting:
                ready[stream.id] = stream
                continue
            if stream.trailers is not None:
                self.write(frames.headers(stream.id, stream.trailers, END_HEADERS | END_STREAM))
                stream.trailers = None
                ended.append(stream)
        return ended

    def _send_frame(self, stream: Http2Stream, waiting: deque[Piece], room_bytes: int) -> None:
        """Send one frame of up to ``room_bytes``, which may span messages."""
        pieces: list[Piece] = []
        size = 0
        while waiting and size < room_bytes:
            piece = waiting.popleft()
            if size + len(piece) > room_bytes:
                view = memoryview(piece)
                waiting.appendleft(view[room_bytes - size :])
                piece = view[: room_bytes - size]
            pieces.append(piece)
            size += len(piece)
        self.window -= size
        stream.send_credit -= size
        stream.waiting_bytes -= size
        stream.has_sent_data = True
        self.waiting_bytes -= size
        self._budget.give_back(size)
        self._burst_bytes += size
        self.data_frames += 1
        self.write(_pack(size << 8 | _DATA, 0, stream.id))
        self.output += pieces
        if stream.was_full and stream.waiting_bytes * 2 <= self._limits.writable_below_bytes:
            stream.was_full = False
            self.writable.append(stream)

    def _wait(self, stream: Http2Stream, data: bytes) -> None:
        size = len(data)
        limits = self._limits
        if stream.waiting_bytes + size > limits.max_waiting_stream_bytes:
            raise WaitingBytesExceededError(
                f"{stream.waiting_bytes} bytes wait already for the window of stream {stream.id}"
            )
        if not self._budget.has_room(size):
            raise WaitingBytesExceededError(
                f"no room: {self._budget.used_bytes} bytes are buffered already for this connection"
            )
        if stream.waiting is None:
            stream.waiting = deque()
        append_piece(stream.waiting, data)
        stream.waiting_bytes += size
        self.waiting_bytes += size
        self._budget.take(size)
        if not stream.was_full and self.is_full(stream):
            stream.was_full = True
            self._counters.streams_filled += 1
        self._enqueue(stream)

    def _enqueue(self, stream: Http2Stream) -> None:
        if stream.waiting and self.initial_window + stream.send_credit > 0:
            self.ready.setdefault(stream.id, stream)

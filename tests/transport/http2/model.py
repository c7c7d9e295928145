"""A model of RFC 9113: the allowed outcomes of each frame, independent of the code under test.

The model tracks the frames of both sides and returns the allowed outcomes of the next one.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from hyperframe.frame import Frame, RstStreamFrame, WindowUpdateFrame

from epp.transport.http2 import ErrorCode
from tools.harness.http2_frames import DEFAULT_WINDOW, MAX_WINDOW
from transport.http2.accounting import Accounting

Outcome = tuple[str, ErrorCode | None]
Allowed = frozenset[Outcome]


def fine() -> Allowed:
    """The frame is applied or ignored."""
    return frozenset({("fine", None)})


def stream_error(*codes: ErrorCode) -> Allowed:
    return frozenset(("stream", code) for code in codes)


def connection_error(*codes: ErrorCode) -> Allowed:
    return frozenset(("connection", code) for code in codes)


FINE = fine()
E = ErrorCode


class Closed(Enum):
    """Why a stream is closed, which determines the frames that may still arrive (§5.1)."""

    BY_US = auto()
    BY_CLIENT = auto()
    PASSED_OVER = auto()


@dataclass
class Model:
    """One connection, as both sides have to see it."""

    accounting: Accounting
    max_streams: int
    stream_window: int
    connection_window: int = DEFAULT_WINDOW
    open: dict[int, int] = field(default_factory=dict)
    """What the client may send on streams that it has not ended, and that are not closed."""
    half_closed: dict[int, int] = field(default_factory=dict)
    closed: dict[int, Closed] = field(default_factory=dict)
    highest: int = 0

    @property
    def streams(self) -> dict[int, int]:
        return {**self.open, **self.half_closed}

    def is_idle(self, stream_id: int) -> bool:
        return stream_id > self.highest or stream_id % 2 == 0

    def why_closed(self, stream_id: int) -> Closed:
        return self.closed.get(stream_id, Closed.PASSED_OVER)

    # --- what may come of a frame -----------------------------------------------------------------

    def headers(self, stream_id: int, kind: str, *, end: bool) -> Allowed:
        if stream_id % 2 == 0:
            return connection_error(E.PROTOCOL_ERROR)
        if stream_id in self.half_closed:
            return stream_error(E.STREAM_CLOSED)
        if stream_id in self.open:
            return FINE if kind == "trailers" and end else stream_error(E.PROTOCOL_ERROR)
        if stream_id > self.highest:
            allowed = FINE if kind == "request" else stream_error(E.PROTOCOL_ERROR)
            if len(self.streams) < self.max_streams:
                return allowed
            return stream_error(E.REFUSED_STREAM) | (allowed - FINE)
        return {
            Closed.BY_US: FINE,
            Closed.BY_CLIENT: connection_error(E.PROTOCOL_ERROR, E.STREAM_CLOSED),
            Closed.PASSED_OVER: connection_error(E.PROTOCOL_ERROR),
        }[self.why_closed(stream_id)]

    def broken_block(self, stream_id: int) -> Allowed:
        """A header block that is no HPACK."""
        allowed = connection_error(E.COMPRESSION_ERROR)
        return allowed | {
            outcome
            for outcome in self.headers(stream_id, "request", end=False)
            if outcome[0] == "connection"
        }

    def data(self, stream_id: int, size: int) -> Allowed:
        if self.is_idle(stream_id):
            return connection_error(E.PROTOCOL_ERROR)
        if size > self.connection_window:
            return connection_error(E.FLOW_CONTROL_ERROR)
        if stream_id in self.half_closed:
            return stream_error(E.STREAM_CLOSED)
        if stream_id in self.open:
            is_within = size <= self.open[stream_id]
            return FINE if is_within else stream_error(E.FLOW_CONTROL_ERROR)
        if self.why_closed(stream_id) is Closed.BY_US:
            return FINE
        return stream_error(E.STREAM_CLOSED) | connection_error(E.STREAM_CLOSED)

    def reset(self, stream_id: int) -> Allowed:
        return connection_error(E.PROTOCOL_ERROR) if self.is_idle(stream_id) else FINE

    def priority(self, stream_id: int, size: int) -> Allowed:
        if size == 5:
            return FINE
        allowed = stream_error(E.FRAME_SIZE_ERROR)
        return allowed if stream_id in self.streams else allowed | FINE

    def window_update(self, stream_id: int, increment: int) -> Allowed:
        if stream_id == 0:
            if not increment:
                return connection_error(E.PROTOCOL_ERROR)
            is_too_much = self.accounting.window + increment > MAX_WINDOW
            return connection_error(E.FLOW_CONTROL_ERROR) if is_too_much else FINE
        if self.is_idle(stream_id):
            return connection_error(E.PROTOCOL_ERROR)
        if stream_id not in self.streams:
            return FINE
        if not increment:
            return stream_error(E.PROTOCOL_ERROR)
        is_too_much = self.accounting.streams[stream_id].window + increment > MAX_WINDOW
        return stream_error(E.FLOW_CONTROL_ERROR) if is_too_much else FINE

    def initial_window(self, size: int) -> Allowed:
        growth = size - self.accounting.initial_window
        windows = [self.accounting.streams[stream_id].window for stream_id in self.streams]
        if size > MAX_WINDOW or any(window + growth > MAX_WINDOW for window in windows):
            return connection_error(E.FLOW_CONTROL_ERROR)
        return FINE

    # --- what has happened ------------------------------------------------------------------------

    def opened(self, stream_id: int, *, end: bool, is_taken: bool) -> None:
        """HEADERS with a new id were sent."""
        self.highest = stream_id
        if is_taken:
            (self.half_closed if end else self.open)[stream_id] = self.stream_window
        else:
            self.closed[stream_id] = Closed.BY_US

    def client_ended(self, stream_id: int) -> None:
        if stream_id in self.open:
            self.half_closed[stream_id] = self.open.pop(stream_id)

    def client_reset(self, stream_id: int) -> None:
        self.open.pop(stream_id, None)
        self.half_closed.pop(stream_id, None)
        self.closed[stream_id] = Closed.BY_CLIENT

    def data_sent(self, stream_id: int, size: int) -> None:
        self.connection_window -= size
        if stream_id in self.open:
            self.open[stream_id] -= size

    def server_sent(self, frames: list[Frame]) -> None:
        """Follow the server's frames: windows and ends."""
        for frame in frames:
            if isinstance(frame, WindowUpdateFrame):
                if frame.stream_id == 0:
                    self.connection_window += frame.window_increment
                    assert self.connection_window <= MAX_WINDOW
                elif frame.stream_id in self.open:
                    self.open[frame.stream_id] += frame.window_increment
                else:
                    assert frame.stream_id in self.half_closed, "a window for a closed stream"
            elif isinstance(frame, RstStreamFrame) or self._ends(frame):
                self._server_ended(frame.stream_id)

    def _ends(self, frame: Frame) -> bool:
        return "END_STREAM" in frame.flags and frame.stream_id in self.half_closed

    def _server_ended(self, stream_id: int) -> None:
        was_half_closed = self.half_closed.pop(stream_id, None) is not None
        self.open.pop(stream_id, None)
        self.closed[stream_id] = Closed.BY_CLIENT if was_half_closed else Closed.BY_US

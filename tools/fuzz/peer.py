"""The client's view of a connection: its limits, and checks that the server keeps them."""

from collections import Counter

from hpack import Decoder

from tools.soak import frames

_MAX_REASON_BYTES = 300


class Peer:
    """Reads all output of the server; an assertion fails if a frame is not allowed."""

    def __init__(self) -> None:
        self.initial_window = 65_535
        self.window = 65_535
        self.windows: dict[int, int] = {}
        """Windows of the open streams, by id."""
        self.max_frame_bytes = 16_384
        self.opened: set[int] = set()
        self.ended: set[int] = set()
        """Streams that the server has ended with END_STREAM or RST_STREAM."""
        self.has_headers: set[int] = set()
        self.is_gone = False
        """Whether GOAWAY with an error has arrived; no frame may follow."""
        self.bytes_read = 0
        self.seen: Counter[int] = Counter()
        self.contents: Counter[int] = Counter()
        self._hpack = Decoder()

    # --- what the client sends ------------------------------------------------------------------

    def opens(self, stream_id: int) -> None:
        """Record that HEADERS of a stream are sent."""
        self.opened.add(stream_id)
        self.windows.setdefault(stream_id, self.initial_window)

    def allows(self, stream_id: int, increment: int) -> None:
        """Record that a WINDOW_UPDATE is sent."""
        if stream_id == 0:
            self.window += increment
        elif stream_id in self.windows:
            self.windows[stream_id] += increment

    def sets(self, setting: int, value: int) -> None:
        """Record that a value of SETTINGS is sent."""
        if setting == frames.INITIAL_WINDOW_SIZE and value <= frames.MAX_WINDOW:
            change = value - self.initial_window
            self.initial_window = value
            for stream_id in self.windows:
                self.windows[stream_id] += change
        elif setting == frames.MAX_FRAME_SIZE and 16_384 <= value < 1 << 24:
            self.max_frame_bytes = value

    # --- what the server sends ------------------------------------------------------------------

    def reads(self, data: bytes) -> None:
        """Check complete frames of the server."""
        self.bytes_read += len(data)
        at = 0
        while at < len(data):
            assert not self.is_gone, "frames after GOAWAY"
            assert len(data) - at >= 9, "a frame is cut"
            size = int.from_bytes(data[at : at + 3], "big")
            kind, flags = data[at + 3], data[at + 4]
            stream_id = int.from_bytes(data[at + 5 : at + 9], "big")
            payload = data[at + 9 : at + 9 + size]
            assert len(payload) == size, "a frame is cut"
            assert size <= self.max_frame_bytes, f"a frame of {size} bytes"
            self.seen[kind] += 1
            self._read(kind, flags, stream_id, payload)
            at += 9 + size

    def _read(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind in {frames.HEADERS, frames.DATA}:
            assert stream_id in self.opened, f"stream {stream_id} was never opened"
            assert stream_id not in self.ended, f"stream {stream_id} goes on after its end"
        if kind == frames.HEADERS:
            assert flags & frames.END_HEADERS
            fields = dict(self._hpack.decode(payload, raw=True))
            assert (b":status" in fields) == (stream_id not in self.has_headers)
            assert all(bytes(name).islower() for name in fields)
            self.has_headers.add(stream_id)
        elif kind == frames.DATA:
            assert stream_id in self.has_headers, "DATA before HEADERS"
            self.contents[stream_id] += len(payload)
            self.window -= len(payload)
            self.windows[stream_id] -= len(payload)
            if payload:
                assert self.window >= 0, "the connection's window is exceeded"
                assert self.windows[stream_id] >= 0, "the stream's window is exceeded"
        elif kind == frames.WINDOW_UPDATE:
            assert int.from_bytes(payload, "big") > 0
            assert stream_id not in self.ended, "an ended stream gets credit"
        elif kind == frames.GOAWAY:
            assert len(payload) <= _MAX_REASON_BYTES
            self.is_gone = payload[4:8] != bytes(4)
        elif kind == frames.RST_STREAM:
            self.ended.add(stream_id)
        else:
            assert kind in {frames.SETTINGS, frames.PING}
            assert stream_id == 0
        if kind in {frames.HEADERS, frames.DATA} and flags & frames.END_STREAM:
            self.ended.add(stream_id)

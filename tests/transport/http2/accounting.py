"""The peer's flow-control accounting: checks every frame that the server sends."""

from dataclasses import dataclass, field

from hpack import Decoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tools.harness.http2_frames import DEFAULT_WINDOW, MAX_WINDOW


@dataclass
class SentStream:
    """Windows and content of one stream."""

    window: int
    blocks: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    frame_sizes: list[int] = field(default_factory=list)
    has_ended: bool = False
    reset_code: int | None = None


class Accounting:
    """Tracks both directions; a frame that breaks a rule fails the test."""

    def __init__(self) -> None:
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.max_frame_bytes = 1 << 14
        self.streams: dict[int, SentStream] = {}
        self.settings_to_acknowledge = 0
        self.pings_to_acknowledge: list[bytes] = []
        self.frames_received = 0
        self.goaways: list[GoAwayFrame] = []
        self.decoder = Decoder()

    # --- the client's frames ----------------------------------------------------------------------

    def sent(self, frame: Frame) -> None:
        """Apply a frame of the client to what the server may send."""
        if isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
            self._settings(frame.settings)
        elif isinstance(frame, WindowUpdateFrame):
            if not frame.stream_id:
                self.window += frame.window_increment
            elif frame.stream_id in self.streams:
                self.streams[frame.stream_id].window += frame.window_increment
        elif isinstance(frame, HeadersFrame):
            self.streams.setdefault(frame.stream_id, SentStream(self.initial_window))
        elif isinstance(frame, PingFrame) and "ACK" not in frame.flags:
            self.pings_to_acknowledge.append(frame.opaque_data)

    def _settings(self, settings: dict[int, int]) -> None:
        self.settings_to_acknowledge += 1
        size = settings.get(SettingsFrame.MAX_FRAME_SIZE, self.max_frame_bytes)
        self.max_frame_bytes = max(size, 1 << 14)  # less is illegal, and has no effect
        size = settings.get(SettingsFrame.INITIAL_WINDOW_SIZE, self.initial_window)
        for stream in self.streams.values():
            stream.window += size - self.initial_window
        self.initial_window = size

    # --- the server's frames ----------------------------------------------------------------------

    def received(self, frame: Frame) -> None:
        """Check a frame of the server."""
        assert frame.body_len <= self.max_frame_bytes
        assert self.frames_received or isinstance(frame, SettingsFrame), "SETTINGS come first"
        self.frames_received += 1
        if isinstance(frame, HeadersFrame):
            self._headers(frame)
        elif isinstance(frame, DataFrame):
            self._data(frame)
        elif isinstance(frame, RstStreamFrame):
            stream = self.streams.setdefault(frame.stream_id, SentStream(self.initial_window))
            stream.reset_code = frame.error_code
        elif isinstance(frame, SettingsFrame):
            if "ACK" in frame.flags:
                self.settings_to_acknowledge -= 1
                assert self.settings_to_acknowledge >= 0
        elif isinstance(frame, PingFrame):
            if "ACK" in frame.flags:
                assert frame.opaque_data == self.pings_to_acknowledge.pop(0)
        elif isinstance(frame, GoAwayFrame):
            self.goaways.append(frame)
        else:
            assert isinstance(frame, WindowUpdateFrame), frame
            assert 1 <= frame.window_increment <= MAX_WINDOW

    def _sending(self, stream_id: int) -> SentStream:
        stream = self.streams[stream_id]
        assert not stream.has_ended
        assert stream.reset_code is None
        return stream

    def _headers(self, frame: HeadersFrame) -> None:
        stream = self._sending(frame.stream_id)
        assert "END_HEADERS" in frame.flags
        block = [(bytes(n), bytes(v)) for n, v in self.decoder.decode(frame.data, raw=True)]
        assert all(name == name.lower() and value.isprintable() for name, value in _texts(block))
        is_first = not stream.blocks
        assert is_first == (b":status" in dict(block))
        assert is_first or "END_STREAM" in frame.flags, "the second block is trailers"
        stream.blocks.append(block)
        stream.has_ended = "END_STREAM" in frame.flags

    def _data(self, frame: DataFrame) -> None:
        stream = self._sending(frame.stream_id)
        assert stream.blocks, "headers come before data"
        size = frame.flow_controlled_length
        stream.window -= size
        self.window -= size
        assert not size or (stream.window >= 0 and self.window >= 0), "a window was exceeded"
        stream.data += frame.data
        stream.frame_sizes.append(size)
        stream.has_ended = "END_STREAM" in frame.flags


def _texts(block: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in block]

"""A test client: sends any frame, legal or not, and checks what the server sends.

Frames are hyperframe's and header blocks hpack's, independent of the code under test.
"""

from collections.abc import Iterable
from typing import Any

from hpack import Encoder
from hyperframe.frame import (
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    WindowUpdateFrame,
)

from epp.transport.http2 import (
    ConnectionFailed,
    ConnectionLimits,
    DataReceived,
    ErrorCode,
    Event,
    HeaderCache,
    Http2Connection,
    Http2Stream,
    RequestReceived,
    StreamReset,
    encode,
)
from epp.transport.statistics import Http2Counters
from tools.harness import http2_frames as build
from tools.harness.http2_frames import (
    MAX_WINDOW,
    PREFACE,
    cut_headers,
    data,
    goaway,
    literals,
    ping,
    priority,
    reset,
    serialized,
    settings,
    settings_ack,
    string,
    window,
)
from transport.http2.accounting import Accounting

# Re-exported, so that tests import the client and its frames from one module.
__all__ = [
    "MAX_WINDOW",
    "PREFACE",
    "cut_headers",
    "data",
    "goaway",
    "literals",
    "ping",
    "priority",
    "reset",
    "serialized",
    "settings",
    "settings_ack",
    "string",
    "window",
]

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FIELDS = 0x1, 0x1, 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6

Fields = Iterable[tuple[str, str]]

REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Service/Talk"),
    (":authority", "server.test"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
RESPONSE = encode(((b":status", b"200"), (b"content-type", b"application/grpc")))
TRAILERS = encode(((b"grpc-status", b"0"),))


def raw(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    """Return any frame at all."""
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags))
    return head + stream_id.to_bytes(4, "big") + payload


def block(fields: Fields = REQUEST) -> bytes:
    """Return a header block that uses Huffman codes and the static table, but no other."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(list(fields))[1:]  # without the table size update in front


def headers(
    stream_id: int,
    fields: Fields | bytes = REQUEST,
    *,
    end: bool = False,
    end_headers: bool = True,
    pad: int | None = None,
    priority: tuple[int, int, bool] | None = None,
) -> HeadersFrame:
    """Return HEADERS; ``fields`` may be a block that is encoded already."""
    return build.headers(
        stream_id,
        fields if isinstance(fields, bytes) else block(fields),
        end=end,
        end_headers=end_headers,
        pad=pad,
        priority=priority,
    )


def parsed(output: bytes) -> list[Frame]:
    """Parse ``output`` into frames; all must be complete."""
    view = memoryview(output)
    frames = []
    while view:
        frame, length = Frame.parse_frame_header(view[:9], strict=True)
        assert len(view) >= 9 + length
        frame.parse_body(view[9 : 9 + length])
        frames.append(frame)
        view = view[9 + length :]
    return frames


class Client:
    """The client side of one connection; checks everything it receives."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        *,
        cache: HeaderCache | None = None,
    ) -> None:
        self.counters = Http2Counters()
        self.connection = Http2Connection(limits, cache=cache, counters=self.counters)
        self.accounting = Accounting()
        self.encoder = Encoder()
        self.events: list[Event] = []
        """All events so far."""
        self._unread: list[Frame] = []

    def send(self, *frames: Frame | bytes) -> list[Event]:
        """Send frames, or bytes without accounting; return the events."""
        self._read()
        for frame in frames:
            if isinstance(frame, Frame):
                self.accounting.sent(frame)
        return self.send_bytes(serialized(frames))

    def send_bytes(self, octets: bytes) -> list[Event]:
        events = self.connection.receive(octets)
        self.events += events
        return events

    def frames(self) -> list[Any]:
        """Return the frames that the server has sent since the last call."""
        self._read()
        frames, self._unread = self._unread, []
        return frames

    def _read(self) -> None:
        while output := self.connection.take_output():
            frames = parsed(output)
            for frame in frames:
                self.accounting.received(frame)
            self._unread += frames

    def responses_to(self, *frames: Frame | bytes) -> list[Any]:
        """Send frames; return the server's response."""
        self.frames()
        self.send(*frames)
        return self.frames()

    # --- conversations ----------------------------------------------------------------------------

    def establish(self, **client_settings: int) -> "Client":
        """Exchange prefaces and acknowledge the server's SETTINGS."""
        self.send(PREFACE, settings(None, **client_settings), settings_ack())
        self.frames()
        return self

    def request(
        self, stream_id: int, fields: Fields | bytes = REQUEST, *, end: bool = False
    ) -> Http2Stream:
        """Open a stream and return it."""
        (event,) = self.send(headers(stream_id, fields, end=end))
        assert isinstance(event, RequestReceived)
        return event.stream

    def answered(self, stream_id: int, *, end: bool = False) -> Http2Stream:
        """Open a stream to which the server has sent its headers."""
        stream = self.request(stream_id, end=end)
        self.connection.send_headers(stream, RESPONSE)
        self.frames()
        return stream

    def received(self, stream_id: int) -> bytes:
        """Return the content that the server has sent on a stream so far."""
        self.frames()
        return bytes(self.accounting.streams[stream_id].data)

    # --- judgements -------------------------------------------------------------------------------

    def assert_alive(self) -> None:
        """Assert that a PING is answered."""
        assert ping_acks(self.responses_to(ping(b"alive?!?"))) == [b"alive?!?"]

    def assert_reset(self, stream_id: int, code: ErrorCode, *frames: Frame | bytes) -> None:
        """Assert that ``frames`` make the server reset this stream, and nothing else."""
        was_open = stream_id in self.connection.streams
        self.frames()
        events = self.send(*frames)
        assert resets(self.frames()) == [(stream_id, code)]
        ends = [event for event in events if isinstance(event, StreamReset)]
        assert [(e.stream.id, e.code) for e in ends] == ([(stream_id, code)] if was_open else [])
        assert stream_id not in self.connection.streams
        self.assert_alive()

    def assert_ignored(self, *frames: Frame | bytes) -> None:
        """Assert that ``frames`` cause no event and no output."""
        self.frames()
        assert self.send(*frames) == []
        assert self.frames() == []
        self.assert_alive()

    def assert_failed(self, code: ErrorCode, *frames: Frame | bytes) -> str:
        """Assert that ``frames`` make the server end the connection; return its reason."""
        self.frames()
        events = self.send(*frames)
        sent = self.frames()
        assert isinstance(sent[-1], GoAwayFrame)
        assert ErrorCode(sent[-1].error_code) is code
        last = events[-1]
        assert isinstance(last, ConnectionFailed)
        assert last.code is code
        assert self.connection.is_closed
        assert self.connection.is_finished
        assert self.connection.streams == {}
        # Nothing is read or sent any more.
        assert self.send(ping(), headers(1001)) == []
        assert self.frames() == []
        return last.reason


def make_client(cache: HeaderCache | None = None, **limits: int) -> Client:
    """Return a client whose connection is established; ``limits`` are those of the server."""
    return Client(ConnectionLimits(**limits), cache=cache).establish()


def resets(frames: list[Frame]) -> list[tuple[int, ErrorCode]]:
    """Return the error codes of reset streams."""
    return [(f.stream_id, ErrorCode(f.error_code)) for f in only(RstStreamFrame, frames)]


def ping_acks(frames: list[Frame]) -> list[bytes]:
    """Return the payloads of PING acknowledgements."""
    return [f.opaque_data for f in only(PingFrame, frames) if "ACK" in f.flags]


def windows(frames: list[Frame]) -> list[tuple[int, int]]:
    """Return the WINDOW_UPDATEs."""
    return [(f.stream_id, f.window_increment) for f in only(WindowUpdateFrame, frames)]


def only(kind: type[Any], frames: list[Frame]) -> list[Any]:
    """Return the frames of one kind."""
    return [frame for frame in frames if isinstance(frame, kind)]


def content(events: list[Event]) -> bytes:
    """Return the content in DATA events."""
    return b"".join(event.data for event in events if isinstance(event, DataReceived))

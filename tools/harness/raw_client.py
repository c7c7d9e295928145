"""An HTTP/2 client that sends any frames, reads responses, and enforces no rules."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from struct import pack, unpack_from
from typing import ParamSpec, TypeVar, cast

from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    WindowUpdateFrame,
)

from epp.transport import Http2Server, Stream, TransportSettings
from tools.harness import http2_frames as frames
from tools.harness.http2_frames import MAX_WINDOW, PREFACE, serialized

__all__ = ["MAX_WINDOW", "PREFACE"]  # re-exported

METHOD = "/test.Service/Talk"

Fields = Iterable[tuple[str, str]]
F = TypeVar("F", bound=Frame)
P = ParamSpec("P")


# --- frames to send -------------------------------------------------------------------------------


def _as_bytes(build: Callable[P, Frame]) -> Callable[P, bytes]:
    def built(*args: P.args, **kwargs: P.kwargs) -> bytes:
        return build(*args, **kwargs).serialize()

    return built


settings = _as_bytes(frames.settings)
window_update = _as_bytes(frames.window)
ping = _as_bytes(frames.ping)
goaway = _as_bytes(frames.goaway)
reset = _as_bytes(frames.reset)

SETTINGS_ACK = frames.settings_ack().serialize()
GREETING = frames.greeting()
"""Starts a connection with maximum windows."""


def fields(path: str = METHOD, more: Fields = (), **changed: str | None) -> list[tuple[str, str]]:
    """Return the headers of a call; ``changed`` replaces them by name (_ for -), None removes."""
    given: dict[str, str | None] = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    if "method" in changed:
        given[":method"] = changed.pop("method")
    given |= {name.replace("_", "-"): value for name, value in changed.items()}
    return [*((n, v) for n, v in given.items() if v is not None), *more]


def headers(stream_id: int, given: Fields | None = None, *, end: bool = False) -> bytes:
    block = Encoder()
    block.header_table_size = 0
    encoded = block.encode(list(fields() if given is None else given), huffman=False)
    return frames.headers(stream_id, encoded, end=end).serialize()


def data(stream_id: int, payload: bytes = b"", *, end: bool = False) -> bytes:
    """Return DATA in as many frames as needed."""
    return serialized(frames.cut_data(stream_id, payload, end=end))


def message(body: bytes, flag: int = 0, length: int | None = None) -> bytes:
    """Return a gRPC message with its prefix; ``length`` overrides the length in the prefix."""
    return pack(">BI", flag, len(body) if length is None else length) + body


def call(stream_id: int, *bodies: bytes, end: bool = True) -> bytes:
    """Return a complete call: a HEADERS and a DATA frame."""
    return headers(stream_id) + data(stream_id, b"".join(map(message, bodies)), end=end)


# --- frames that came -----------------------------------------------------------------------------


@dataclass
class Response:
    """What was received on one stream."""

    blocks: list[dict[str, str]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    is_ended: bool = False
    reset: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        return self.blocks[0]

    @property
    def status(self) -> int | None:
        """The gRPC status; None if none was received."""
        text = self.blocks[-1].get("grpc-status") if self.blocks else None
        return int(text) if text is not None else None

    @property
    def is_over(self) -> bool:
        return self.is_ended or self.reset is not None

    @property
    def messages(self) -> list[bytes]:
        found, start = [], 0
        while start < len(self.data):
            flag, length = unpack_from(">BI", self.data, start)
            assert flag == 0
            found.append(bytes(self.data[start + 5 : start + 5 + length]))
            assert len(found[-1]) == length
            start += 5 + length
        return found


@dataclass
class Reader:
    """Parses received bytes into frames and records their content."""

    frames: list[Frame] = field(default_factory=list)
    """Frames that do not belong to streams."""
    streams: dict[int, Response] = field(default_factory=dict)
    decoder: Decoder = field(default_factory=Decoder)
    rest: bytearray = field(default_factory=bytearray)

    def feed(self, received: bytes) -> None:
        self.rest += received
        while len(self.rest) >= 9:
            frame, length = Frame.parse_frame_header(memoryview(bytes(self.rest[:9])))
            if len(self.rest) < 9 + length:
                return
            frame.parse_body(memoryview(bytes(self.rest[9 : 9 + length])))
            del self.rest[: 9 + length]
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        if not frame.stream_id:
            self.frames.append(frame)
            return
        if isinstance(frame, WindowUpdateFrame):
            return
        response = self.streams.setdefault(frame.stream_id, Response())
        assert not response.is_ended or isinstance(frame, RstStreamFrame)
        if isinstance(frame, HeadersFrame):
            pairs = self.decoder.decode(frame.data)
            response.blocks.append({str(name): str(value) for name, value in pairs})
        elif isinstance(frame, DataFrame):
            response.data += frame.data
        elif isinstance(frame, RstStreamFrame):
            response.reset = frame.error_code
        response.is_ended = response.is_ended or "END_STREAM" in frame.flags

    def of_type(self, kind: type[F]) -> list[F]:
        return [frame for frame in self.frames if isinstance(frame, kind)]

    @property
    def goaways(self) -> list[tuple[int, int]]:
        """Last stream id and error code of each GOAWAY."""
        return [(frame.last_stream_id, frame.error_code) for frame in self.of_type(GoAwayFrame)]

    @property
    def pings(self) -> list[PingFrame]:
        return self.of_type(PingFrame)


# --- over a socket --------------------------------------------------------------------------------


@dataclass
class RawClient(Reader):
    """One connection."""

    reader: asyncio.StreamReader = field(kw_only=True)
    writer: asyncio.StreamWriter = field(kw_only=True)
    is_at_end: bool = False

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    def pause_reading(self) -> None:
        """Leave received bytes in the socket."""
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    def resume_reading(self) -> None:
        cast("asyncio.Transport", self.writer.transport).resume_reading()

    async def until(self, condition: Callable[[], object]) -> None:
        """Read until ``condition`` holds."""
        while not condition():
            assert not self.is_at_end, "the server closed the connection"
            await self._read()

    async def at_end(self) -> None:
        """Read until the server closes the connection."""
        while not self.is_at_end:
            await self._read()

    async def response(self, stream_id: int) -> Response:
        """Read until the stream has ended."""
        response = self.streams.setdefault(stream_id, Response())
        await self.until(lambda: response.is_over)
        return response

    async def round_trip(self) -> None:
        """Return when the server has handled everything sent so far."""
        before = len(self.pings)
        self.send(ping(b"roundtrp"))
        await self.until(lambda: any(p.opaque_data == b"roundtrp" for p in self.pings[before:]))

    async def _read(self) -> None:
        try:
            received = await self.reader.read(1 << 20)
        except ConnectionError:
            received = b""
        self.is_at_end = not received
        self.feed(received)


@asynccontextmanager
async def connected(
    port: int,
    greeting: bytes = GREETING,
    *,
    tls: ssl.SSLContext | None = None,
    receive_buffer_bytes: int = 0,
) -> AsyncIterator[RawClient]:
    """Connect to a server on this host and send ``greeting``."""
    raw = socket.socket(proto=socket.IPPROTO_TCP)  # or asyncio leaves Nagle on
    raw.setblocking(False)
    if receive_buffer_bytes:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
    name = "localhost" if tls is not None else None
    reader, writer = await asyncio.open_connection(sock=raw, ssl=tls, server_hostname=name)
    client = RawClient(reader=reader, writer=writer)
    client.send(greeting)
    try:
        yield client
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


# --- what they talk to ----------------------------------------------------------------------------


@dataclass
class Echo:
    """Echoes each message, ends when the client does, and records other calls."""

    stream: Stream
    metadata: Mapping[str, str]
    messages: list[bytes] = field(default_factory=list)
    half_closes: int = 0
    resets: int = 0
    writables: int = 0

    def message(self, data: bytes) -> None:
        self.messages.append(data)
        self.stream.send(data)

    def half_closed(self) -> None:
        self.half_closes += 1
        self.stream.finish()

    def reset(self) -> None:
        self.resets += 1

    def writable(self) -> None:
        self.writables += 1


class Idle(Echo):
    """Sends nothing on its own."""

    def message(self, data: bytes) -> None:
        self.messages.append(data)

    def half_closed(self) -> None:
        self.half_closes += 1


@dataclass
class Serving:
    """A listening server and all handlers that it has opened."""

    server: Http2Server
    port: int
    handlers: list[Echo]


@asynccontextmanager
async def serving(
    handler: type[Echo] = Echo,
    *,
    settings: TransportSettings | None = None,
    tls: ssl.SSLContext | None = None,
    port: int = 0,
) -> AsyncIterator[Serving]:
    """Serve METHOD on a port of this host."""
    handlers: list[Echo] = []

    def opened(stream: Stream, metadata: Mapping[str, str]) -> Echo:
        handlers.append(handler(stream, metadata))
        return handlers[-1]

    server = Http2Server({METHOD: opened}, host="127.0.0.1", port=port, tls=tls, settings=settings)
    listening = await server.start()
    try:
        yield Serving(server, listening, handlers)
    finally:
        await server.stop(0)

"""The client side of one HTTP/2 connection (RFC 9113).

Frames are serialized by the endpoint picker's transport. The client announces a header table of
size 0, so that each block of response headers stands alone, and windows that a response does not
fill; it opens a stream for each request and keeps to the server's windows for the bodies.
"""

import asyncio
import struct
from collections.abc import Iterable
from typing import cast

from hpack import Decoder, HPACKError

from epp.lab.load.client import ResponseReceiver
from epp.lab.load.errors import RequestFailedError
from epp.lab.load.http2_frames import Frame, FrameReader
from epp.lab.load.http2_stream import ClientStream, header_frames
from epp.lab.results.record import ErrorKind
from epp.transport.http2 import ErrorCode, encode, frames
from epp.transport.http2.constants import (
    ACK,
    DEFAULT_WINDOW,
    END_STREAM,
    FRAME_HEADER,
    MAX_STREAM_ID,
    MAX_WINDOW,
    MIN_MAX_FRAME_BYTES,
    PREFACE,
    SETTING,
    FrameType,
    Setting,
)

_HELLO = (
    PREFACE
    + frames.settings(
        [
            (Setting.HEADER_TABLE_SIZE, 0),
            (Setting.ENABLE_PUSH, 0),
            (Setting.INITIAL_WINDOW_SIZE, MAX_WINDOW),
        ]
    )
    + frames.window_update(0, MAX_WINDOW - DEFAULT_WINDOW)
)
_REFILL_BYTES = MAX_WINDOW // 2
_INFORMATIONAL_BELOW = 200


class Http2ClientConnection(asyncio.Protocol):
    """A connection with many exchanges at a time."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        """Set when the connection has ended."""
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(self._handle)
        self._decoder = Decoder()
        self._streams: dict[int, ClientStream] = {}
        self._next_id = 1
        self._is_going_away = False
        self._settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._max_streams = MAX_STREAM_ID
        self._max_frame_bytes = MIN_MAX_FRAME_BYTES
        self._initial_window = DEFAULT_WINDOW
        self._window = DEFAULT_WINDOW
        self._received_bytes = 0
        self._window_waiters: list[asyncio.Future[None]] = []

    def free_streams(self, most: int) -> int:
        """Return how many more requests may be sent now, of at most `most` at a time."""
        if self._is_going_away or self.lost.is_set() or not self._settled.done():
            return 0
        return min(most, self._max_streams) - len(self._streams)

    async def ready(self) -> None:
        """Wait for the server's settings.

        Raises:
            RequestFailedError: The connection has ended, or is not HTTP/2.
        """
        await asyncio.shield(self._settled)

    async def exchange(
        self, fields: Iterable[tuple[bytes, bytes]], body: bytes, receiver: ResponseReceiver
    ) -> None:
        """Send a request and pass the response to `receiver`; return when it is complete.

        Cancellation resets the stream.

        Raises:
            RequestFailedError: RESET if the stream or the connection ended before the response was
                complete, MALFORMED if the response is not HTTP/2.
        """
        if self._transport is None or self._is_going_away:
            raise RequestFailedError(ErrorKind.RESET, "the connection is closed")
        stream_id = self._next_id
        self._next_id += 2
        self._is_going_away = self._next_id > MAX_STREAM_ID
        stream = self._streams[stream_id] = ClientStream(receiver, self._initial_window)
        try:
            await self._send(stream_id, stream, encode(fields), body)
            await stream.done
        except asyncio.CancelledError:
            self._reset(stream_id)
            raise
        finally:
            self._streams.pop(stream_id, None)
            if not stream.done.cancel() and not stream.done.cancelled():
                stream.done.exception()  # asyncio would log an error that nobody has awaited

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not isinstance: uvloop's transports do not inherit from asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(_HELLO)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except (ValueError, struct.error, HPACKError) as error:
            self._end(ErrorKind.MALFORMED, f"not valid HTTP/2: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(ErrorKind.RESET, str(exc or "closed before the end of the response"))
        self.lost.set()

    # Sending

    async def _send(self, stream_id: int, stream: ClientStream, block: bytes, body: bytes) -> None:
        parts = [header_frames(stream_id, block, is_end=not body)]
        view, at = memoryview(body), 0
        while at < len(body) and not stream.done.done():
            room = min(self._window, stream.window, self._max_frame_bytes, len(body) - at)
            if room <= 0:
                self._write(b"".join(parts))
                parts.clear()
                await self._wait_for_window(stream)
                continue
            self._window -= room
            stream.window -= room
            flags = END_STREAM if at + room == len(body) else 0
            head = FRAME_HEADER.pack(room << 8 | FrameType.DATA, flags, stream_id)
            parts += (head, bytes(view[at : at + room]))
            at += room
        self._write(b"".join(parts))
        if at < len(body):  # answered before the body was sent
            self._reset(stream_id)

    async def _wait_for_window(self, stream: ClientStream) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._window_waiters.append(waiter)
        await asyncio.wait((waiter, stream.done), return_when=asyncio.FIRST_COMPLETED)

    def _wake(self) -> None:
        for waiter in self._window_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._window_waiters.clear()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def _reset(self, stream_id: int) -> None:
        if stream_id in self._streams:
            self._write(frames.reset(stream_id, ErrorCode.CANCEL))

    # Receiving

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case FrameType.DATA:
                self._on_data(frame)
            case FrameType.HEADERS:
                self._on_headers(frame)
            case FrameType.RST_STREAM:
                self._on_reset(frame)
            case FrameType.SETTINGS:
                self._on_settings(frame)
            case FrameType.PING if not frame.flags & ACK:
                self._write(frames.ping(frame.payload, ACK))
            case FrameType.GOAWAY:
                self._on_goaway(frame)
            case FrameType.WINDOW_UPDATE:
                self._on_window_update(frame)

    def _on_data(self, frame: Frame) -> None:
        self._received_bytes += frame.size
        if self._received_bytes > _REFILL_BYTES:
            self._write(frames.window_update(0, self._received_bytes))
            self._received_bytes = 0
        stream = self._streams.get(frame.stream_id)
        if stream is None or stream.done.done():
            return  # reset by this side
        if frame.payload and not stream.receiver.on_body(frame.payload):
            self._reset(frame.stream_id)
            stream.finish()
        elif frame.flags & END_STREAM:
            stream.finish()

    def _on_headers(self, frame: Frame) -> None:
        fields = self._decoder.decode(frame.payload, raw=True)
        stream = self._streams.get(frame.stream_id)
        if stream is None or stream.done.done():
            return
        if not stream.has_headers:
            headers = {bytes(name): bytes(value) for name, value in fields}
            status = headers.get(b":status", b"")
            if not status.isdigit():
                self._reset(frame.stream_id)
                stream.fail(ErrorKind.MALFORMED, "a response without a status")
                return
            if int(status) < _INFORMATIONAL_BELOW:
                return
            stream.has_headers = True
            stream.receiver.on_headers(int(status), headers)
        if frame.flags & END_STREAM:
            stream.finish()

    def _on_reset(self, frame: Frame) -> None:
        stream = self._streams.get(frame.stream_id)
        code = int.from_bytes(frame.payload, "big")
        if stream is None:
            return
        if code == ErrorCode.NO_ERROR and stream.done.done():
            return  # the rest of the request is not wanted (§8.1)
        stream.fail(ErrorKind.RESET, f"the server reset the stream: {_code_name(code)}")

    def _on_settings(self, frame: Frame) -> None:
        if frame.flags & ACK:
            return
        for setting, value in SETTING.iter_unpack(frame.payload):
            if setting == Setting.MAX_CONCURRENT_STREAMS:
                self._max_streams = value
            elif setting == Setting.MAX_FRAME_SIZE:
                self._max_frame_bytes = value
            elif setting == Setting.INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream.window += value - self._initial_window
                self._initial_window = value
        self._write(frames.SETTINGS_ACK)
        if not self._settled.done():
            self._settled.set_result(None)
        self._wake()

    def _on_goaway(self, frame: Frame) -> None:
        self._is_going_away = True
        last_id, code = (int.from_bytes(frame.payload[at : at + 4], "big") for at in (0, 4))
        for stream_id, stream in self._streams.items():
            if stream_id > last_id:
                stream.fail(ErrorKind.RESET, f"the server is going away: {_code_name(code)}")

    def _on_window_update(self, frame: Frame) -> None:
        increment = int.from_bytes(frame.payload, "big") & MAX_WINDOW
        if not frame.stream_id:
            self._window += increment
        elif (stream := self._streams.get(frame.stream_id)) is not None:
            stream.window += increment
        self._wake()

    def _end(self, kind: ErrorKind, message: str) -> None:
        self._is_going_away = True
        if not self._settled.done():
            self._settled.set_exception(RequestFailedError(kind, message))
            self._settled.exception()  # nobody may be waiting
        for stream in self._streams.values():
            stream.fail(kind, message)
        self._wake()


def _code_name(code: int) -> str:
    return ErrorCode(code).name if code in set(ErrorCode) else f"error {code}"

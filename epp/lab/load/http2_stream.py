"""One request on an HTTP/2 connection: its state, and the frames of its headers."""

import asyncio

from epp.lab.load.client import ResponseReceiver
from epp.lab.load.errors import RequestFailedError
from epp.lab.results.record import ErrorKind
from epp.transport.http2 import frames
from epp.transport.http2.constants import (
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    MIN_MAX_FRAME_BYTES,
    FrameType,
)


class ClientStream:
    """The state of one exchange."""

    __slots__ = ("done", "has_headers", "receiver", "window")

    def __init__(self, receiver: ResponseReceiver, window: int) -> None:
        self.receiver = receiver
        self.window = window
        """Bytes of the request body that the server accepts."""
        self.has_headers = False
        """Whether the response headers have arrived."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self) -> None:
        """End the exchange; idempotent."""
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, kind: ErrorKind, message: str) -> None:
        """End the exchange with an error, unless it has ended."""
        if not self.done.done():
            self.done.set_exception(RequestFailedError(kind, message))


def header_frames(stream_id: int, block: bytes, *, is_end: bool) -> bytes:
    """Return HEADERS, and CONTINUATION if the block needs it."""
    end = END_STREAM if is_end else 0
    if len(block) <= MIN_MAX_FRAME_BYTES:
        return frames.headers(stream_id, block, END_HEADERS | end)
    parts = [frames.headers(stream_id, block[:MIN_MAX_FRAME_BYTES], end)]
    for at in range(MIN_MAX_FRAME_BYTES, len(block), MIN_MAX_FRAME_BYTES):
        part = block[at : at + MIN_MAX_FRAME_BYTES]
        flags = END_HEADERS if at + len(part) == len(block) else 0
        kind = len(part) << 8 | FrameType.CONTINUATION
        parts.append(FRAME_HEADER.pack(kind, flags, stream_id) + part)
    return b"".join(parts)

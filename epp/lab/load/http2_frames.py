"""Splits an HTTP/2 server's bytes into frames with complete header blocks (RFC 9113 §4, §6)."""

from collections.abc import Callable
from typing import NamedTuple

from epp.transport.http2.constants import (
    END_HEADERS,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    MAX_STREAM_ID,
    MIN_MAX_FRAME_BYTES,
    PADDED,
    PRIORITY_BYTES,
    PRIORITY_FIELDS,
    FrameType,
)

_MAX_BLOCK_BYTES = 1 << 20
_SIZES = {FrameType.RST_STREAM: 4, FrameType.PING: 8, FrameType.WINDOW_UPDATE: 4}


class Frame(NamedTuple):
    """A frame without padding and priority; HEADERS with the complete block."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes
    size: int
    """Bytes that count against the windows."""


class FrameReader:
    """Calls `handle` for each complete frame."""

    def __init__(self, handle: Callable[[Frame], None]) -> None:
        self._handle = handle
        self._rest = b""
        self._is_first = True
        self._block: Frame | None = None

    def feed(self, data: bytes) -> None:
        """Handle bytes.

        Raises:
            ValueError: They are not HTTP/2.
        """
        if self._rest:
            data = self._rest + data
        at = 0
        while len(data) - at >= FRAME_HEADER_BYTES:
            word, flags, stream_id = FRAME_HEADER.unpack_from(data, at)
            size, kind = word >> 8, word & 0xFF
            if self._is_first and kind != FrameType.SETTINGS:
                raise ValueError(f"the server begins with {data[:24]!r}")
            self._is_first = False
            if size > MIN_MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            end = at + FRAME_HEADER_BYTES + size
            if end > len(data):
                break
            payload = data[at + FRAME_HEADER_BYTES : end]
            at = end
            self._on_frame(Frame(kind, flags, stream_id & MAX_STREAM_ID, payload, size))
        self._rest = data[at:]

    def _on_frame(self, frame: Frame) -> None:
        kind = frame.kind
        if (self._block is not None) != (kind == FrameType.CONTINUATION):
            raise ValueError("a header block was interrupted")
        if kind in _SIZES and frame.size != _SIZES[FrameType(kind)]:
            raise ValueError(f"{FrameType(kind).name} of {frame.size} bytes")
        if kind in {FrameType.DATA, FrameType.HEADERS}:
            frame = frame._replace(payload=_content(frame))
        elif self._block is not None:
            whole = self._block.payload + frame.payload
            if len(whole) > _MAX_BLOCK_BYTES:
                raise ValueError(f"a header block of more than {_MAX_BLOCK_BYTES} bytes")
            frame = self._block._replace(
                payload=whole, flags=self._block.flags | frame.flags & END_HEADERS
            )
        if frame.kind == FrameType.HEADERS and not frame.flags & END_HEADERS:
            self._block = frame
            return
        self._block = None
        self._handle(frame)


def _content(frame: Frame) -> bytes:
    payload = frame.payload
    if frame.flags & PADDED:
        if not payload or payload[0] >= len(payload):
            raise ValueError("padding longer than its frame")
        payload = payload[1 : len(payload) - payload[0]]
    if frame.kind == FrameType.HEADERS and frame.flags & PRIORITY_FIELDS:
        payload = payload[PRIORITY_BYTES:]
    return payload

"""Serializes the frames that the server sends (RFC 9113 §6)."""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from epp.transport.http2.constants import ACK, FRAME_HEADER, SETTING, ErrorCode, FrameType

_ONE_NUMBER: Final = Struct(">IBII")
_TWO_NUMBERS: Final = Struct(">IBIII")

SETTINGS_ACK: Final = FRAME_HEADER.pack(FrameType.SETTINGS, ACK, 0)


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """Return SETTINGS with ``values``."""
    payload = b"".join(SETTING.pack(setting, value) for setting, value in values)
    return FRAME_HEADER.pack(len(payload) << 8 | FrameType.SETTINGS, 0, 0) + payload


def ping(payload: bytes, flags: int = 0) -> bytes:
    """Return PING; ``payload`` has 8 octets."""
    return FRAME_HEADER.pack(8 << 8 | FrameType.PING, flags, 0) + payload


def reset(stream_id: int, code: int) -> bytes:
    """Return RST_STREAM."""
    return _ONE_NUMBER.pack(4 << 8 | FrameType.RST_STREAM, 0, stream_id, code)


def window_update(stream_id: int, increment: int) -> bytes:
    """Return WINDOW_UPDATE; stream 0 stands for the connection."""
    return _ONE_NUMBER.pack(4 << 8 | FrameType.WINDOW_UPDATE, 0, stream_id, increment)


def goaway(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    """Return GOAWAY with ``reason`` as its debug data."""
    debug = reason.encode()
    head = _TWO_NUMBERS.pack((8 + len(debug)) << 8 | FrameType.GOAWAY, 0, 0, last_stream_id, code)
    return head + debug


def headers(stream_id: int, block: bytes, flags: int) -> bytes:
    """Return HEADERS; ``block`` must fit into the smallest MAX_FRAME_SIZE, 16 KiB."""
    return FRAME_HEADER.pack(len(block) << 8 | FrameType.HEADERS, flags, stream_id) + block

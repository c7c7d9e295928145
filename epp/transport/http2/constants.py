"""Constants of HTTP/2 (RFC 9113 §6, §7, §11)."""

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The client's connection preface (§3.4)."""

FRAME_HEADER: Final = Struct(">IBI")
"""Length (24 bits) and type (8 bits) in one number, flags, stream id: 9 octets (§4.1)."""
FRAME_HEADER_BYTES: Final = 9

SETTING: Final = Struct(">HI")
"""Identifier and value in a SETTINGS frame (§6.5.1)."""
PRIORITY_BYTES: Final = 5
"""Size of a PRIORITY payload, and of the same fields in HEADERS (§6.2, §6.3)."""

MAX_STREAM_ID: Final = (1 << 31) - 1
MAX_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = 65_535
MIN_MAX_FRAME_BYTES: Final = 1 << 14
MAX_MAX_FRAME_BYTES: Final = (1 << 24) - 1

# Flags. ACK and END_STREAM share a bit, but not a frame type.
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FIELDS: Final = 0x20


class FrameType(IntEnum):
    """Frame types (§6)."""

    DATA = 0x0
    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PUSH_PROMISE = 0x5
    PING = 0x6
    GOAWAY = 0x7
    WINDOW_UPDATE = 0x8
    CONTINUATION = 0x9


class Setting(IntEnum):
    """Parameters of a SETTINGS frame (§6.5.2)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class ErrorCode(IntEnum):
    """Codes of RST_STREAM and GOAWAY (§7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD

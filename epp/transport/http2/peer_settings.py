"""The peer's SETTINGS (RFC 9113 §6.5.2)."""

from epp.transport.http2.constants import (
    DEFAULT_WINDOW,
    MAX_MAX_FRAME_BYTES,
    MAX_WINDOW,
    MIN_MAX_FRAME_BYTES,
    SETTING,
    ErrorCode,
    Setting,
)
from epp.transport.http2.errors import ConnectionFault


class PeerSettings:
    """The settings that limit what the server sends.

    The others do not apply: header blocks sent use no dynamic table (HEADER_TABLE_SIZE), the server
    pushes nothing (MAX_CONCURRENT_STREAMS, ENABLE_PUSH), and its header lists are far below any
    MAX_HEADER_LIST_SIZE.
    """

    __slots__ = ("initial_window_bytes", "max_frame_bytes")

    def __init__(self) -> None:
        self.initial_window_bytes = DEFAULT_WINDOW
        self.max_frame_bytes = MIN_MAX_FRAME_BYTES

    def update(self, payload: bytes) -> int:
        """Apply the payload of a SETTINGS frame; return the number of settings in it.

        Raises:
            ConnectionFault: A value is invalid.
        """
        for setting, value in SETTING.iter_unpack(payload):
            if setting == Setting.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise ConnectionFault(
                        ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE {value}"
                    )
                self.initial_window_bytes = value
            elif setting == Setting.MAX_FRAME_SIZE:
                if not MIN_MAX_FRAME_BYTES <= value <= MAX_MAX_FRAME_BYTES:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE {value}")
                self.max_frame_bytes = value
            elif setting == Setting.ENABLE_PUSH and value > 1:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
        return len(payload) // SETTING.size

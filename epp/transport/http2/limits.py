"""What one connection may cost, and what it is told of that."""

from dataclasses import dataclass

from epp.transport.http2.constants import (
    MAX_MAX_FRAME_BYTES,
    MAX_STREAM_ID,
    MAX_WINDOW,
    MIN_MAX_FRAME_BYTES,
)
from epp.transport.limits import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one connection; each has a counter of the times it struck."""

    max_concurrent_streams: int = 10_000
    """Streams open at once; announced, and above it streams are refused."""
    max_frame_bytes: int = MIN_MAX_FRAME_BYTES
    """Payload of one frame; announced. The least, so that no stream holds up others for long."""
    stream_window_bytes: int = 256 << 10
    """Receive window of each stream; announced. Streams with long bodies stop here, so that they do
    not use up the connection's window, for which a small request would have to wait."""
    connection_window_bytes: int = 16 << 20
    """Receive window of all streams together."""
    max_header_list_bytes: int = 16 << 10
    """Decoded request headers, 32 bytes a field on top (RFC 9113 §6.5.2); announced; above it 431.
    Above four times as much, decoded or not, the connection ends: nobody needs that by mistake."""
    writable_below_bytes: int = 1 << 20
    """A stream with more waiting is not writable, and its receive window is not renewed."""
    max_waiting_stream_bytes: int = 80 << 20
    """Bytes that wait on one stream for the peer's window; above it the stream is ended."""
    max_buffered_bytes: int = 512 << 20
    """Messages that are not whole yet, and answers that wait, of one connection together; above it
    the stream that adds to them is ended. Messages take turns from a quarter of it on; the rest has
    to have room for the windows of all streams with long ones, twice, and for the longest one."""
    write_burst_bytes: int = 1 << 20
    """DATA written at once, before the socket is asked whether it has room."""
    max_control_output_bytes: int = 64 << 10
    """Answers to PING and SETTINGS for a peer that does not read; above it we do not either."""
    control_frame_budget: int = 10_000
    """Frames that move nothing (PING, SETTINGS, PRIORITY, CONTINUATION, empty DATA, …) between two
    calls of ``forgive``; above it the connection ends (CVE-2019-9512, -9515, -9518, 2024-27316)."""
    early_reset_budget: int = 10_000
    """Streams that a client may reset before any message was sent on them, beyond those that were
    answered; above it the connection ends (CVE-2023-44487)."""
    stream_fault_budget: int = 1_000
    """Streams that a client may make us reset, beyond those that were answered (CVE-2025-8671)."""

    def __post_init__(self) -> None:
        """Refuse what could never work.

        Raises:
            ValueError: A limit is out of its range.
        """
        require_positive(self)
        if not MIN_MAX_FRAME_BYTES <= self.max_frame_bytes <= MAX_MAX_FRAME_BYTES:
            raise ValueError(
                f"max_frame_bytes must be {MIN_MAX_FRAME_BYTES} to {MAX_MAX_FRAME_BYTES}"
            )
        if max(self.stream_window_bytes, self.connection_window_bytes) > MAX_WINDOW:
            raise ValueError(f"a window must be at most {MAX_WINDOW} bytes")
        if self.max_concurrent_streams > MAX_STREAM_ID:
            raise ValueError(f"max_concurrent_streams must be at most {MAX_STREAM_ID}")
        if self.max_header_list_bytes > MAX_MAX_FRAME_BYTES:
            raise ValueError(f"max_header_list_bytes must be at most {MAX_MAX_FRAME_BYTES}")

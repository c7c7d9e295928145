"""Limits of a connection."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from epp.transport.http2.constants import (
    MAX_MAX_FRAME_BYTES,
    MAX_STREAM_ID,
    MAX_WINDOW,
    MIN_MAX_FRAME_BYTES,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def require_positive(*holders: "DataclassInstance") -> None:
    """Check all fields of some dataclasses.

    Raises:
        ValueError: A field is not above 0.
    """
    for holder in holders:
        for each in fields(holder):
            if getattr(holder, each.name) <= 0:
                raise ValueError(f"{each.name} must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one connection; a counter shows how often each one was reached.

    "Announced" means that the client gets the limit in SETTINGS.
    """

    max_concurrent_streams: int = 10_000
    """Open streams; announced. Streams above it are refused."""
    max_frame_bytes: int = MIN_MAX_FRAME_BYTES
    """Payload of one frame; announced. The minimum of HTTP/2, so that one stream's frame does not
    delay the others for long."""
    stream_window_bytes: int = 256 << 10
    """Receive window of each stream; announced. It stops streams with long bodies before they use
    up the connection's window, which small requests need, too."""
    connection_window_bytes: int = 16 << 20
    """Receive window of all streams together."""
    max_header_list_bytes: int = 16 << 10
    """Decoded request headers, plus 32 bytes a field (RFC 9113 §6.5.2); announced. Longer ones are
    answered with 431. Above four times as much, decoded or not, the connection ends: no client
    exceeds that by mistake."""
    writable_below_bytes: int = 1 << 20
    """Response bytes waiting on a stream at which it becomes unwritable, and its receive window is
    not renewed."""
    max_waiting_stream_bytes: int = 80 << 20
    """Response bytes waiting on one stream for the peer's window; above it the stream ends."""
    max_buffered_bytes: int = 512 << 20
    """Incomplete messages and waiting responses of one connection; the stream that exceeds it ends.
    From a quarter of it on, one stream at a time receives a long message; the rest must have room
    for twice the windows of all streams with long messages, and for the longest message."""
    write_burst_bytes: int = 1 << 20
    """DATA to write before checking whether the socket has room."""
    max_control_output_bytes: int = 64 << 10
    """Replies to PING and SETTINGS for a peer that does not read; above it reading pauses."""
    control_frame_budget: int = 10_000
    """Frames that do not advance a request (PING, SETTINGS, PRIORITY, CONTINUATION, empty DATA, …)
    in about a second; above it the connection ends (CVE-2019-9512, -9515, -9518, 2024-27316)."""
    early_reset_budget: int = 10_000
    """Streams that a client may reset before any message was sent on them, in excess of answered
    streams; above it the connection ends (CVE-2023-44487)."""
    stream_fault_budget: int = 1_000
    """Streams that the server may have to reset because of stream errors, in excess of answered
    streams; above it the connection ends (CVE-2025-8671)."""

    def __post_init__(self) -> None:
        """Validate the limits.

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

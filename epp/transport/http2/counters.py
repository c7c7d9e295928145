"""What happened on all connections of a server, as plain numbers."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Http2Counters:
    """Counts since the start; read by whoever exports metrics."""

    streams_opened: int = 0
    streams_answered: int = 0
    """Streams on which at least one message was sent before they ended."""
    streams_refused: int = 0
    """Beyond the limit of concurrent streams."""
    streams_reset_early: int = 0
    """Reset by the client before anything was sent."""
    stream_faults: int = 0
    """Reset by us because the client broke a rule of the stream."""
    header_lists_refused: int = 0
    """Answered 431."""
    streams_filled: int = 0
    """How often so much waited on a stream that it was not writable."""
    connection_faults: Counter[str] = field(default_factory=Counter)
    """Connections ended by GOAWAY, by the name of the error code."""

"""What happened in the calls of a server, as plain numbers."""

from dataclasses import dataclass


@dataclass(slots=True)
class GrpcCounters:
    """Counts since the start; read by whoever exports metrics."""

    calls_refused: int = 0
    """Unknown method, wrong content-type, unknown compression."""
    messages_refused: int = 0
    """Too long, cut short, not to be decompressed; each ended its call."""
    answers_refused: int = 0
    """Too long to be sent; each ended its call."""
    calls_overflowed: int = 0
    """Ended because too much waited for a peer that did not read."""
    deadlines_exceeded: int = 0
    handler_failures: int = 0
    """Exceptions of a handler."""

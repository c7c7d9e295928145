"""What each port can say of its connections."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFigures:
    """The connections of one port: now, and counts since its start."""

    connections: int
    limit: int
    evicted: int
    """Closed for a newcomer, because the port was full."""
    refused: int
    """Newcomers turned away, because no connection could be closed for them."""
    timed_out: int
    """Closed because the client took too long."""
    accept_pauses: int
    """How often accepting paused because the process had no descriptor left."""

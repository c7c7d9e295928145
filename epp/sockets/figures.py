"""Connection statistics of a port."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFigures:
    """Current connections of one port, and counts since its start."""

    connections: int
    limit: int
    evicted: int
    """Connections closed to admit a new one on a full port."""
    refused: int
    """New connections refused, because none could be evicted for them."""
    timed_out: int
    """Closed because the client took too long."""
    accept_pauses: int
    """How often accepting paused because the process had no descriptor left."""

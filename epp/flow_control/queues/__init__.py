"""Queues of waiting requests: flows in priority bands, their limits and timeouts."""

from epp.flow_control.queues.flows import (
    Band,
    Candidate,
    Flow,
    InFlight,
    NoPlaceError,
    Outcome,
    QueuedRequest,
    Revocable,
)

__all__ = [
    "Band",
    "Candidate",
    "Flow",
    "InFlight",
    "NoPlaceError",
    "Outcome",
    "QueuedRequest",
    "Revocable",
]

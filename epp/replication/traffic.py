"""Counts of the messages between replicas."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Dropped(StrEnum):
    """Why a message was lost or ignored."""

    NOT_QUEUED = "not-queued"
    """Sent faster than the carrier could carry it, or while it was disconnected."""
    TOO_LONG = "too-long"
    MALFORMED = "malformed"
    OTHER_VERSION = "other-version"
    """From a replica with another version of the messages."""
    SAME_NAME = "same-name"
    """From another process that has this replica's name."""
    REPLACED = "replaced"
    """From a process that another one with its name has replaced."""
    OVERTAKEN = "overtaken"
    TOO_MANY_REPLICAS = "too-many-replicas"
    LOST = "lost"
    """Missing in the sequence of a replica."""


@dataclass(slots=True, eq=False)
class Traffic:
    """Messages since the start."""

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    """Bytes of messages from others that were not ignored."""
    dropped: Counter[Dropped] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class PeerReading:
    """The values that metrics show of one other replica."""

    age_seconds: float
    in_flight: int

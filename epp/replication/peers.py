"""The known other replicas, and which of their messages are accepted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from epp.replication.messages import VERSION, Head, Message
from epp.replication.traffic import Dropped

_log = structlog.get_logger(__name__)

MAX_PEERS: Final = 64
"""Further replicas are ignored: each costs memory, messages and metrics."""
_MOST_IGNORED: Final = 1000
"""Ignored replicas that the log names: each costs memory until this one ends."""


@dataclass(slots=True, eq=False)
class Peer:
    """Another replica."""

    name: str
    incarnation: int
    heard_at: float
    """When its last message arrived, in seconds of the clock."""
    sequence: int = 0
    """Sequence number of its last message to all."""


class Peers:
    """All other replicas, by name.

    A message of an older incarnation than the known one is from a process that has been replaced,
    and one with an old sequence number has been overtaken: both are ignored.

    Args:
        own_name: Name of this replica.
    """

    def __init__(self, own_name: str) -> None:
        self._own_name = own_name
        self._by_name: dict[str, Peer] = {}
        self._ignored: set[str] = set()
        """Names of senders whose messages are ignored, which has been logged."""

    def __iter__(self) -> Iterator[Peer]:
        return iter(tuple(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Peer | None:
        """Return a replica by name; None if it is unknown."""
        return self._by_name.get(name)

    def remove(self, name: str) -> bool:
        """Forget a replica; return whether it was known."""
        return self._by_name.pop(name, None) is not None

    def why_ignored(self, head: Head) -> Dropped | None:
        """Return why a message is ignored; None if it is not. The log names each sender once."""
        if head.version != VERSION:
            self._note_ignored(head, "its messages have another version")
            return Dropped.OTHER_VERSION
        if head.sender == self._own_name:
            self._note_ignored(head, "it has the name of this replica; see --replica-name")
            return Dropped.SAME_NAME
        peer = self._by_name.get(head.sender)
        if peer is not None and head.incarnation < peer.incarnation:
            return Dropped.REPLACED
        if peer is None and len(self._by_name) >= MAX_PEERS:
            self._note_ignored(head, f"{MAX_PEERS} others are known already")
            return Dropped.TOO_MANY_REPLICAS
        return None

    def _note_ignored(self, head: Head, why: str) -> None:
        if head.sender not in self._ignored and len(self._ignored) < _MOST_IGNORED:
            self._ignored.add(head.sender)
            _log.warning("replica is ignored", replica=head.sender, reason=why)

    def add(self, message: Message, now: float) -> Peer:
        """Add the sender of a message as a new replica."""
        peer = Peer(message.sender, message.incarnation, now)
        peer.sequence = message.sequence - 1 if message.sequence else 0
        self._by_name[peer.name] = peer
        return peer

    def expired(self, now: float, lease_seconds: float) -> list[Peer]:
        """Return the replicas that were silent for longer than their lease."""
        return [each for each in self if now - each.heard_at > lease_seconds]

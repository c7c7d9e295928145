"""The known other replicas, and which of their messages are accepted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from epp.replication.messages import Message

MAX_PEERS: Final = 64
"""Further replicas are ignored: each costs memory, messages and metrics."""


@dataclass(slots=True, eq=False)
class Peer:
    """Another replica."""

    name: str
    incarnation: int
    heard_at: float
    """When its last message arrived, in seconds of the clock."""
    sequence: int = 0
    """Sequence number of its last message to all."""
    is_new: bool = True
    """Whether it has not yet reported all its requests in flight."""


class Peers:
    """All other replicas, by name.

    A message of an older incarnation than the known one is from a process that has been replaced,
    and one with an old sequence number has been overtaken: both are ignored.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Peer] = {}

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

    def has_room(self) -> bool:
        """Return whether another replica may be added."""
        return len(self._by_name) < MAX_PEERS

    def add(self, message: Message, now: float) -> Peer:
        """Add the sender of a message as a new replica."""
        peer = Peer(message.sender, message.incarnation, now)
        peer.sequence = message.sequence - 1 if message.sequence else 0
        self._by_name[peer.name] = peer
        return peer

    def expired(self, now: float, lease_seconds: float) -> list[Peer]:
        """Return the replicas that were silent for longer than their lease."""
        return [each for each in self if now - each.heard_at > lease_seconds]

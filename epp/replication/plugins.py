"""Contracts of plugins that share state with the same plugin in other replicas.

There are two kinds of state. Contributions are the parts that each replica has in a number that
changes constantly, such as tokens in flight: the whole part is sent again after each change, so a
lost message does no harm, and it is dropped when its replica leaves. Facts are observations that
stay true without the replica, such as that an endpoint has cached a prompt: each is sent once, and
a replica that joins gets the facts that another one remembers.

Plugins encode their state themselves; it must contain no prompts, only hashes of them. They
identify endpoints by :func:`replica_key`. A plugin that cannot decode received state raises
ValueError, and the state is dropped; it may come from a replica of another version. No method is
called while replicas share no state.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from xxhash import xxh3_64_intdigest

from epp.scheduling import Endpoint, Plugin

__all__ = ["CrossReplicaContributor", "FactSharer", "replica_key"]


def replica_key(endpoint: Endpoint) -> int:
    """Return 64 bits that identify an endpoint in all replicas.

    Another server that takes over its name has another key.
    """
    identity = f"{endpoint.name}\0{endpoint.address}\0{endpoint.incarnation}"
    return xxh3_64_intdigest(identity.encode())


class CrossReplicaContributor(Plugin):
    """Holds one part of a value, such as tokens in flight; other replicas hold the other parts.

    Attributes:
        contributes: Whether this instance takes part.
        is_of_queues: Whether, of several workers, only the one that owns the queues of flow control
            sends its part, because it counts the requests of all.
    """

    contributes: bool = True
    is_of_queues: ClassVar[bool] = False

    @abstractmethod
    def contribution(self) -> bytes:
        """Return this replica's whole part; called up to 50 times a second."""

    @abstractmethod
    def receive(self, replica: str, contribution: bytes) -> None:
        """Keep the part of another replica in place of its previous one.

        Raises:
            ValueError: It cannot be decoded.
        """

    @abstractmethod
    def replica_left(self, replica: str) -> None:
        """Forget the part of a replica that has ended or cannot be reached."""


class FactSharer(Plugin):
    """Shares its observations with other replicas, and learns theirs.

    Attributes:
        max_all_facts_bytes: Limit on :meth:`all_facts`.
    """

    max_all_facts_bytes: ClassVar[int] = 2 << 20

    @abstractmethod
    def start_sharing(self) -> None:
        """Remember new facts for :meth:`new_facts` from now on; called once."""

    @abstractmethod
    def new_facts(self, max_bytes: int) -> bytes:
        """Return facts that were not returned before, at most ``max_bytes``; b"" for none.

        Memory for facts that are not fetched must be bounded: the oldest are dropped.
        """

    @abstractmethod
    def all_facts(self, max_bytes: int) -> Iterator[bytes]:
        """Return all known facts, for a replica that joins, in parts of at most ``max_bytes``.

        Other methods are called between two parts.
        """

    @abstractmethod
    def learn(self, facts: bytes) -> None:
        """Learn facts of another replica; they are not passed on.

        Raises:
            ValueError: They cannot be decoded.
        """

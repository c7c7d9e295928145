"""What plugins share with the same plugin of other replicas.

Two contracts, for two kinds of state. Numbers that change all the time, each replica having its own
part of them (tokens in flight), are contributions: the whole part is sent again whenever it has
changed, so a lost message does no harm, and it goes when its replica does. What a replica has
observed, and what stays true without it (an endpoint has cached a prompt), are facts: each is sent
once, and a replica that joins gets those that another one remembers.

Plugins encode their state themselves; it must contain no prompts, only hashes of them. They name
endpoints by :func:`replica_key`. A plugin that does not understand what it gets raises ValueError,
and the state is dropped; it may come from a replica of another version. Nothing is called while
replicas share no state.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from xxhash import xxh3_64_intdigest

from epp.scheduling import Endpoint, Plugin

__all__ = ["CrossReplicaContributor", "FactSharer", "replica_key"]


def replica_key(endpoint: Endpoint) -> int:
    """Return 64 bits that name an endpoint in all replicas.

    They differ for another server that takes over its name.
    """
    identity = f"{endpoint.name}\0{endpoint.address}\0{endpoint.incarnation}"
    return xxh3_64_intdigest(identity.encode())


class CrossReplicaContributor(Plugin):
    """Has a part of a value whose other parts are in other replicas, such as tokens in flight.

    Attributes:
        contributes: Whether this instance takes part.
        is_of_queues: Whether, of several workers, only the one that owns the queues of flow control
            tells its part, because it counts the requests of all.
    """

    contributes: bool = True
    is_of_queues: ClassVar[bool] = False

    @abstractmethod
    def contribution(self) -> bytes:
        """Return this replica's part, as a whole; called up to 50 times a second."""

    @abstractmethod
    def receive(self, replica: str, contribution: bytes) -> None:
        """Take the part of another replica, in place of the one before.

        Raises:
            ValueError: It cannot be understood.
        """

    @abstractmethod
    def replica_left(self, replica: str) -> None:
        """Forget the part of a replica, which has ended or cannot be reached."""


class FactSharer(Plugin):
    """Tells other replicas what it has observed, and learns what they have.

    Attributes:
        max_told_bytes: Limit on :meth:`all_facts`.
    """

    max_told_bytes: ClassVar[int] = 2 << 20

    @abstractmethod
    def start_telling(self) -> None:
        """Remember new facts for :meth:`new_facts` from now on; called once."""

    @abstractmethod
    def new_facts(self, max_bytes: int) -> bytes:
        """Return facts that were not returned before, at most ``max_bytes``; b"" for none.

        Memory for facts that are not taken must be bounded: the oldest are dropped.
        """

    @abstractmethod
    def all_facts(self, max_bytes: int) -> Iterator[bytes]:
        """Return what is known, for a replica that joins: parts of at most ``max_bytes``.

        Other methods are called between two parts.
        """

    @abstractmethod
    def learn(self, facts: bytes) -> None:
        """Learn facts of another replica; they are not told again.

        Raises:
            ValueError: They cannot be understood.
        """

"""The facts that replicas which have joined get from this one: in parts, one replica after another.

The facts of a plugin may be 2 MiB, and encoding them all at once would delay requests.
"""

from collections.abc import Callable, Iterator

from epp.replication.messages import PoolState


class FactReplies:
    """Replicas that wait for facts, and how far the first of them has got; false if there is none.

    Args:
        all_facts: Returns all facts, in parts.
    """

    def __init__(self, all_facts: Callable[[], Iterator[PoolState]]) -> None:
        self._all_facts = all_facts
        self._waiting: dict[str, None] = {}
        """Their names, in order."""
        self._parts: Iterator[PoolState] = iter(())
        """The parts that the first of them has not got yet."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def first(self) -> str:
        """Name of the replica whose turn it is."""
        return next(iter(self._waiting))

    def add(self, name: str) -> None:
        """Send facts to a replica, too; does nothing if it waits already."""
        if not self._waiting:
            self._parts = self._all_facts()
        self._waiting.setdefault(name)

    def next_part(self) -> PoolState | None:
        """Return the next part for the first replica; None after its last, which ends its turn."""
        part = next(self._parts, None)
        if part is None:
            self.end_first()
        return part

    def end_first(self) -> None:
        """Go on to the next replica."""
        del self._waiting[self.first]
        self._parts = self._all_facts()

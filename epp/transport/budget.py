"""What may be held in memory for one connection, and for all of them, by everything that holds it.

A quarter of either is the mark from which long messages take turns (:mod:`.grpc.receive_throttle`).
"""

from typing import Protocol

_CROWDED_SHARE = 4


class Budget(Protocol):
    """The whole that a :class:`ByteBudget` is a part of."""

    @property
    def is_crowded(self) -> bool:
        """Whether so much is in use that whatever can wait should wait."""

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` bytes more may be used."""

    def has_room_for_long(self, size: int) -> bool:
        """Return whether ``size`` bytes more may be used for a long message of a peer's."""

    def take(self, size: int) -> None:
        """Use ``size`` bytes more."""

    def give_back(self, size: int) -> None:
        """Use ``size`` bytes no more."""


class ByteBudget:
    """A number of bytes, and how many of them are in use; part of a larger budget, if there is one.

    Args:
        limit_bytes: Most that may be in use.
        whole: What this one is a part of.
    """

    __slots__ = ("_crowded_bytes", "_whole", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int, whole: Budget | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._crowded_bytes = limit_bytes // _CROWDED_SHARE
        self._whole = whole

    def has_room_for_long(self, size: int) -> bool:
        """Return whether ``size`` bytes more may be used for a long message of a peer's."""
        whole = self._whole
        return self.used_bytes + size <= self.limit_bytes and (
            whole is None or whole.has_room_for_long(size)
        )

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` bytes more may be used."""
        whole = self._whole
        return self.used_bytes + size <= self.limit_bytes and (
            whole is None or whole.has_room(size)
        )

    @property
    def is_crowded(self) -> bool:
        """Whether so much is in use that whatever can wait should wait."""
        whole = self._whole
        return self.used_bytes > self._crowded_bytes or (whole is not None and whole.is_crowded)

    def take(self, size: int) -> None:
        """Use ``size`` bytes more."""
        self.used_bytes += size
        if self._whole is not None:
            self._whole.take(size)

    def give_back(self, size: int) -> None:
        """Use ``size`` bytes no more."""
        self.used_bytes -= size
        if self._whole is not None:
            self._whole.give_back(size)

    def part(self) -> None:
        """Be no part of the larger budget any more: the connection is gone with what it held."""
        whole, self._whole = self._whole, None
        if whole is not None:
            whole.give_back(self.used_bytes)

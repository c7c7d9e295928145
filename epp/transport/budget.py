"""Memory budgets of one connection and of all connections together."""

from typing import Protocol

_CROWDED_SHARE = 4


class Budget(Protocol):
    """The larger budget that a :class:`ByteBudget` is part of."""

    @property
    def is_crowded(self) -> bool:
        """Whether so much is in use that deferrable work should wait."""

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` more bytes may be used."""

    def has_room_for_long(self, size: int) -> bool:
        """Return whether ``size`` more bytes may be used for a long message of a peer."""

    def take(self, size: int) -> None:
        """Count ``size`` more bytes as used."""

    def give_back(self, size: int) -> None:
        """Count ``size`` bytes as no longer used."""


class ByteBudget:
    """A limit on bytes in use; optionally part of a larger budget, which counts them, too.

    Args:
        limit_bytes: Maximum number of bytes in use. From a quarter of it on, the budget is crowded:
            long messages are received one at a time (:mod:`.grpc.receive_throttle`).
        whole: The larger budget.
    """

    __slots__ = ("_crowded_bytes", "_whole", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int, whole: Budget | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._crowded_bytes = limit_bytes // _CROWDED_SHARE
        self._whole = whole

    def has_room_for_long(self, size: int) -> bool:
        """Return whether ``size`` more bytes may be used for a long message of a peer."""
        whole = self._whole
        return self.used_bytes + size <= self.limit_bytes and (
            whole is None or whole.has_room_for_long(size)
        )

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` more bytes may be used."""
        whole = self._whole
        return self.used_bytes + size <= self.limit_bytes and (
            whole is None or whole.has_room(size)
        )

    @property
    def is_crowded(self) -> bool:
        """Whether so much is in use that deferrable work should wait."""
        whole = self._whole
        return self.used_bytes > self._crowded_bytes or (whole is not None and whole.is_crowded)

    def take(self, size: int) -> None:
        """Count ``size`` more bytes as used."""
        self.used_bytes += size
        if self._whole is not None:
            self._whole.take(size)

    def give_back(self, size: int) -> None:
        """Count ``size`` bytes as no longer used."""
        self.used_bytes -= size
        if self._whole is not None:
            self._whole.give_back(size)

    def detach(self) -> None:
        """Give all used bytes back to the larger budget, because the connection has closed."""
        whole, self._whole = self._whole, None
        if whole is not None:
            whole.give_back(self.used_bytes)

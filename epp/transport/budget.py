"""What one connection may hold in memory, shared by everything that holds bytes for it."""


class ByteBudget:
    """A number of bytes, and how many of them are in use."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` bytes more may be used."""
        return self.used_bytes + size <= self.limit_bytes

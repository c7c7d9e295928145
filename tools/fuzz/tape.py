"""Decisions derived from the bytes of a fuzz input; a small change of it changes few decisions."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Tape:
    """Bytes that are consumed from the front; zeros follow the last one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_used_up(self) -> bool:
        """Whether no byte is left."""
        return self._at >= len(self._data)

    def number(self, below: int) -> int:
        """Return a number from 0 to ``below`` - 1."""
        size = 1 if below <= 256 else 2 if below <= 65_536 else 4
        return int.from_bytes(self.take(size).ljust(size, b"\0"), "big") % below

    def flip(self, share: int = 2) -> bool:
        """Return True about once in ``share`` times; False at the end of the tape."""
        return self.number(share) == share - 1

    def choice(self, options: Sequence[T]) -> T:
        """Return one of ``options``."""
        return options[self.number(len(options))]

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes, or all that are left."""
        data = self._data[self._at : self._at + size]
        self._at += size
        return data

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        return self.take(len(self._data))

    def cuts(self, data: bytes) -> list[bytes]:
        """Return ``data`` in pieces."""
        pieces = []
        while data:
            size = self.choice((len(data), 1, 2, 5, 9, 30, 300)) or 1
            pieces.append(data[:size])
            data = data[size:]
            if len(pieces) > 40:
                return [*pieces, data] if data else pieces
        return pieces

"""Faults that may come back with every request: each kind is logged with its traceback once."""

from traceback import walk_tb
from typing import Final

_MOST_KINDS: Final = 1000
"""Kinds that are remembered; a fault whose text differs each time is of one kind all the same."""


class FaultLog:
    """Says whether a fault's traceback is worth writing: once for its class and its place."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: set[tuple[str, str, int]] = set()

    def traceback_of(self, error: BaseException) -> BaseException | None:
        """Return ``error`` for ``exc_info`` of a log line if it is the first of its kind."""
        file, line = "", 0
        for frame, number in walk_tb(error.__traceback__):
            file, line = frame.f_code.co_filename, number
        kind = (type(error).__name__, file, line)
        if kind in self._told or len(self._told) >= _MOST_KINDS:
            return None
        self._told.add(kind)
        return error

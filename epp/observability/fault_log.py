"""Log the traceback of a recurring fault only once per kind."""

from traceback import walk_tb
from typing import Final

_MAX_KINDS: Final = 1000
"""Number of kinds to remember; the text of an exception is not part of its kind."""


class FaultLog:
    """Remembers faults by exception class and source line."""

    __slots__ = ("_logged",)

    def __init__(self) -> None:
        self._logged: set[tuple[str, str, int]] = set()

    def traceback_of(self, error: BaseException) -> BaseException | None:
        """Return ``error``, for ``exc_info``, if it is the first of its kind; else None."""
        file, line = "", 0
        for frame, number in walk_tb(error.__traceback__):
            file, line = frame.f_code.co_filename, number
        kind = (type(error).__name__, file, line)
        if kind in self._logged or len(self._logged) >= _MAX_KINDS:
            return None
        self._logged.add(kind)
        return error

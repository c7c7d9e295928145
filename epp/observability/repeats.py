"""A limit on repeated log lines, such as one per request, scrape or message of a client."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Final

_MAX_KINDS: Final = 1000
"""Number of kinds to remember; all others count as one."""
_OTHERS: Final = ()


class RepeatLimit:
    """Lets few lines of each kind through in each period, and counts the others.

    Args:
        period_seconds: Length of a period; it begins with the first line in it.
        lines: Lines of one kind in a period.
        clock: Monotonic seconds.
    """

    __slots__ = ("_clock", "_kinds", "_lines", "_period_seconds")

    def __init__(
        self,
        period_seconds: float = 10.0,
        *,
        lines: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._period_seconds = period_seconds
        self._lines = lines
        self._clock = clock
        self._kinds: dict[Hashable, _Kind] = {}

    def fields(self, kind: Hashable = _OTHERS) -> Mapping[str, int] | None:
        """Return the fields to add to a line of this kind; None if the line must be left out.

        The field ``left_out`` is the number of lines of its kind that were left out before it.
        """
        known = self._kinds.setdefault(self.kind_of(kind), _Kind())
        now = self._clock()
        if known.written and now - known.began >= self._period_seconds:
            known.written = 0
        if known.written >= self._lines:
            known.left_out += 1
            return None
        if not known.written:
            known.began = now
        known.written += 1
        left_out, known.left_out = known.left_out, 0
        return {"left_out": left_out} if left_out else {}

    def kind_of(self, kind: Hashable) -> Hashable:
        """Return the kind under which lines of this kind are counted."""
        is_known = kind in self._kinds or len(self._kinds) < _MAX_KINDS
        return kind if is_known else _OTHERS

    def take_left_out(self, *, is_end: bool = False) -> Mapping[Hashable, int]:
        """Return how many lines of each kind were left out and not yet reported by a later line.

        Args:
            is_end: Whether to include periods that have not ended.
        """
        now, found = self._clock(), dict[Hashable, int]()
        for kind, known in self._kinds.items():
            if known.left_out and (is_end or now - known.began >= self._period_seconds):
                found[kind], known.left_out = known.left_out, 0
        return found

    @property
    def has_left_out(self) -> bool:
        """Whether lines were left out that no later line has reported."""
        return any(known.left_out for known in self._kinds.values())


class _Kind:
    __slots__ = ("began", "left_out", "written")

    def __init__(self) -> None:
        self.began = 0.0
        self.written = 0
        self.left_out = 0

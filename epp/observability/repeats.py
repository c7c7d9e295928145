"""Limits on log lines that repeat: per request, per scrape, per message of a client."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Final

from structlog import DropEvent
from structlog.typing import EventDict

_MAX_KINDS: Final = 1000
"""Number of kinds to remember; all others count as one."""
_OTHERS: Final = ()

MAX_FAULT_LINES: Final = 5
"""Lines of one fault in ten seconds."""
_FREQUENT_LEVELS: Final = frozenset({"debug", "info"})
_SUBJECTS: Final = (
    *("plugin", "endpoint", "pool", "port", "call", "kind", "name", "path", "source"),
    *("problem", "reason", "library", "message"),
)
"""Fields that say what a fault is of, and none that differs with each request."""
_MAX_CHARS: Final = 200


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
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= _MAX_KINDS:
                kind = _OTHERS
            known = self._kinds.setdefault(kind, _Kind())
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


class FaultLimit:
    """Limits repeated warnings and errors; a processor of structlog.

    A fault of each request or each scrape would flood the log. Lines are of one kind if they have
    the same logger, event, class of exception and subject.
    """

    def __init__(self) -> None:
        self._limit = RepeatLimit(10.0, lines=MAX_FAULT_LINES)

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        """Return ``event``, with ``left_out`` if lines of its kind were left out before.

        Raises:
            DropEvent: There were enough lines of its kind.
        """
        if method in _FREQUENT_LEVELS:
            return event
        name, error = getattr(logger, "name", ""), event.get("exc_info")
        subject = tuple(str(event[key])[:_MAX_CHARS] for key in _SUBJECTS if key in event)
        fields = self._limit.fields((name, event.get("event"), type(error), subject))
        if fields is None:
            raise DropEvent
        event.update(fields)
        return event


class _Kind:
    __slots__ = ("began", "left_out", "written")

    def __init__(self) -> None:
        self.began = 0.0
        self.written = 0
        self.left_out = 0

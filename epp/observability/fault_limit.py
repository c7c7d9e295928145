"""Limits repeated warnings and errors, and counts the lines that were left out.

The next line of the kind reports the count. If there is none, a separate line reports it, written
by a timer when the period has ended, or at the end of the process.
"""

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog
from structlog import DropEvent
from structlog.typing import EventDict, Processor

from epp.observability.repeats import RepeatLimit

MAX_FAULT_LINES: Final = 5
"""Lines of one fault in a period."""
PERIOD_SECONDS: Final = 10.0
_FREQUENT_LEVELS: Final = frozenset({"debug", "info"})
_SUBJECTS: Final = (
    *("plugin", "endpoint", "pool", "port", "call", "kind", "name", "path", "source"),
    *("problem", "reason", "library", "message"),
)
"""Fields that identify the subject of a fault; none of them differs with each request."""
_MAX_CHARS: Final = 200
_LEFT_OUT: Final = "repeated lines left out"


class _Fault(NamedTuple):
    """The fields of the line that reports the faults that were left out."""

    logger: Any
    level: str
    event: str
    subject: Mapping[str, str]


class FaultLimit:
    """Limits repeated warnings and errors; a processor of structlog. Thread-safe.

    A fault of each request or each scrape would flood the log. Lines are of one kind if they have
    the same logger, event, class of exception and subject.

    Args:
        rest: The processors after this one.
        clock: Monotonic seconds.
    """

    def __init__(
        self, rest: Sequence[Processor], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rest = rest
        self._limit = RepeatLimit(PERIOD_SECONDS, lines=MAX_FAULT_LINES, clock=clock)
        # Reentrant: garbage collection may run anywhere, and log a line itself.
        self._lock = threading.RLock()
        self._faults: dict[Hashable, _Fault] = {}
        """The last fault of each kind that was left out."""
        self._timer: threading.Timer | None = None

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        """Return ``event``, with ``left_out`` if lines of its kind were left out before.

        Raises:
            DropEvent: There were enough lines of its kind.
        """
        if method in _FREQUENT_LEVELS:
            return event
        name, error = getattr(logger, "name", ""), event.get("exc_info")
        subject = {key: str(event[key])[:_MAX_CHARS] for key in _SUBJECTS if key in event}
        text = str(event.get("event"))
        kind = (name, text, type(error), tuple(subject.values()))
        with self._lock:
            fields = self._limit.fields(kind)
            if fields is None:
                self._faults[self._limit.kind_of(kind)] = _Fault(logger, method, text, subject)
                self._start_timer()
                raise DropEvent
        event.update(fields)
        return event

    def write_left_out(self, *, is_end: bool = False) -> None:
        """Write a line for each kind whose period has ended with lines left out.

        Args:
            is_end: Whether to write lines for the other kinds, too.
        """
        with self._lock:
            self._timer = None
            counts = self._limit.take_left_out(is_end=is_end)
            faults = {kind: self._faults.pop(kind) for kind in counts}
            if self._limit.has_left_out:
                self._start_timer()
        for kind, fault in faults.items():
            log = structlog.wrap_logger(
                fault.logger, processors=self._rest, wrapper_class=structlog.BoundLogger
            )
            write = getattr(log, fault.level)
            write(_LEFT_OUT, of=fault.event, left_out=counts[kind], **fault.subject)

    def close(self) -> None:
        """Write all lines that :meth:`write_left_out` would write later, and stop the timer."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self.write_left_out(is_end=True)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(PERIOD_SECONDS, self.write_left_out)
            self._timer.name, self._timer.daemon = "left-out-lines", True
            try:
                self._timer.start()
            except RuntimeError:  # too many threads: the next line tries again
                self._timer = None

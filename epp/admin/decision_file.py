"""The file of decisions: JSON lines, written by a thread; long files are renamed.

Requests put their recorded decisions into a bounded queue. The thread converts them to documents
and writes these. Decisions that do not fit in the queue, or cannot be written, are dropped and
counted.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Final, Self

import structlog
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.admin.captured import CapturedDecision
from epp.admin.rendering import DecisionRenderer
from epp.admin.settings import ExplainSettings
from epp.inputs import why_unreadable
from epp.observability import cut
from epp.observability.bounded_text import json_line

_log = structlog.get_logger(__name__)

QUEUE_BYTES: Final = 16 << 20
"""Maximum estimated memory of decisions that have not been written yet."""
_PAUSE_SECONDS = 0.25
"""Time between two reads of the queue: waking the thread for each decision would cost 20 us."""


class DecisionFile:
    """Writes the decisions of all pools of a process to one file.

    Args:
        path: The file; older ones are ``path.1``, ``path.2`` and so on.
        max_bytes: Length at which it is renamed.
        max_files: Number of files that are kept.
        wall_offset: Returns Unix time minus the time of the clock of endpoint loads, in seconds.
        queue_bytes: Limit on decisions that are not written yet.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_files: int,
        wall_offset: Callable[[], float] = lambda: time.time() - time.monotonic(),
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self.path = path
        self.dropped_full = 0
        """Decisions dropped because the queue, or the memory for requests in flight, was full."""
        self.dropped_failed = 0
        """Decisions that could not be written."""
        self.written = 0
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._wall_offset = wall_offset
        self._queue_bytes = queue_bytes
        self._queue: deque[tuple[CapturedDecision, str]] = deque()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._file: FileIO | None = None
        self._length = 0
        self._is_torn = False
        """Whether the last line was written only in part."""
        self._has_failed = False
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decision-writer", daemon=True)

    @classmethod
    def of(cls, settings: ExplainSettings) -> Self | None:
        """Return the file that the settings name; None if they name none."""
        path = settings.explain_file
        if path is None or not settings.explain_decisions:
            return None
        return cls(path, max_bytes=settings.explain_file_bytes, max_files=settings.explain_files)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Write the decisions in the queue, and stop the thread; blocks."""
        self._stops.set()
        if self._thread.is_alive():
            self._thread.join()

    def put(self, entry: CapturedDecision, pool: str) -> None:
        """Queue a decision whose outcome is known, or drop it; does not wait for the disk."""
        with self._lock:
            if self._held_bytes + entry.size_bytes > self._queue_bytes:
                self.dropped_full += 1
                return
            self._held_bytes += entry.size_bytes
            self._queue.append((entry, pool))

    def lost(self) -> None:
        """Count a decision that was dropped before its outcome was known."""
        self.dropped_full += 1

    def _run(self) -> None:
        try:
            self._open()  # a wrong path is reported at the start
        except OSError as error:
            self._fail(error)
        is_last = False
        while not is_last:
            is_last = self._stops.wait(_PAUSE_SECONDS)
            for entry, pool in self._taken():
                self._write(entry, pool)
        if self._file is not None:
            self._file.close()

    def _taken(self) -> Iterator[tuple[CapturedDecision, str]]:
        while self._queue:
            with self._lock:
                entry, pool = self._queue.popleft()
                self._held_bytes -= entry.size_bytes
            yield entry, pool

    def _write(self, entry: CapturedDecision, pool: str) -> None:
        try:
            line = json_line(DecisionRenderer(self._wall_offset(), pool).record(entry)) + b"\n"
        except Exception:
            self.dropped_failed += 1
            _log.exception("decision cannot be written", request_id=cut(entry.request_id))
            return
        try:
            file = self._ready(len(line))
            view = memoryview(b"\n" + line if self._is_torn else line)
            while view:
                count = file.write(view)
                self._is_torn = count < len(view)
                self._length += count
                view = view[count:]
        except OSError as error:
            self.dropped_failed += 1
            self._fail(error)
        else:
            self._has_failed = False
            self.written += 1

    def _ready(self, line_bytes: int) -> FileIO:
        """Return the file, open and with room for a line.

        Raises:
            OSError: The file cannot be opened or renamed.
        """
        if self._file is None:
            self._open()
        if self._length and self._length + line_bytes > self._max_bytes:
            self._rotate()
            self._open()
        assert self._file is not None  # noqa: S101 - it was opened just now
        return self._file

    def _open(self) -> None:
        # Unbuffered, so that a write that a full disk cuts short is noticed with its own line.
        self._file = FileIO(self.path, "ab")
        self._length = self._file.tell()

    def _rotate(self) -> None:
        assert self._file is not None  # noqa: S101 - only an open file is renamed
        self._file.close()
        self._file = None
        paths = rotated(self.path, self._max_files)
        paths[-1].unlink(missing_ok=True)
        for older, newer in zip(reversed(paths), reversed(paths[:-1]), strict=False):
            if newer.exists():
                newer.rename(older)

    def _fail(self, error: OSError) -> None:
        """Log the first failure in a row, and close the file; the next decision opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if not self._has_failed:
            self._has_failed = True
            _log.error(
                "decisions cannot be written; requests are served all the same",
                path=str(self.path),
                error=why_unreadable(error),
                remedy="mend the path of --explain-file; it is tried again with each decision",
            )


def rotated(path: Path, count: int) -> list[Path]:
    """Return the paths of ``count`` files of decisions, newest first; some may not exist."""
    return [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, count))]


class DecisionFileCollector(Collector):
    """The metrics of the file of decisions."""

    def __init__(self, file: DecisionFile) -> None:
        self._file = file

    def collect(self) -> Iterable[Metric]:
        """Read the counters."""
        written = CounterMetricFamily(
            "llm_d_epp_decisions_written_total", "Decisions written to --explain-file."
        )
        written.add_metric([], self._file.written)
        dropped = CounterMetricFamily(
            "llm_d_epp_decisions_dropped_total",
            "Decisions that are missing in --explain-file, by reason: the queue or the memory was"
            " full, or the write failed.",
            labels=["reason"],
        )
        dropped.add_metric(["queue-full"], self._file.dropped_full)
        dropped.add_metric(["write-failed"], self._file.dropped_failed)
        yield written
        yield dropped

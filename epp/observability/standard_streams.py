"""Redirect other output of the process (print, tracebacks, warnings, library logs) to log queues.

If the output is a full pipe that no process reads, writing a single asyncio warning directly would
block the event loop forever.
"""

import io
import logging
import os
import sys
import threading
from contextlib import suppress
from typing import Final, TextIO

import structlog

from epp.observability.bounded_text import printable
from epp.observability.log_queue import LogQueue

MAX_LINE_CHARS: Final = 4096
"""Maximum length of a line of other output."""

_METHODS = (
    (logging.CRITICAL, "critical"),
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (logging.INFO, "info"),
)


def descriptor_of(stream: TextIO | None, default: int) -> int:
    """Return the file descriptor behind a standard stream.

    Args:
        stream: None if the process was started without it; its number may now belong to a socket,
            so output is discarded.
        default: Result for a stream without a descriptor, as in tests.
    """
    if stream is None:
        return os.open(os.devnull, os.O_WRONLY)
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return default


class QueuedStream(io.TextIOBase):
    """A text stream whose lines go into a queue."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, queue: LogQueue, name: str) -> None:
        super().__init__()
        self.name = name
        self._queue = queue
        self._begun = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            for line in lines:
                self._put(line + "\n")
            if len(self._begun) > MAX_LINE_CHARS:
                self.flush()
        return len(text)

    def flush(self) -> None:
        with self._lock:
            begun, self._begun = self._begun, ""
            if begun:
                self._put(begun)

    def _put(self, line: str) -> None:
        text = printable(line.removesuffix("\n"), MAX_LINE_CHARS)
        end = "\n" if line.endswith("\n") else ""
        self._queue.put((text + end).encode())

    def fileno(self) -> int:
        return self._queue.descriptor

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        """Return False: colour codes would be escaped like all control characters."""
        return False


class LibraryLog(logging.Handler):
    """Writes log records of libraries, such as asyncio, as structured lines."""

    def emit(self, record: logging.LogRecord) -> None:
        method = next((name for level, name in _METHODS if record.levelno >= level), "debug")
        try:
            facts = {"library": record.name, "message": record.getMessage()}
            log = structlog.get_logger(__name__)
            getattr(log, method)("library logged", **facts, exc_info=record.exc_info)
        except Exception:
            self.handleError(record)


def queue_standard_streams(output: LogQueue, errors: LogQueue) -> None:
    """Redirect standard output and standard error to queues."""
    flush_standard_streams()
    sys.stdout, sys.stderr = QueuedStream(output, "<stdout>"), QueuedStream(errors, "<stderr>")
    logging.basicConfig(handlers=[LibraryLog()], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)


def flush_standard_streams() -> None:
    """Write or queue incomplete lines."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()


def restore_standard_streams() -> None:
    """Undo :func:`queue_standard_streams`."""
    if isinstance(sys.stdout, QueuedStream):
        sys.stdout = sys.__stdout__
    if isinstance(sys.stderr, QueuedStream):
        sys.stderr = sys.__stderr__


def is_same_file(one: int, other: int) -> bool:
    """Return whether two descriptors refer to the same pipe, terminal or file."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # one of them is closed
        return False

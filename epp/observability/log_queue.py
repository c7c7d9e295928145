"""A bounded queue of log lines with a writer thread, so that logging never blocks the event loop.

The reader of the log may be slow or stopped: a pipe buffers 64 KiB, then ``write`` blocks. Lines
that do not fit in the queue are dropped and counted.

While a pipe has room, lines need no thread: they are written at once, without waiting, which takes
10 us. Waking the thread takes 100 us if lines are rare, a third of all that a rare request costs.
"""

import fcntl
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

MAX_BYTES: Final = 16 << 20
MAX_LINES: Final = 100_000

_PAUSE_SECONDS = 0.02
"""Pause between two batches: waking the thread for each line costs the event loop 20 us a line."""
_BATCH_BYTES = 128 << 10
"""Bytes per write; joining them takes 10 us."""
_ATOMIC_BYTES: Final = select.PIPE_BUF
"""Lines up to this length are written to a pipe as a whole or not at all."""
_GAP = b""
"""Marks the position in the queue where lines were dropped."""
_WRITABLE_MS = 1000
"""How long to wait until a non-blocking descriptor is writable."""


class FileLock:
    """A lock among processes, which the kernel releases when its holder dies.

    Args:
        descriptor: Descriptor of the file that they lock. The process must not close another
            descriptor of this file, because that would release the lock.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


class LogQueue:
    """A bounded queue of lines, and the thread that writes them to a descriptor.

    Any thread may put lines; they are written in that order.

    Args:
        descriptor: File descriptor to write to.
        notice: Returns the line that reports a number of dropped lines.
        max_bytes: Limit on bytes queued or being written.
        max_lines: Limit on queued lines.
        lock: Held during each write; None if no other process writes there.
    """

    def __init__(
        self,
        descriptor: int,
        notice: Callable[[int], bytes],
        *,
        max_bytes: int = MAX_BYTES,
        max_lines: int = MAX_LINES,
        lock: FileLock | None = None,
    ) -> None:
        self.descriptor = descriptor
        """File descriptor to write to."""
        self._notice = notice
        self._lock_of_output = lock or nullcontext()
        self._at_once = -1 if lock is not None else _reopened(descriptor)
        """Another descriptor of the output, whose writes do not wait; -1 for none. With ``lock``
        there is none: every write takes the lock, so that lines of several processes stay whole."""
        self._max_bytes = max_bytes
        self._max_lines = max_lines
        self.dropped_full = 0
        """Lines dropped because the queue was full."""
        self.dropped_failed = 0
        """Lines that could not be written: the reader is gone, or the disk is full."""
        self._reported = 0
        self._is_torn = False
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Empty the queue; also called in a forked child, as its parent writes the queued lines."""
        # Both are reentrant: garbage collection may run anywhere, even in the writer thread, and
        # log a line itself.
        self._lock = threading.RLock()
        self._emptied = threading.Condition(self._lock)
        self._lines = deque[bytes]()
        self._held_bytes = 0
        self._thread: threading.Thread | None = None
        self._has_gap = False
        self._is_awake = False
        self._wakened = threading.Event()

    def put(self, line: bytes) -> None:
        """Write or queue ``line``, which ends with a newline, or drop it; never blocks."""
        size = len(line)
        with self._lock:
            if not self._is_awake and size <= _ATOMIC_BYTES and self._writes_at_once(line):
                return
            if self._held_bytes + size > self._max_bytes or len(self._lines) >= self._max_lines:
                self.dropped_full += 1
                if self._has_gap:
                    return
                self._has_gap = True
                self._lines.append(_GAP)
            else:
                self._held_bytes += size
                self._lines.append(line)
            if self._is_awake:
                return
            self._is_awake = True
        self._wake()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything is written; return False if that takes longer."""
        with self._emptied:
            return self._emptied.wait_for(self._is_empty, timeout_seconds)

    def _is_empty(self) -> bool:
        return not (self._is_awake or self._lines)

    def _writes_at_once(self, line: bytes) -> bool:
        """Write a line if there is room; return False if it is to be queued."""
        if self._at_once < 0 or self._is_torn or self._lines:
            return False
        try:
            os.write(self._at_once, line)
        except BlockingIOError:
            return False
        except OSError:  # the thread meets the same error, and counts the line
            os.close(self._at_once)
            self._at_once = -1
            return False
        return True

    def _wake(self) -> None:
        self._wakened.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # too many threads: the next line tries again
                self._thread, self._is_awake = None, False

    def _run(self) -> None:
        try:
            while True:
                self._wakened.wait()
                self._wakened.clear()
                while lines := self._taken():
                    self._write_all(*lines)
                    time.sleep(_PAUSE_SECONDS)
        finally:  # the next line starts another thread
            with self._lock:
                self._thread, self._is_awake = None, False
                self._held_bytes = sum(map(len, self._lines))

    def _taken(self) -> tuple[deque[bytes], int] | None:
        """Return the queued lines and the number of dropped ones; None if there are none.

        Then the next line wakes the thread.
        """
        with self._lock:
            if not self._lines:
                self._is_awake = False
                self._emptied.notify_all()
                return None
            taken = self._lines, self.dropped_full - self._reported
            self._lines, self._has_gap, self._reported = deque(), False, self.dropped_full
            return taken

    def _write_all(self, lines: deque[bytes], dropped: int) -> None:
        while batch := _batch(lines):
            with self._lock_of_output:
                self._write(b"".join(batch))
            with self._lock:
                self._held_bytes -= sum(map(len, batch))
            if dropped and batch[-1] is _GAP:
                self._write(self._notice(dropped))

    def _write(self, data: bytes) -> None:
        begun = b"\n" if self._is_torn else b""  # separates it from a line that was cut off
        view, done = memoryview(begun + data), 0
        while done < len(view):
            try:
                done += os.write(self.descriptor, view[done:])
            except BlockingIOError:
                self._wait_until_writable()
            except OSError:
                self.dropped_failed += data.count(b"\n", max(0, done - len(begun)))
                break
        if done:
            self._is_torn = view[done - 1] != ord("\n")

    def _wait_until_writable(self) -> None:
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        poll.poll(_WRITABLE_MS)


def _reopened(descriptor: int) -> int:
    """Return another descriptor of a pipe, or of /dev/null, for writing without waiting.

    It is -1 for other files and where /proc does not let this user open the file. Setting the flag
    on the given descriptor would affect every process that shares it.
    """
    try:
        found = os.fstat(descriptor)
        if not (stat.S_ISFIFO(found.st_mode) or found.st_rdev == Path(os.devnull).stat().st_rdev):
            return -1
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        return -1


def _batch(lines: deque[bytes]) -> list[bytes]:
    """Take lines off a queue up to a gap or up to the bytes of one write."""
    batch: list[bytes] = []
    size = 0
    while lines and size < _BATCH_BYTES:
        line = lines.popleft()
        batch.append(line)
        size += len(line)
        if line is _GAP:
            break
    return batch


class LogCollector(Collector):
    """The metric of lines that were not written."""

    def __init__(self, queues: Callable[[], Iterable[LogQueue]]) -> None:
        self._queues = queues

    def collect(self) -> Iterable[Metric]:
        """Read all queues once."""
        queues = list(self._queues())
        family = CounterMetricFamily(
            "llm_d_epp_log_lines_dropped_total",
            "Log lines that were not written, by reason: the queue was full, or the write failed.",
            labels=["reason"],
        )
        family.add_metric(["queue-full"], sum(each.dropped_full for each in queues))
        family.add_metric(["write-failed"], sum(each.dropped_failed for each in queues))
        yield family

"""One worker as its supervisor sees it: a process that is restarted when it ends."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from epp.workers.control import Order, WorkerReport, line_of, messages
from epp.workers.place import VARIABLE, Place

_log = structlog.get_logger(__name__)

SILENT_SECONDS: Final = 10.0
"""A worker that sends no report for this long hangs, and is killed."""
START_SECONDS: Final = 120.0
"""Likewise before its first report: it imports the plugins and reads the configuration."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 10.0
_STEADY_SECONDS: Final = 60.0
"""A worker that has run this long is restarted without a pause."""
_OF_ANOTHER: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables for the supervisor: a worker must not speak to the service manager."""


def worker_command() -> list[str]:
    """Return the command of a worker: this program with the same arguments.

    It is a new interpreter. A fork would share the memory of the imported modules, but the
    supervisor has threads and event loops, whose locks a forked child may find held forever.
    """
    return [sys.executable, "-P", "-m", "epp", *sys.argv[1:]]


class WorkerProcess:
    """One worker.

    Args:
        place: Its place; the descriptor ``control`` is set for each process.
        command: Starts it.
        changed: Called when it becomes ready or unready, and when it ends.
        ended: Called after a process has ended, before the next one starts.
        is_starting: Whether the supervisor is still starting: then a process that ends before it
            was ready is not restarted.
    """

    def __init__(
        self,
        place: Place,
        command: Sequence[str],
        *,
        changed: Callable[[], None],
        ended: Callable[[], None],
        is_starting: Callable[[], bool],
    ) -> None:
        self.place = place
        self.report = WorkerReport()
        """Its last report; an empty one while it does not run."""
        self.lives = 0
        """Processes started so far."""
        self.returncode: int | None = None
        """Status of the last process that has ended."""
        self.has_reported = asyncio.Event()
        """Set when a process has reported or has ended."""
        self.has_served = False
        """Whether a process has ever been ready."""
        self.reloads: asyncio.Queue[list[str]] = asyncio.Queue()
        """Outcomes of reloads."""
        self._command = command
        self._changed = changed
        self._ended = ended
        self._is_starting = is_starting
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._heard_at = 0.0
        self._has_spoken = False
        """Whether the process has reported since its start."""

    @property
    def index(self) -> int:
        """Its number."""
        return self.place.index

    @property
    def is_ready(self) -> bool:
        """Whether it decides requests."""
        return self.report.serves and self.report.ready

    @property
    def pid(self) -> int | None:
        """The process; None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether a process takes orders."""
        return self._writer is not None

    def send(self, order: Order) -> None:
        """Send an order, if a process runs."""
        if self._writer is not None:
            self._writer.write(line_of(order))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if a process runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run it, and start it again when it ends, until ``stopping`` is set and it has ended."""
        pause = 0.0
        while not stopping.is_set():
            began = time.monotonic()
            await self._live()
            self._ended()
            self._changed()
            if stopping.is_set() or (self._is_starting() and not self.has_served):
                return
            if time.monotonic() - began > _STEADY_SECONDS:
                pause = 0.0
            _log.warning(
                "worker ended, it is started again",
                worker=self.index,
                status=self.returncode,
                pause_seconds=pause,
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stopping.wait()
            pause = min(_LONGEST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, 2 * pause))

    async def _live(self) -> None:
        """Start a process, and wait for its end."""
        await asyncio.to_thread(self.place.metrics_socket.unlink, missing_ok=True)
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = self.place.memory, theirs.fileno()
            place = self.place.at(theirs.fileno())
            environment = {k: v for k, v in os.environ.items() if k not in _OF_ANOTHER}
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                env=environment | {VARIABLE: place.text()},
                pass_fds=descriptors,
                # A terminal sends its signals to the supervisor only, which passes them on.
                start_new_session=True,
            )
        self.lives += 1
        try:
            reader, self._writer = await asyncio.open_connection(sock=ours)
            self._heard_at, self._has_spoken = time.monotonic(), False
            async with asyncio.TaskGroup() as tasks:
                listening = tasks.create_task(self._listen(reader), name="reports of a worker")
                watching = tasks.create_task(self._watch(), name="silence of a worker")
                self.returncode = await process.wait()
                listening.cancel()
                watching.cancel()
        finally:
            self.signal(signal.SIGKILL)
            await process.wait()  # at once; otherwise its transport would be left open
            (self._writer or ours).close()
            self._writer = self._process = None
            self.report = WorkerReport()
            self.has_reported.set()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        async for report in messages(reader, WorkerReport):
            self._heard_at, self._has_spoken = time.monotonic(), True
            if not self.has_reported.is_set():
                self.has_reported.set()
                self._changed()
            if report.reloaded is not None:
                self.reloads.put_nowait(report.reloaded)
                continue
            before, self.report = self.is_ready, report
            if self.is_ready is not before:
                self.has_served = self.has_served or self.is_ready
                self._changed()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            silent = round(time.monotonic() - self._heard_at, 1)
            if silent > (SILENT_SECONDS if self._has_spoken else START_SECONDS):
                _log.error("worker hangs, it is killed", worker=self.index, silent_seconds=silent)
                self.signal(signal.SIGKILL)
                return

"""One worker as its supervisor sees it: a process that is restarted when it ends."""

import asyncio
import contextlib
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from epp.workers.control import MAX_LINE_BYTES, Order, WorkerReport, line_of, messages
from epp.workers.errors import WorkerError
from epp.workers.place import Place
from epp.workers.spawning import start_process

_log = structlog.get_logger(__name__)

SILENT_SECONDS: Final = 10.0
"""A worker that sends no report for this long hangs, and is killed."""
START_SECONDS: Final = 120.0
"""Likewise before its first report: it imports the plugins and reads the configuration."""
_WATCH_SECONDS: Final = 1.0
"""Time between two checks for silence."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 10.0
_STEADY_SECONDS: Final = 60.0
"""A worker that has run this long is restarted without a pause."""


class Silence:
    """How long a worker has been silent while its supervisor listened.

    The supervisor may be suspended, perhaps with the workers: by the freezer of their container,
    or with their virtual machine. When it goes on, its timers fire before it reads the reports. So
    a pause of its own counts for two checks at most, or it would kill all workers.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._checked_at = time.monotonic()

    def end(self) -> None:
        """Note a report."""
        self.seconds = 0.0

    def check(self) -> float:
        """Return the seconds, to be called every ``_WATCH_SECONDS``."""
        before, self._checked_at = self._checked_at, time.monotonic()
        self.seconds += min(self._checked_at - before, 2 * _WATCH_SECONDS)
        return self.seconds


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
        self._command = command
        self._changed = changed
        self._ended = ended
        self._is_starting = is_starting
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reloads: deque[asyncio.Future[list[str]]] = deque()
        """Reloads that the process has not reported yet, in order."""
        self._silence = Silence()
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

    async def reload(self, limit_seconds: float) -> list[str]:
        """Have the process reload; return the outcomes, "" for a configuration that is in use.

        A process that ends first, or does not report within the time limit, gives a text, too.
        """
        if self._writer is None:
            return [self._ended_first]
        outcome: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._reloads.append(outcome)
        self.send(Order(reload=True))
        try:
            async with asyncio.timeout(limit_seconds):
                return await outcome
        except TimeoutError:
            return [f"worker {self.index} has not reloaded within {limit_seconds:g} s"]

    async def run(self, stopping: asyncio.Event) -> None:
        """Run it, and start it again when it ends, until ``stopping`` is set and it has ended.

        Raises:
            WorkerError: The first process cannot be created.
        """
        try:
            await self._run(stopping)
        finally:
            self.has_reported.set()

    async def _run(self, stopping: asyncio.Event) -> None:
        pause = 0.0
        while not stopping.is_set():
            began = time.monotonic()
            try:
                await asyncio.to_thread(self.place.metrics_socket.unlink, missing_ok=True)
                ours, process = await start_process(self.place, self._command)
            except OSError as error:
                self._note_failed_start(error)
            else:
                await self._live(ours, process, stopping)
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

    def _note_failed_start(self, error: OSError) -> None:
        self.returncode = None
        if self._is_starting() and not self.has_served:
            raise WorkerError(f"worker {self.index} cannot be started: {error}") from error
        _log.error("worker cannot be started", worker=self.index, error=str(error))

    async def _live(
        self, ours: socket.socket, process: asyncio.subprocess.Process, stopping: asyncio.Event
    ) -> None:
        """Listen to a process, and wait for its end."""
        self._process = process
        self.lives += 1
        if stopping.is_set():  # the supervisor has sent its signal before there was this process
            self.signal(signal.SIGKILL)
        try:
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES)
            self._silence, self._has_spoken = Silence(), False
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
            while self._reloads:
                self._note_reload([self._ended_first])

    @property
    def _ended_first(self) -> str:
        """The outcome of a reload that the process did not report."""
        return f"worker {self.index} has ended during the reload"

    def _note_reload(self, outcome: list[str]) -> None:
        if self._reloads and not (waiting := self._reloads.popleft()).done():
            waiting.set_result(outcome)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        async for report in messages(reader, WorkerReport):
            self._silence.end()
            self._has_spoken = True
            if not self.has_reported.is_set():
                self.has_reported.set()
                self._changed()
            if report.reloaded is not None:
                self._note_reload(report.reloaded)
                continue
            before, self.report = self.is_ready, report
            if self.is_ready is not before:
                self.has_served = self.has_served or self.is_ready
                self._changed()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            silent = self._silence.check()
            if silent > (SILENT_SECONDS if self._has_spoken else START_SECONDS):
                _log.error(
                    "worker hangs, it is killed",
                    worker=self.index,
                    silent_seconds=round(silent, 1),
                )
                self.signal(signal.SIGKILL)
                return

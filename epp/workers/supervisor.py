"""The supervisor: starts the workers, keeps them running, and answers for all of them.

It is the one process that service managers and probes see. It serves the health and metrics ports
by asking the workers, watches the Kubernetes API for them, and has neither pool nor plugins. Worker
0 starts first, so that an invalid configuration is reported once.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from mmap import mmap
from pathlib import Path
from typing import Final

import structlog

from epp.ext_proc import LAST_CHUNK_SECONDS
from epp.health import HealthServer
from epp.settings import Ports, ServeSettings
from epp.workers.control import Order
from epp.workers.errors import WorkerError
from epp.workers.flight_rows import ROW_BYTES, clear_row
from epp.workers.front import Front
from epp.workers.place import RELAY_SOCKET, Place
from epp.workers.ports import ReservedPorts
from epp.workers.socket_folder import WorkerSocketFolder
from epp.workers.spawning import worker_command
from epp.workers.watch_server import relayed_watches
from epp.workers.worker_process import START_SECONDS, WorkerProcess

_log = structlog.get_logger(__name__)

_RELOAD_SECONDS: Final = 60.0
_AFTER_DRAIN_SECONDS: Final = 10.0
"""Time for a worker to end after its drain; then it is killed."""


class Supervisor:
    """Runs ``settings.workers`` workers.

    Args:
        settings: Those of the command line.
        memory: Descriptor of a file for the shared memory, such as one of ``os.memfd_create``.
        command: Starts a worker; by default this program with its own arguments.
    """

    def __init__(self, settings: ServeSettings, memory: int, command: Sequence[str] = ()) -> None:
        self._settings = settings
        self._memory = memory
        self._command = command or worker_command()
        self._workers: list[WorkerProcess] = []
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._has_started = False
        self._leader: WorkerProcess | None = None

    @property
    def is_ready(self) -> bool:
        """Whether at least half of the workers are ready; at first, all of them."""
        ready = sum(each.is_ready for each in self._workers)
        return self._has_started and not self._stopping.is_set() and 2 * ready >= len(self._workers)

    async def run(self, stop: asyncio.Event, ready: Callable[[Ports], None]) -> None:
        """Serve until ``stop`` is set.

        Args:
            stop: Ends the run; the workers drain first.
            ready: Called once, when all workers are ready.

        Raises:
            WorkerError: The workers cannot start, or their sockets cannot be made.
            PortError: The health or the metrics port is in use.
            TlsError: The certificate of the metrics port is invalid.
        """
        with closing(ReservedPorts(self._settings)) as ports:
            sockets = await asyncio.to_thread(WorkerSocketFolder)
            try:
                await self._run_in(sockets.path, ports, stop, ready)
            finally:
                await asyncio.to_thread(sockets.close)

    async def _run_in(
        self,
        folder: Path,
        ports: ReservedPorts,
        stop: asyncio.Event,
        ready: Callable[[Ports], None],
    ) -> None:
        """Run the workers, whose sockets are in ``folder``."""
        settings, memory = self._settings, self._memory
        os.ftruncate(memory, settings.workers * ROW_BYTES)
        rows = memoryview(mmap(memory, settings.workers * ROW_BYTES))
        async with relayed_watches(settings, folder / RELAY_SOCKET) as has_relay:
            self._workers = [
                self._worker(each, folder, rows, ports, has_relay=has_relay)
                for each in range(settings.workers)
            ]
            await self._serve_for_all(stop, ready, ports.numbers[0])

    async def _serve_for_all(
        self, stop: asyncio.Event, ready: Callable[[Ports], None], grpc_port: int
    ) -> None:
        """Run the workers behind the metrics and the health port."""
        settings = self._settings
        async with Front(settings, self._workers, lambda: self._leader) as front:
            health = HealthServer(
                lambda: self.is_ready, host=settings.host, port=settings.grpc_health_port
            )
            try:
                health_port = await health.start()
                await self._serve(stop, lambda: ready(Ports(grpc_port, health_port, front.port)))
            finally:
                await health.stop()

    async def reload_now(self) -> Sequence[str]:
        """Have every worker reload; return the outcomes, "" for a configuration that is in use."""
        running = [each for each in self._workers if each.is_running]
        outcomes = await asyncio.gather(*(each.reload(_RELOAD_SECONDS) for each in running))
        return [text for outcome in outcomes for text in outcome]

    def _worker(
        self, index: int, folder: Path, rows: memoryview, ports: ReservedPorts, *, has_relay: bool
    ) -> WorkerProcess:
        settings = self._settings
        place = Place(
            index=index,
            count=settings.workers,
            memory=self._memory,
            control=-1,
            folder=str(folder),
            grpc_port=ports.numbers[index],
            is_port_shared=ports.is_shared,
            name=settings.replicas.name_of(
                grpc_port=ports.numbers[0], socket_file=settings.socket_file
            ),
            has_relay=has_relay,
        )
        return WorkerProcess(
            place,
            self._command,
            changed=self._worker_changed,
            ended=lambda: clear_row(rows, index),
            is_starting=lambda: not self._has_started,
        )

    async def _serve(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(self._stop_when(stop), name="stop")
            try:
                first, *others = self._workers
                tasks.create_task(first.run(self._stopping), name="worker 0")
                await first.has_reported.wait()
                self._check_start()
                for each in others:
                    tasks.create_task(each.run(self._stopping), name=f"worker {each.index}")
                await self._until_all_are_ready()
                if not self._stopping.is_set():
                    self._has_started = True
                    self._log_start()
                    ready()
                await stopping
            except BaseException:
                self._stopping.set()
                for each in self._workers:
                    each.signal(signal.SIGKILL)
                raise

    async def _until_all_are_ready(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while not (self._stopping.is_set() or all(each.is_ready for each in self._workers)):
                    self._changed.clear()
                    await self._changed.wait()
                    self._check_start()
        except TimeoutError:
            self._has_started = True
            silent = [each.index for each in self._workers if not each.is_ready]
            _log.warning("some workers are not ready yet", workers=silent)

    def _check_start(self) -> None:
        """Give up if a worker has ended before it was ever ready.

        Raises:
            WorkerError: A worker has.
        """
        for each in self._workers:
            if each.lives and each.pid is None and not each.has_served:
                if self._stopping.is_set():
                    return
                raise WorkerError(
                    f"worker {each.index} ended with status {each.returncode} before it was ready;"
                    " its own message is above"
                )

    def _log_start(self) -> None:
        _log.info(
            "workers started",
            workers=len(self._workers),
            pids=[each.pid for each in self._workers],
            grpc_ports=sorted({each.place.grpc_port for each in self._workers}),
        )

    def _worker_changed(self) -> None:
        """Appoint a leader if there is none: a worker has become ready or unready, or has ended."""
        self._changed.set()
        leader = self._leader
        if leader is not None and leader.is_running:
            return
        # A ready worker if there is one; among these the one that has run longest, as it knows
        # most.
        running = [each for each in self._workers if each.is_running]
        running.sort(key=lambda each: (not each.is_ready, each.lives, each.index))
        self._leader = running[0] if running else None
        if self._leader is not None:
            self._leader.send(Order(lead=True))

    async def _stop_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopping.set()
        self._changed.set()
        for each in self._workers:
            each.signal(signal.SIGTERM)
        settings = self._settings
        limit = settings.drain_delay_seconds + settings.drain_timeout_seconds
        try:
            async with asyncio.timeout(limit + LAST_CHUNK_SECONDS + _AFTER_DRAIN_SECONDS):
                while any(each.pid is not None for each in self._workers):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            for each in self._workers:
                if each.pid is not None:
                    _log.error("worker does not end, it is killed", worker=each.index)
                    each.signal(signal.SIGKILL)

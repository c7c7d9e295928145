"""A worker: an endpoint picker that shares its state with the others."""

import asyncio
import mmap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from epp.app import App, Ports, ServeSettings
from epp.inputs import of_worker
from epp.settings import MAX_WORKERS
from epp.workers.control import ControlStream
from epp.workers.flight_rows import ROW_BYTES
from epp.workers.leadership import Leadership
from epp.workers.links import Links
from epp.workers.place import Place
from epp.workers.sharing import WorkerSharing
from epp.workers.socket_folder import in_use
from epp.workers.worker_metrics import LinksCollector


def worker_settings(settings: ServeSettings, place: Place) -> ServeSettings:
    """Return the settings of one worker: its own sockets, files and random choices."""
    index, transport = place.index, settings.transport_settings
    seed, explain, replicas = settings.seed, settings.explain, settings.replicas
    return replace(
        settings,
        worker=index,
        grpc_port=place.grpc_port,
        socket_file=_own(settings.socket_file, index),
        transport_settings=replace(
            transport, reuse_port=transport.reuse_port or place.is_port_shared
        ),
        metrics_socket=place.metrics_socket,
        health_socket=place.health_socket,
        watch_relay=place.watch_relay,
        metrics_tls=None,
        explain=replace(explain, explain_file=_own(explain.explain_file, index)),
        # Plugins share state, such as the prefix index, as they do between replicas.
        replicas=replace(
            replicas,
            replica_name=place.replica_name(index),
            replica_state=replicas.replica_state or f"unix://{quote(str(place.replica_folder))}",
        ),
        writes_object_status=settings.writes_object_status and index == 0,
        seed=None if seed is None else seed * MAX_WORKERS + index,
    )


def _own(path: Path | None, index: int) -> Path | None:
    return None if path is None else of_worker(path, index)


async def run_worker(
    settings: ServeSettings,
    place: Place,
    stop: asyncio.Event,
    make: Callable[[ServeSettings, WorkerSharing], App],
) -> None:
    """Serve until ``stop`` is set or the supervisor ends.

    Args:
        settings: Those of the command line.
        place: The worker's place.
        stop: Ends the run, draining first.
        make: Creates the endpoint picker.
    """
    leadership = Leadership()
    links = Links(place.folder_path, place.index, place.count)
    memory = memoryview(mmap.mmap(place.memory, place.count * ROW_BYTES))
    sharing = WorkerSharing(memory, links, leadership, place)
    app = make(worker_settings(settings, place), sharing)
    app.metrics.registry.register(LinksCollector(lambda: links.lost))
    control = ControlStream(place.control, leadership, stop)

    def serves(_: Ports) -> None:
        control.serves = True

    with in_use(place.folder_path):
        async with asyncio.TaskGroup() as tasks:
            talking = tasks.create_task(
                control.run(
                    lambda: app.is_ready, lambda: len(app.service.open_streams), app.reload_now
                ),
                name="control",
            )
            try:
                await app.run(stop, serves)
            finally:
                talking.cancel()

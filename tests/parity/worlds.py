"""The environment of a case: model servers, configuration, objects; each is started once."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from integration.scraped import Server, scraping

from epp.app import App
from epp.ext_proc import ExtProcSettings
from epp.ext_proc.settings import Compat

SCRAPE_SECONDS = 1.0
"""The pages never change: dozens of EPPs that look every 50 ms would be busy with that alone."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A model server of the reference's fixture; its address there is 192.168.1.(index + 1)."""

    index: int
    waiting: int
    kv_cache_usage: float
    adapters: tuple[str, ...] = ()
    """Active ones. They are as many as fit: the fixture's servers have no room for others."""
    role: str = ""

    @property
    def address(self) -> str:
        """What the reference's cases call it."""
        return f"192.168.1.{self.index + 1}:8000"

    def server(self) -> Server:
        """Return a server with its metrics."""
        return Server(
            self.waiting,
            self.kv_cache_usage,
            ",".join(self.adapters),
            max_adapters=len(self.adapters),
            labels={"llm-d.ai/role": self.role} if self.role else {},
        )


@dataclass(frozen=True, slots=True)
class World:
    """What stands before the request comes."""

    pods: tuple[Pod, ...]
    config: str
    objects: str = ""
    emits_scores: bool = False
    follows_subset: bool = True


@dataclass(frozen=True, slots=True)
class Running:
    """A world with its EPP."""

    app: App
    channel: grpc.aio.Channel
    names: Mapping[str, str]
    """The fixture's addresses by the real ones."""

    def real(self, address: str) -> str:
        """Return where a server of the fixture really is; nowhere if it is none."""
        return {name: real for real, name in self.names.items()}.get(address, address)

    def total(self, name: str, labels: Mapping[str, str]) -> float:
        """Return a metric summed over all series that have ``labels``."""
        return sum(
            sample.value
            for family in self.app.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"llm_d_epp_{name}" and labels.items() <= sample.labels.items()
        )


class Worlds:
    """Starts worlds on demand; they run until ``stop``."""

    def __init__(self, tasks: asyncio.TaskGroup, folder: Path) -> None:
        self._tasks = tasks
        self._folder = folder
        self._running: dict[tuple[World, Compat], asyncio.Future[Running]] = {}
        self._stop = asyncio.Event()

    async def get(self, world: World, compat: Compat) -> Running:
        """Return ``world`` under an EPP with ``--compat``, and start it if need be."""
        key = (world, compat)
        if key not in self._running:
            self._running[key] = asyncio.get_running_loop().create_future()
            folder = self._folder / str(len(self._running))
            self._tasks.create_task(self._run(world, compat, folder, self._running[key]))
        return await self._running[key]

    def stop(self) -> None:
        """End all of them."""
        self._stop.set()

    async def _run(
        self, world: World, compat: Compat, folder: Path, ready: "asyncio.Future[Running]"
    ) -> None:
        await asyncio.to_thread(folder.mkdir)
        objects: tuple[Path, ...] = ()
        if world.objects:
            objects = (folder / "objects.yaml",)
            await asyncio.to_thread(objects[0].write_text, world.objects)
        serve: dict[str, Any] = {
            "ext_proc": ExtProcSettings(compat=compat),
            "refresh_metrics_interval_seconds": SCRAPE_SECONDS,
            "emit_endpoint_scores": world.emits_scores,
            "ignore_subset_hint": not world.follows_subset,
        }
        servers = {f"pod-{pod.index}": pod.server() for pod in world.pods}
        try:
            async with (
                scraping(folder, world.config, servers, objects=objects, serve=serve) as (
                    app,
                    ports,
                ),
                grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel,
            ):
                real = [f"127.0.0.1:{each.port}" for each in servers.values()]
                names = dict(zip(real, [pod.address for pod in world.pods], strict=True))
                ready.set_result(Running(app, channel, names))
                await self._stop.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)  # every case in this world fails of it, and no other

"""Serves several InferencePools of a namespace in one process.

Each pool has a :class:`~epp.pool_runtime.PoolRuntime` of its own: endpoints, configuration, queues
and metrics. A pool named by ``--pool-name`` has one from the start; with ``--all-pools`` it is made
when the pool appears, and closed some time after the pool is gone, when no request is left. A pool
that cannot be served, because its configuration is invalid, does not affect the others; it is tried
again every second.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from epp.admin import DecisionFile
from epp.building import InstalledPlugins
from epp.config import ConfigError, LoadedConfig, PluginTypes, load_file
from epp.data_layer import DataLayerError
from epp.descriptors import PoolDescriptors
from epp.ext_proc import MatchedPool, PoolMatcher, RequestHandler
from epp.kubernetes.source import PodSource, PoolRef, PoolsSource
from epp.observability import AdminAction, DebugPage, EventSource, Metrics, MetricsRegistry
from epp.pool_runtime import PoolRuntime
from epp.replication import Replica
from epp.request_control import BodyLanes, Refusals
from epp.request_control.force_keys import ForceKeys
from epp.served_pools import EVENTS
from epp.settings import ServeSettings
from epp.sockets import Shares
from epp.timetable import Timetable
from epp.tracing import Tracer

if TYPE_CHECKING:
    from epp.kubernetes.cluster import KubernetesCluster
    from epp.kubernetes.namespace_objects import NamespaceObjects

_log = structlog.get_logger(__name__)

PAGE: Final = "pools"
"""Path of the page of all pools below ``/debug/``, and start of the paths of each pool's pages."""

KEEP_SECONDS: Final = 60.0
"""How long a pool is kept after it is gone: if it is created again, it continues with its queues,
its prefix index and its metrics."""
_LOOK_SECONDS: Final = 1.0
"""Time between two looks at pools that cannot be served, or are gone."""
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


class PoolLine(msgspec.Struct, frozen=True, kw_only=True):
    """A pool on the page of all pools."""

    name: str
    exists: bool
    """Whether the API server has an InferencePool of this name."""
    ready: bool
    """Whether its endpoints are known."""
    endpoints: int
    in_flight: int
    """Requests at its model servers."""
    config: str
    """Source of its configuration; "" if it has no valid one."""
    service: str
    """Service of its endpoint picker; a gateway that calls it means this pool."""
    hosts: list[str]
    """Hosts of its requests."""
    fault: str
    """Why it is not served, or what is wrong with its configuration; "" if nothing is."""


@dataclass(slots=True, eq=False)
class _Running:
    """A pool that is served."""

    runtime: PoolRuntime
    task: asyncio.Task[None] | None = None
    gone_since: float | None = None
    """Time since which no InferencePool of its name exists; None if one does."""


class SeveralPools:
    """The pools of a process.

    Args:
        settings: Settings of the process.
        source: Names the pools.
        cluster: The cluster of the pools; it has shared copies of their objects.
        metrics: Metrics of the process.
        installed: Plugins of installed packages.
        lanes: Where requests with long bodies wait.
        decision_file: Gets the recorded decisions; None for no file.
        tracer: Traces requests; None without tracing.
        force_keys: Keys of the header that forces an endpoint; None to ignore it.
        replica: Exchanges the pools' state with other replicas; None if nothing is shared.
        clock: Monotonic seconds.
        timetable: Starts recurring work; None for a new one in each pool.
    """

    def __init__(
        self,
        settings: ServeSettings,
        source: PoolsSource,
        cluster: "KubernetesCluster",
        *,
        metrics: Metrics,
        installed: InstalledPlugins,
        lanes: BodyLanes,
        decision_file: DecisionFile | None = None,
        tracer: Tracer | None = None,
        force_keys: ForceKeys | None = None,
        replica: Replica | None = None,
        clock: Callable[[], float] = time.monotonic,
        timetable: Timetable | None = None,
    ) -> None:
        assert cluster.objects is not None  # noqa: S101 - it is made for several pools
        self._settings = settings
        self._source = source
        self._cluster = cluster
        self._objects: NamespaceObjects = cluster.objects
        self._installed = installed
        self._lanes = lanes
        self._decision_file = decision_file
        self._tracer = tracer
        self._force_keys = force_keys
        self._replica = replica
        self._timetable = timetable
        self._clock = clock
        self._shares: Shares | None = None
        self._running: dict[str, _Running] = {}
        self._faults: dict[str, str] = {}
        """Why pools are not served, by name."""
        self.pools: Mapping[str, PoolRuntime] = {}
        """The pools that are served, by name. Replaced, never changed: other threads read it."""
        self._matcher = PoolMatcher(source.namespace, Refusals(metrics, clock))
        self._changed = asyncio.Event()
        self._has_begun = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        return any(pool.is_ready for pool in self.pools.values())

    @property
    def polled_sources(self) -> int:
        return max((pool.polled_sources for pool in self.pools.values()), default=1)

    @property
    def in_flight(self) -> int:
        return sum(pool.director.in_flight for pool in self.pools.values())

    @property
    def summary(self) -> Mapping[str, object]:
        return {"pools": sorted(self.pools)}

    def of_stream(self, headers: Mapping[str, str]) -> RequestHandler:
        return self._matcher.of_stream(headers)

    def use_descriptors(self, shares: Shares) -> None:
        self._shares = shares

    def registries(self) -> Mapping[str, MetricsRegistry]:
        return {name: pool.metrics.registry for name, pool in self.pools.items()}

    def debug_pages(self) -> Mapping[str, DebugPage]:
        pages = {PAGE: DebugPage(self.lines)}
        for name, pool in self.pools.items():
            pages |= {f"{PAGE}/{name}/{path}": page for path, page in pool.debug_pages().items()}
        return pages

    def pool_lines(self) -> Sequence[object] | None:
        return self.lines()

    def event_sources(self) -> Mapping[str, EventSource]:
        return {f"{PAGE}/{name}/{EVENTS}": pool.live for name, pool in self.pools.items()}

    def admin_actions(self) -> Mapping[str, AdminAction]:
        return {
            f"{PAGE}/{name}/{path}": action
            for name, pool in self.pools.items()
            for path, action in pool.admin_actions().items()
        }

    async def reload_now(self) -> Sequence[str]:
        return await asyncio.gather(*(pool.reload_now() for pool in self.pools.values()))

    async def load(self) -> None:
        """Do nothing: each pool reads its files when it is made."""

    async def run(self) -> None:
        self._objects.add_listener(self._changed.set)
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._changed.clear()
                    await self._update(tasks)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_SECONDS):
                            await self._changed.wait()
        finally:
            self._objects.remove_listener(self._changed.set)

    async def until_reported(self) -> None:
        await self._has_begun.wait()
        for pool in list(self.pools.values()):
            await pool.store.reported.wait()

    def close(self) -> None:
        """Do nothing: each pool is closed when its task ends."""

    async def _update(self, tasks: asyncio.TaskGroup) -> None:
        """Serve the pools that exist now."""
        if not self._objects.are_pools_known:
            return
        wanted = set(self._source.names) or self._objects.pool_names()
        for name in sorted(wanted - self._running.keys()):
            await self._serve(name, tasks)
        for name, running in list(self._running.items()):
            if name in wanted:
                running.gone_since = None
            elif running.gone_since is None:
                running.gone_since = self._clock()
            elif self._is_over(running):
                self._end(name)
        for name in self._faults.keys() - wanted:
            del self._faults[name]
        self._matcher.use(self._matched())
        self._has_begun.set()

    async def _serve(self, name: str, tasks: asyncio.TaskGroup) -> None:
        try:
            runtime = await self._make(name)
        except (ConfigError, DataLayerError) as error:
            self._note_fault(name, str(error))
            return
        self._faults.pop(name, None)
        running = self._running[name] = _Running(runtime)
        if (shares := self._shares) is not None:
            runtime.store.add_listener(PoolDescriptors(runtime.store, shares, self._scrapes))
        self._pools_changed()
        running.task = tasks.create_task(self._run(name, runtime), name=f"pool {name}")
        _log.info(
            "pool is served",
            pool=name,
            config=runtime.graph.config.source,
            plugins=sorted(runtime.graph.plugins),
        )

    async def _make(self, name: str) -> PoolRuntime:
        settings = self._settings
        config, file, types = await asyncio.to_thread(self._first_config, name)
        ref = PodSource(self._source.namespace, PoolRef(name, self._source.group))
        runtime = PoolRuntime(
            replace(settings, pool_name=name, pods=ref, config=config, config_file=file),
            Metrics(
                max_page_bytes=settings.max_metrics_page_bytes,
                has_former_names=settings.has_deprecated_metrics,
            ),
            installed=self._installed,
            lanes=self._lanes,
            tracer=self._tracer,
            force_keys=self._force_keys,
            replica=self._replica,
            discover=partial(self._cluster.discover, ref),
            plugin_objects=self._cluster.plugin_objects(),
            types=types,
            decision_file=self._decision_file,
            is_one_of_several=True,
            timetable=self._timetable,
            choose_config=partial(self._choose_again, name) if settings.pool_config_dir else None,
        )
        try:
            await runtime.load()
        except BaseException:
            self._close(runtime)
            raise
        return runtime

    def _first_config(self, name: str) -> tuple[LoadedConfig, Path | None, PluginTypes]:
        """Read the configuration of a pool; return it with its file and its plugin classes.

        Raises:
            ConfigError: It is invalid.
        """
        settings, registry = self._settings, self._installed.registry
        file = self._chosen_file(name) or settings.config_file
        config = settings.config
        if file is not None and file != settings.config_file:
            config = load_file(file, inspect=registry.inspector(file.parent))
        return config, file, registry.prepare(config)

    def _chosen_file(self, name: str) -> Path | None:
        """Return the file of a pool's configuration; None for the one of the process.

        The pool may name it; otherwise it has the pool's name, if there is such a file.

        Raises:
            ConfigError: The pool gives a name that is not a file name.
        """
        folder = self._settings.pool_config_dir
        if folder is None:
            return None
        pool = self._objects.pool(name)
        chosen = "" if pool is None else pool.metadata.config_name
        if not chosen:
            own = folder / f"{name}.yaml"
            return own if own.is_file() else self._settings.config_file
        if not _FILE_NAME.fullmatch(chosen):
            raise ConfigError(
                f"InferencePool {name}: its configuration {chosen!r} is no name of a file in"
                f" {folder} without .yaml"
            )
        return folder / f"{chosen}.yaml"

    def _choose_again(self, name: str) -> Path | None:
        """Return the configuration file of a served pool; None to keep the current one; blocks."""
        try:
            file = self._chosen_file(name)
        except ConfigError as error:
            self._note_fault(name, str(error))
            return None
        self._faults.pop(name, None)
        return file

    async def _run(self, name: str, runtime: PoolRuntime) -> None:
        """Run a pool; if it fails, end it, so that it is made again."""
        try:
            await runtime.run()
        except Exception:
            _log.exception("pool failed, it is made anew", pool=name)
            self._running[name].task = None
            self._end(name)
        finally:
            self._close(runtime)

    def _close(self, runtime: PoolRuntime) -> None:
        runtime.close()
        if runtime.discovery is not None:
            self._cluster.forget(runtime.discovery)

    def _end(self, name: str) -> None:
        running = self._running.pop(name)
        if running.task is not None:
            running.task.cancel()
            _log.info("pool is not served any more", pool=name)
        self._pools_changed()

    def _is_over(self, running: _Running) -> bool:
        assert running.gone_since is not None  # noqa: S101 - called for pools that are gone
        runtime = running.runtime
        is_busy = runtime.director.in_flight or runtime.flow.waiting
        return not is_busy and self._clock() - running.gone_since >= KEEP_SECONDS

    def _matched(self) -> Iterator[MatchedPool]:
        for name, pool in self.pools.items():
            found = self._objects.pool(name)
            if found is None:
                yield MatchedPool(name, pool.handler)
            else:
                yield MatchedPool(name, pool.handler, found.service, found.metadata.hosts)

    def _pools_changed(self) -> None:
        self.pools = {name: each.runtime for name, each in self._running.items()}
        for pool in self.pools.values():
            pool.share_limits(len(self.pools))

    def _scrapes(self) -> int:
        return sum(pool.scrapes for pool in self.pools.values())

    def _note_fault(self, name: str, text: str) -> None:
        if self._faults.get(name) != text:
            self._faults[name] = text
            _log.error("pool cannot be served", pool=name, problems=text.splitlines())

    def lines(self) -> list[PoolLine]:
        """Return the page of all pools."""
        names = sorted({*self._running, *self._faults, *self._source.names})
        return [self._line(name) for name in names]

    def _line(self, name: str) -> PoolLine:
        running, found = self._running.get(name), self._objects.pool(name)
        pool = None if running is None else running.runtime
        return PoolLine(
            name=name,
            exists=found is not None,
            ready=pool is not None and pool.is_ready,
            endpoints=0 if pool is None else len(pool.store.snapshot),
            in_flight=0 if pool is None else pool.director.in_flight,
            config="" if pool is None else pool.graph.config.source,
            service="" if found is None else found.service,
            hosts=[] if found is None else list(found.metadata.hosts),
            fault=self._faults.get(name) or ("" if pool is None else pool.config_fault),
        )

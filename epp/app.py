"""The composition root: builds every component and owns every long-running task.

Startup order: plugins, store, metrics, listeners, discovery and scraping. The ext_proc port opens
last, once there are endpoints. Shutdown: the process becomes unready, waits for the drain delay,
closes the port, gives open streams the drain timeout, ends them so that their HTTP responses
continue, and cancels everything else. :mod:`.pool_runtime` builds what belongs to one pool,
:mod:`.port_servers` the servers.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import structlog

from epp.admin import DecisionFile, DecisionFileCollector
from epp.admin.live import page_files
from epp.building import InstalledPlugins
from epp.data_layer import DiscoveryError, PoolSharing
from epp.descriptors import PortLimits, share_descriptors
from epp.ext_proc import LAST_CHUNK_SECONDS, METHOD, ExtProcService
from epp.flow_control import FlowController
from epp.health import HealthService
from epp.kubernetes.source import PoolsSource
from epp.observability import (
    AdminCalls,
    Authorizer,
    DebugPage,
    LogCollector,
    LogLevelCalls,
    LoopLag,
    LoopWatchdog,
    Metrics,
    StreamMetrics,
    log_queues,
    register_process,
)
from epp.observability.log_level_calls import PATH as LOG_LEVEL_PATH
from epp.pool_runtime import PoolRuntime
from epp.port_servers import port_servers
from epp.replication import Replica, ReplicaCollector, open_replica
from epp.request_control import BodyLanes
from epp.request_control.force_header import FORCE_HEADER
from epp.request_control.force_keys import ForceKeys
from epp.served_pools import OnePool, ServedPools
from epp.settings import Ports, ServeSettings, Transport
from epp.several_pools import SeveralPools
from epp.timetable import Timetable
from epp.tracing import ProcessTracing, Tracer
from epp.transport import OpenStream, Server, observed

if TYPE_CHECKING:
    from epp.kubernetes.cluster import KubernetesCluster

__all__ = ["App", "Ports", "ServeSettings", "Transport"]

FIRST_ENDPOINTS_SECONDS = 5.0
"""How long the ext_proc port waits for the first report of a discovery. After that it opens without
endpoints and answers every request with 503 and the reason."""

LIVE_PAGE = "live"
"""Path of the page that names version and pools for the live page, below ``/debug/``."""

log = structlog.get_logger(__name__)


class App:
    """One endpoint picker: a process, for one pool or several."""

    def __init__(
        self,
        settings: ServeSettings,
        *,
        sharing: PoolSharing | None = None,
        make_flow: Callable[..., FlowController] = FlowController,
    ) -> None:
        """Build every component; nothing listens or runs yet.

        Args:
            settings: Settings of the process.
            sharing: What this process shares with other workers of the pool; None if there are
                none.
            make_flow: Makes the flow control of the pool.

        Raises:
            ConfigError: The configuration is invalid.
            DataLayerError: There are no endpoints, or one is invalid.
            TracingError: Tracing cannot start.
            ForceKeyError: The file with the keys of forced endpoints cannot be used.
            ReplicaStateError: The state of replicas cannot be exchanged as the settings say.
        """
        self.settings = settings
        self._sharing = sharing
        self._make_flow = make_flow
        self.metrics = Metrics(
            max_page_bytes=settings.max_metrics_page_bytes,
            has_former_names=settings.has_deprecated_metrics,
        )
        """Metrics of the process, and of its pool if there is only one."""
        register_process(self.metrics.registry)
        self.metrics.registry.register(LogCollector(log_queues))
        tracing = settings.tracing
        self._tracing = None if tracing is None else ProcessTracing(tracing, self.metrics.registry)
        self._lanes = BodyLanes(source_headers=settings.ext_proc.source_headers)
        self._decision_file = DecisionFile.of(settings.explain)
        if self._decision_file is not None:
            self.metrics.registry.register(DecisionFileCollector(self._decision_file))
        self._force_keys = _force_keys(settings)
        self._replica = self._open_replica()
        self._cluster = self._join_cluster()
        self._timetable = Timetable(time.monotonic)
        self.pools = self._make_pools()
        """The pools, which decide the requests."""
        self.service = ExtProcService(
            self.pools,
            time.monotonic,
            settings=settings.ext_proc,
            metrics=self.metrics,
            tracer=self._tracer,
        )
        self.metrics.watch_held_bytes(lambda: self.service.held.used_bytes)
        self._loop_lag = LoopLag(self.metrics.registry, self._timetable)
        self._health = HealthService(lambda: self.is_ready)
        self._log_levels = LogLevelCalls()
        self._draining = False
        # Here, because both read files.
        self._files = page_files()
        self._version = version("endpoint-picker")

    def _open_replica(self) -> Replica | None:
        """Return this process as one of several replicas; None if it shares no state.

        Raises:
            ReplicaStateError: The settings cannot be used.
        """
        settings, pods = self.settings, self.settings.pods
        replica = open_replica(
            settings.replicas,
            group=pods.title if isinstance(pods, PoolsSource) else settings.pool_name,
            grpc_port=settings.grpc_port,
            socket_file=settings.socket_file,
        )
        if replica is not None:
            self.metrics.registry.register(ReplicaCollector(replica))
        return replica

    def _join_cluster(self) -> "KubernetesCluster | None":
        """Return the cluster with the endpoints; None if they come from elsewhere.

        Raises:
            DiscoveryError: The extra ``kubernetes`` is not installed.
        """
        settings, source = self.settings, self.settings.pods
        if source is None:
            return None
        discovery = settings.config.file.data_layer.discovery
        if discovery is not None and not settings.follows_cluster:
            log.info(
                "the configuration has a discovery, so the Kubernetes API is not used",
                discovery=discovery.plugin,
            )
            return None
        try:
            from epp.kubernetes.cluster import KubernetesCluster  # noqa: PLC0415 - of an extra
        except ImportError as error:
            raise DiscoveryError(str(error)) from error
        several = source if isinstance(source, PoolsSource) else None
        return KubernetesCluster(
            source.namespace,
            self.metrics.registry,
            lease_of=settings.pool_name if several is None else several.title,
            elects_leader=settings.elects_leader,
            shared_group="" if several is None else several.group,
            has_policies=not settings.objects,
            writes_status=settings.writes_object_status,
            watch_relay=settings.watch_relay,
        )

    def _make_pools(self) -> ServedPools:
        settings, source, cluster = self.settings, self.settings.pods, self._cluster
        installed = InstalledPlugins.load()
        if isinstance(source, PoolsSource):
            assert cluster is not None  # noqa: S101 - several pools are always in a cluster
            return SeveralPools(
                settings,
                source,
                cluster,
                metrics=self.metrics,
                installed=installed,
                lanes=self._lanes,
                decision_file=self._decision_file,
                tracer=self._tracer,
                force_keys=self._force_keys,
                replica=self._replica,
                timetable=self._timetable,
            )
        discover, plugin_objects = None, None
        if cluster is not None and source is not None:
            discover, plugin_objects = partial(cluster.discover, source), cluster.plugin_objects()
        return OnePool(
            PoolRuntime(
                settings,
                self.metrics,
                installed=installed,
                lanes=self._lanes,
                discover=discover,
                plugin_objects=plugin_objects,
                decision_file=self._decision_file,
                tracer=self._tracer,
                force_keys=self._force_keys,
                sharing=self._sharing,
                make_flow=self._make_flow,
                replica=self._replica,
                timetable=self._timetable,
            )
        )

    @property
    def _tracer(self) -> Tracer | None:
        return None if self._tracing is None else self._tracing.tracer

    @property
    def pool(self) -> PoolRuntime:
        """The pool; there must be only one."""
        assert isinstance(self.pools, OnePool)  # noqa: S101 - see above
        return self.pools.pool

    @property
    def is_ready(self) -> bool:
        """Whether the endpoints of a pool are known, and this process should serve."""
        leads = self._cluster is None or self._cluster.leads
        return self.pools.is_ready and leads and not self._draining

    async def reload_now(self) -> Sequence[str]:
        """Reload each pool's configuration, even if its file is unchanged; return the faults."""
        return await self.pools.reload_now()

    def _debug_pages(self) -> dict[str, DebugPage]:
        cluster = {} if self._cluster is None else self._cluster.debug_pages()
        own = {
            LOG_LEVEL_PATH: DebugPage(self._log_levels.page),
            LIVE_PAGE: DebugPage(self._live_page),
        }
        return {**self.pools.debug_pages(), **cluster, **own}

    def _live_page(self) -> object:
        """Return the version and the pools, which the live page requests first."""
        return {"version": self._version, "pools": self.pools.pool_lines()}

    def _authorizer(self) -> Authorizer | None:
        """Return the authorizer of clients of the metrics port; None if all are let in."""
        if not self.settings.metrics_endpoint_auth:
            return None
        if self._cluster is None:
            log.warning(
                "metrics are open to every client: tokens are checked only if the endpoints come"
                " from the Kubernetes API"
            )
            return None
        return self._cluster.authorizer()

    def _admin_calls(self) -> AdminCalls:
        settings = self.settings
        own = {LOG_LEVEL_PATH: self._log_levels.set_level}
        return AdminCalls(
            lambda: {**self.pools.admin_actions(), **own},
            settings.admin_token_file if settings.enable_admin_writes else None,
        )

    async def run(self, stop: asyncio.Event, ready: Callable[[Ports], None] | None = None) -> None:
        """Serve until ``stop`` is set.

        Args:
            stop: Ends the run, draining first.
            ready: Called once, with the ports, when everything listens.

        Raises:
            ExceptionGroup: A component failed, for example because a port is in use, a certificate
                is invalid or a discovery cannot start; the others have been stopped.
            ObjectFileError: An objects file is invalid.
        """
        try:
            shares, limits = share_descriptors(self.settings, sources=self.pools.polled_sources)
            self.pools.use_descriptors(shares)
            await self.pools.load()
            if self._decision_file is not None:
                self._decision_file.start()
            with self._loop_lag:
                await self._serve(limits, stop, ready)
        finally:
            self._timetable.clear()
            self.pools.close()
            if self._decision_file is not None:
                await asyncio.to_thread(self._decision_file.close)

    def _methods(self) -> dict[str, OpenStream]:
        """Return the handlers of the ext_proc port, by gRPC method path."""
        opened: OpenStream = self.service.opened
        if self.settings.has_stream_metrics:
            opened = observed(opened, StreamMetrics(self.metrics.registry), time.monotonic)
        health = self._health.methods if self.settings.health_checking else {}
        return {METHOD: opened, **health}

    async def _serve(
        self, limits: PortLimits, stop: asyncio.Event, ready: Callable[[Ports], None] | None
    ) -> None:
        settings = self.settings
        watchdog = LoopWatchdog()
        async with (
            watchdog,
            asyncio.TaskGroup() as tasks,
            port_servers(
                settings,
                self._methods(),
                limits,
                metrics=self.metrics,
                pools=self.pools.registries,
                pages=self._debug_pages,
                feeds=self.pools.event_sources,
                files=self._files,
                admin=self._admin_calls(),
                authorizer=self._authorizer(),
                budget=self.service.held,
                is_ready=lambda: self.is_ready,
                is_alive=lambda: not watchdog.is_stuck,
            ) as servers,
        ):
            running = [
                tasks.create_task(run(), name=name)
                for name, run in (self._tasks() | servers.tasks()).items()
            ]
            try:
                health_port = await servers.health.start()
                await self._until_there_are_endpoints()
                ports = Ports(await servers.ext_proc.start(), health_port, servers.metrics.port)
                log.info(
                    "endpoint picker started",
                    grpc_port=ports.grpc or f"unix:{settings.socket_file}",
                    grpc_health_port=ports.health,
                    metrics_port=ports.metrics,
                    **self.pools.summary,
                )
                if ready is not None:
                    ready(ports)
                await stop.wait()
                await self._drain(servers.ext_proc)
            finally:
                await servers.stop()
                for task in running:
                    task.cancel()

    def _tasks(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the tasks that run alongside the servers, by name."""
        tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "pools": self.pools.run,
            "uploads": self.service.uploads.run,
        }
        if (limits := self.service.time_limits) is not None:
            tasks["time-limits"] = limits.run
        if self._force_keys is not None:
            tasks["force-keys"] = self._force_keys.run
        if self._tracing is not None:
            tasks["tracing"] = self._tracing.run
        if self._cluster is not None:
            tasks["cluster"] = self._cluster.run
        if self._replica is not None:
            tasks["replica"] = self._replica.run
        return tasks

    async def _until_there_are_endpoints(self) -> None:
        """Wait for the first report: a gateway sends requests as soon as the port is open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ENDPOINTS_SECONDS):
                await self.pools.until_reported()

    async def _drain(self, server: Server) -> None:
        self._draining = True
        if self._cluster is not None:
            self._cluster.resign()
        if delay := self.settings.drain_delay_seconds:
            log.info("not ready any more", drain_delay_seconds=delay)
            await asyncio.sleep(delay)
        self._health.close()  # health watchers need no draining
        timeout = self.settings.drain_timeout_seconds
        log.info("draining", open_streams=len(self.service.open_streams), timeout_seconds=timeout)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.service.drain(timeout), name="drain")
            # One second longer than the drain: ended streams still have to flush their status.
            more = LAST_CHUNK_SECONDS + 1
            tasks.create_task(server.stop(timeout + more), name="stop-server")
        log.info("endpoint picker stopped", requests_in_flight=self.pools.in_flight)


def _force_keys(settings: ServeSettings) -> ForceKeys | None:
    """Return the keys of the header that forces an endpoint; None if it is ignored.

    Raises:
        ForceKeyError: Their file cannot be used.
    """
    path = settings.force_endpoint_key_file
    if path is None:
        return None
    why = ""
    if settings.ext_proc.compat == "reference":
        why = "--compat=reference, as the Go EPP does not have it"
    elif FORCE_HEADER in settings.ext_proc.ignored_client_headers:
        why = "--ignore-client-headers, which names it"
    if not why:
        return ForceKeys(path)
    log.warning("--force-endpoint-key-file has no effect", header=FORCE_HEADER, reason=why)
    return None

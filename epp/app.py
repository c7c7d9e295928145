"""The composition root: builds every component and owns every long-running task.

Startup order: plugins, store, metrics, listeners, discovery and scraping. The ext_proc port opens
last, once there are endpoints. Shutdown: the process becomes unready, waits for the drain delay,
closes the port, gives open streams the drain timeout, ends them such that their HTTP responses
continue, and cancels everything else. :mod:`.graph_switch` replaces the plugin graph on a reload,
:mod:`.port_servers` makes the servers.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from epp.building import make_builder, make_random
from epp.config import GraphBuilder, PluginGraph
from epp.data_layer import (
    DataLayerRuntime,
    DiscoveryError,
    DrainCalls,
    DrainMarks,
    EndpointDiscovery,
    EndpointStore,
    EndpointsView,
    HealthCheck,
    LoadReport,
    ObjectFiles,
    ObjectStore,
    ScrapeObservers,
    Scraper,
    configured_names,
    fixed_discoveries,
    polled,
    served_names,
)
from epp.data_layer.drain_calls import PATH as DRAIN_PATH
from epp.data_layer.endpoints_page import PATH as ENDPOINTS_PAGE
from epp.descriptors import PoolDescriptors, PortLimits, share_descriptors
from epp.ext_proc import LAST_CHUNK_SECONDS, METHOD, ExtProcService
from epp.flow_control import FlowController
from epp.flow_control.controller import WakeOnPage
from epp.flow_control.views.flow_views import debug_pages, flow_gauges
from epp.graph_switch import GraphSwitch, pipeline_of
from epp.health import HealthService
from epp.observability import (
    AdminCalls,
    Authorizer,
    DebugPage,
    FlowCollector,
    FlowMetrics,
    LogCollector,
    LoopLag,
    LoopWatchdog,
    Metrics,
    PluginMetricsCollector,
    RevocationMetrics,
    StreamMetrics,
    log_queues,
    register_process,
)
from epp.outlier_detection import OutlierDetector
from epp.parsing import BodyLimits
from epp.port_servers import port_servers
from epp.request_control import BodyQueue, Director
from epp.scheduling import Endpoint
from epp.settings import Ports, ServeSettings, Transport
from epp.transport import OpenStream, Server, observed

if TYPE_CHECKING:
    from epp.kubernetes.cluster import Cluster

__all__ = ["App", "Ports", "ServeSettings", "Transport"]

FIRST_ENDPOINTS_SECONDS = 5.0
"""How long the ext_proc port waits for the first report of a discovery. After that it opens all the
same and answers every request with 503, which gives the reason."""

log = structlog.get_logger()


class App:
    """One endpoint picker."""

    def __init__(self, settings: ServeSettings) -> None:
        """Build every component; nothing listens or runs yet.

        Raises:
            ConfigError: The configuration is invalid.
            DataLayerError: There are no endpoints, or one is invalid.
        """
        self.settings = settings
        self.metrics = Metrics(
            max_page_bytes=settings.max_metrics_page_bytes,
            has_former_names=settings.has_deprecated_metrics,
        )
        register_process(self.metrics.registry)
        self.store = EndpointStore(
            DrainMarks(settings.drain_label),
            serving_changed=lambda: self.flow.pool_changed(),  # noqa: PLW0108 - it is made below
        )
        self.metrics.registry.register(LogCollector(log_queues))
        plugin_metrics = PluginMetricsCollector(
            self.metrics.budget, has_former_names=settings.has_deprecated_metrics
        )
        self.metrics.registry.register(plugin_metrics)
        builder = make_builder(
            settings.seed,
            metrics=plugin_metrics,
            report_load=self._take_report,
            max_page_bytes=settings.max_scrape_page_bytes,
            compat=settings.ext_proc.compat,
            experimental="allow" if settings.allow_experimental_plugins else "refuse",
        )

        def whole_pool() -> Sequence[Endpoint]:
            return self.store.serving

        pool = whole_pool
        self.outliers: OutlierDetector | None = None
        """None if outlier detection is off."""
        if settings.outliers.outlier_detection and settings.ext_proc.compat != "reference":
            self.outliers = OutlierDetector(
                whole_pool,
                settings=settings.outliers,
                clock=time.monotonic,
                rng=make_random(settings.seed, "outliers"),
                waiting=lambda: self._scraper.waiting(),  # noqa: PLW0108 - it is made below
                changed=lambda: self.flow.wake(),  # noqa: PLW0108 - both are made below
            )
            pool = self.outliers.available
        self.flow = FlowController(
            pool=pool,
            clock=time.monotonic,
            observer=FlowMetrics(self.metrics, settings.pool_name),
            revocations=RevocationMetrics(self.metrics.registry, settings.pool_name),
            why_none_serves=self.store.why_none_serves,
        )
        """Queues requests while the pool is saturated."""
        self._graphs = GraphSwitch(
            settings,
            builder,
            metrics=self.metrics,
            flow=self.flow,
            data_layer=lambda: self._data_layer,
            director=lambda: self.director,
        )
        self.metrics.registry.register(
            FlowCollector(settings.pool_name, lambda: flow_gauges(self.flow))
        )
        self.store.add_listener(self.flow)
        scrape_events = ScrapeObservers(self.metrics, WakeOnPage(self.flow.wake))
        if self.outliers is not None:
            self.store.add_listener(self.outliers)
            scrape_events = ScrapeObservers(self.outliers, scrape_events)
        self._scraper = Scraper(
            self.store,
            interval_seconds=settings.refresh_metrics_interval_seconds,
            staleness_seconds=settings.scoring_staleness_seconds,
            clock=time.monotonic,
            observer=scrape_events,
            cpu_share=settings.max_scrape_cpu_percent / 100,
            is_adaptive=settings.scrape == "adaptive" and settings.ext_proc.compat != "reference",
        )
        self.metrics.watch_scrapes(self._scraper.intervals)
        self._objects = ObjectStore(
            pool_name=settings.pool_name,
            rng=make_random(settings.seed, "objects"),
            rewritten=self.metrics.model_rewritten,
        )
        self._cluster = self._join_cluster()
        health_checks = []
        if self.outliers is not None and settings.outliers.health_check_path:
            path, interval = (
                settings.outliers.health_check_path,
                settings.outliers.health_check_interval_seconds,
            )
            health_checks.append(HealthCheck(path, interval, time.monotonic))
        self._data_layer = DataLayerRuntime(
            self.store, self._scraper, self.graph, self._fixed_discoveries(builder), health_checks
        )
        self.metrics.watch_pool(
            settings.pool_name,
            lambda: self.store.snapshot,
            staleness_seconds=settings.metrics_staleness_seconds,
            outliers=self.outliers,
        )
        self.store.add_listener(self.metrics.attempts)
        self._endpoints_view = EndpointsView(self.store, self.outliers, time.monotonic)
        self._drain_calls = DrainCalls(
            self.store, line=self._endpoints_view.line, clock=time.monotonic
        )
        self.store.add_listener(self._drain_calls)
        for source in (
            lambda: served_names(self.store.snapshot),
            lambda: configured_names(self.graph.config),
            self._objects.names,
        ):
            self.metrics.names.learn_from(source)
        self._object_files = ObjectFiles(settings.objects)
        self._reloader = self._graphs.make_reloader()
        self.director = Director(
            pool=pool,
            whole_pool=whole_pool,
            why_none_serves=self.store.why_none_serves,
            find_address=self.store.find_address,
            pipeline=pipeline_of(self.graph),
            metrics=self.metrics,
            clock=time.monotonic,
            policies=self._objects if settings.objects or self._cluster else None,
            outcomes=None if self._reloader is None else self._reloader.outcomes,
            flow=self.flow,
            outliers=self.outliers,
            hedging_budget=settings.hedging_budget_percent / 100.0,
            emit_endpoint_scores=settings.emit_endpoint_scores,
            follow_subset_hint=not settings.ignore_subset_hint,
            body_limits=BodyLimits(
                settings.ext_proc.max_decompressed_bytes,
                settings.ext_proc.max_compression_ratio,
                settings.ext_proc.max_json_values,
            ),
        )
        self.service = ExtProcService(
            BodyQueue(self.director, source_headers=settings.ext_proc.source_headers),
            time.monotonic,
            settings=settings.ext_proc,
            metrics=self.metrics,
        )
        self.metrics.watch_held_bytes(lambda: self.service.held.used_bytes)
        self._loop_lag = LoopLag(self.metrics.registry, lambda: bool(self.service.open_streams))
        self._health = HealthService(lambda: self.is_ready)
        self._draining = False

    def _fixed_discoveries(self, builder: GraphBuilder) -> list[EndpointDiscovery]:
        """Return the discoveries that no reload changes."""
        settings, cluster = self.settings, self._cluster
        fixed = fixed_discoveries(
            builder, settings.endpoints, settings.endpoints_file, settings.endpoint_dns
        )
        return fixed if cluster is None else [*fixed, cluster.discovery]

    def _join_cluster(self) -> "Cluster | None":
        """Return the cluster with the endpoints; None if they come from elsewhere.

        Raises:
            DiscoveryError: The extra ``kubernetes`` is not installed.
        """
        source = self.settings.pods
        if source is None:
            return None
        if self.graph.discovery is not None:
            log.info(
                "the configuration has a discovery, so the Kubernetes API is not used",
                discovery=self.graph.discovery.name,
            )
            return None
        try:
            from epp.kubernetes.cluster import Cluster  # noqa: PLC0415 - of an extra
        except ImportError as error:
            raise DiscoveryError(str(error)) from error
        policies = None if self.settings.objects else self._objects
        return Cluster(
            source,
            policies,
            self.metrics.registry,
            pool_name=self.settings.pool_name,
            elects_leader=self.settings.elects_leader,
        )

    def _take_report(self, endpoint: Endpoint, report: LoadReport) -> None:
        self._scraper.take_report(endpoint, report)
        self.flow.wake()  # capacity may be free

    def _debug_pages(self) -> dict[str, DebugPage]:
        cluster = {} if self._cluster is None else self._cluster.debug_pages()
        endpoints = {ENDPOINTS_PAGE: DebugPage(self._endpoints_view.page)}
        return {**debug_pages(self.flow), **endpoints, **cluster}

    def _authorizer(self) -> Authorizer | None:
        """Return who decides about clients of the metrics port; None if all are let in."""
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
        return AdminCalls(
            {DRAIN_PATH: self._drain_calls.drain},
            settings.admin_token_file if settings.enable_admin_writes else None,
        )

    @property
    def graph(self) -> PluginGraph:
        """The plugin graph in use."""
        return self._graphs.graph

    @property
    def is_ready(self) -> bool:
        """Whether discovery has reported, its pool exists and the process is not stopping."""
        has_pool = self._cluster is None or self._cluster.is_ready
        return self.store.synced and has_pool and not self._draining

    def reload_now(self) -> None:
        """Reload the configuration, even if its file is unchanged."""
        if self._reloader is None:
            log.warning("nothing to reload, the configuration does not come from a file")
        else:
            self._reloader.reload_now()

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
            shares, limits = share_descriptors(self.settings, sources=self._polled_sources())
            self.store.add_listener(PoolDescriptors(self.store, shares, self._polled_sources))
            await self._object_files.load(self._objects)
            with self._loop_lag:
                await self._serve(limits, stop, ready)
        finally:
            self._graphs.close()

    def _polled_sources(self) -> int:
        """Return the number of data sources that scrape every endpoint."""
        return len(polled(self.graph.sources))

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
                pages=self._debug_pages,
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
                    config=settings.config.source,
                    plugins=sorted(self.graph.plugins),
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
        """Return the tasks that run beside the servers, by name."""
        tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "data layer": self._data_layer.run,
            "objects": partial(self._object_files.run, self._objects),
            "uploads": self.service.uploads.run,
        }
        if (limits := self.service.time_limits) is not None:
            tasks["time-limits"] = limits.run
        if self.outliers is not None:
            tasks["outlier detection"] = self.outliers.run
        if self._cluster is not None:
            tasks["cluster"] = self._cluster.run
        if self._reloader is not None:
            tasks["config"] = self._reloader.run
        return tasks

    async def _until_there_are_endpoints(self) -> None:
        """Wait for the first report: a gateway sends requests as soon as the port is open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ENDPOINTS_SECONDS):
                await self.store.reported.wait()

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
        log.info("endpoint picker stopped", requests_in_flight=self.director.in_flight)

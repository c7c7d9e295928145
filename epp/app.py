"""The composition root: builds every component and owns every long-running task.

Startup order: plugins, store, metrics, listeners, discovery and scraping. The ext_proc port opens
last, once there are endpoints. Shutdown: the process becomes unready, waits for the drain delay,
closes the port, gives open streams the drain timeout, ends them such that their HTTP responses
continue, and cancels everything else. A configuration reload replaces the plugin graph.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import structlog

from epp.building import make_builder, make_random
from epp.config import (
    ConfigError,
    ConfigReloader,
    LoadedConfig,
    PluginGraph,
    PluginLifetimes,
    PluginTypes,
)
from epp.data_layer import (
    DataLayerError,
    DataLayerRuntime,
    EndpointStore,
    ObjectFiles,
    ObjectStore,
    Scraper,
    configured_names,
    fixed_discoveries,
    polled,
    served_names,
)
from epp.descriptors import PoolDescriptors, PortLimits, share_descriptors
from epp.ext_proc import LAST_CHUNK_SECONDS, METHOD, ExtProcService
from epp.flow_control import FlowController, SaturationDetector
from epp.flow_control.building import flow_settings
from epp.flow_control.controller import FreshMetrics
from epp.flow_control.sessions import PluginError, RegistrationError
from epp.flow_control.views.flow_views import debug_pages, flow_gauges
from epp.health import HealthServer, HealthService
from epp.listening import Listener, make_listener, make_metrics_tls
from epp.observability import (
    CertificateCollector,
    ConfigMetrics,
    FlowCollector,
    FlowMetrics,
    HttpLimits,
    LogCollector,
    LoopLag,
    LoopWatchdog,
    Metrics,
    MetricsServer,
    PluginMetricsCollector,
    PluginWatch,
    PortCollector,
    RevocationMetrics,
    StreamMetrics,
    TransportCollector,
    log_queues,
    register_process,
)
from epp.parsing import BodyLimits
from epp.request_control import BodyQueue, Director, Pipeline
from epp.settings import Ports, ServeSettings, Transport
from epp.transport import Http2Server, OpenStream, Server, observed

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
        self.store = EndpointStore()
        self._config_metrics = ConfigMetrics(self.metrics.registry)
        self.metrics.registry.register(LogCollector(log_queues))
        plugin_metrics = PluginMetricsCollector(
            self.metrics.budget, has_former_names=settings.has_deprecated_metrics
        )
        self.metrics.registry.register(plugin_metrics)
        self._builder = make_builder(
            settings.seed,
            metrics=plugin_metrics,
            max_page_bytes=settings.max_scrape_page_bytes,
            compat=settings.ext_proc.compat,
            experimental="allow" if settings.allow_experimental_plugins else "refuse",
        )
        self._lifetimes = PluginLifetimes()
        self.graph = self._builder.build(settings.config, observer=self._watch(settings.config))
        """The plugin graph in use."""
        self._lifetimes.enter(self.graph)
        self._tell_of(self.graph)
        self.flow = FlowController(
            pool=lambda: self.store.snapshot,
            clock=time.monotonic,
            observer=FlowMetrics(self.metrics, settings.pool_name),
            revocations=RevocationMetrics(self.metrics.registry, settings.pool_name),
        )
        """Queues requests while the pool is saturated."""
        self._prepare_flow(self.graph)()
        self.metrics.registry.register(
            FlowCollector(settings.pool_name, lambda: flow_gauges(self.flow))
        )
        self.store.add_listener(self.flow)
        scraper = Scraper(
            self.store,
            interval_seconds=settings.refresh_metrics_interval_seconds,
            staleness_seconds=settings.scoring_staleness_seconds,
            clock=time.monotonic,
            observer=FreshMetrics(self.metrics, self.flow.wake),
            cpu_share=settings.scrape_cpu_share,
        )
        self.metrics.watch_scrapes(scraper.intervals)
        fixed = fixed_discoveries(self._builder, settings.endpoints, settings.endpoints_file)
        self._data_layer = DataLayerRuntime(self.store, scraper, self.graph, fixed)
        self.metrics.watch_pool(
            settings.pool_name,
            lambda: self.store.snapshot,
            staleness_seconds=settings.metrics_staleness_seconds,
        )
        self.store.add_listener(self.metrics.attempts)
        self._objects = ObjectStore(
            pool_name=settings.pool_name,
            rng=make_random(settings.seed, "objects"),
            rewritten=self.metrics.model_rewritten,
        )
        for source in (
            lambda: served_names(self.store.snapshot),
            lambda: configured_names(self.graph.config),
            self._objects.names,
        ):
            self.metrics.names.learn_from(source)
        self._object_files = ObjectFiles(settings.objects)
        self._reloader = self._make_reloader()
        self.director = Director(
            pool=lambda: self.store.snapshot,
            find_address=self.store.find_address,
            pipeline=_pipeline(self.graph),
            metrics=self.metrics,
            clock=time.monotonic,
            policies=self._objects if settings.objects else None,
            outcomes=None if self._reloader is None else self._reloader.outcomes,
            flow=self.flow,
            emit_endpoint_scores=settings.emit_endpoint_scores,
            follow_subset_hint=settings.follow_subset_hint,
            body_limits=BodyLimits(
                settings.ext_proc.max_body_bytes,
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
        self._idle_closers: list[Callable[[], None]] = []
        self._draining = False

    @property
    def is_ready(self) -> bool:
        """Whether discovery has reported and the process is not stopping."""
        return self.store.synced and not self._draining

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
            ExceptionGroup: A component failed, for example because a port is in use or a discovery
                cannot start; the others have been stopped.
            ObjectFileError: An objects file is invalid.
        """
        settings = self.settings
        try:
            opened: OpenStream = self.service.opened
            if settings.has_stream_metrics:
                opened = observed(opened, StreamMetrics(self.metrics.registry), time.monotonic)
            methods: dict[str, OpenStream] = {METHOD: opened}
            if settings.health_checking:
                methods.update(self._health.methods)
            shares, port_limits = share_descriptors(
                settings, sources=len(polled(self.graph.sources))
            )
            self.store.add_listener(
                PoolDescriptors(self.store, shares, lambda: len(polled(self.graph.sources)))
            )
            listener = await asyncio.to_thread(
                make_listener,
                replace(
                    settings,
                    transport_settings=replace(
                        settings.transport_settings, max_connections=port_limits.ext_proc
                    ),
                ),
                methods,
                budget=self.service.held,
                exhausted=self._free_descriptors,
            )
            if isinstance(listener.server, Http2Server):
                self.metrics.registry.register(TransportCollector(listener.server.statistics))
            if (follower := listener.follower) is not None:
                self.metrics.registry.register(
                    CertificateCollector(
                        lambda: follower.current.certificate.expires_at, lambda: follower.reloads
                    )
                )
            await self._object_files.load(self._objects)
            with self._loop_lag:
                await self._serve(listener, port_limits, stop, ready)
        finally:
            self._lifetimes.leave(self.graph)

    def _polled_sources(self) -> int:
        return len(polled(self.graph.sources))

    def _free_descriptors(self) -> None:
        """Close idle connections, so that a port can accept new ones; thread-safe."""
        for close_idle in self._idle_closers:
            close_idle()

    async def _serve(
        self,
        listener: Listener,
        port_limits: PortLimits,
        stop: asyncio.Event,
        ready: Callable[[Ports], None] | None,
    ) -> None:
        settings, server = self.settings, listener.server
        watchdog = LoopWatchdog()
        metrics_tls, metrics_follower = await asyncio.to_thread(make_metrics_tls, settings)
        health = HealthServer(
            lambda: self.is_ready,
            host=settings.host,
            port=settings.grpc_health_port,
            is_alive=lambda: not watchdog.is_stuck,
            max_connections=port_limits.health,
            exhausted=self._free_descriptors,
        )
        async with (
            watchdog,
            asyncio.TaskGroup() as tasks,
            MetricsServer(
                self.metrics,
                host=settings.host,
                port=settings.metrics_port,
                pages=lambda: debug_pages(self.flow),
                limits=HttpLimits(max_connections=port_limits.metrics),
                tls=metrics_tls,
            ) as metrics_server,
        ):
            self._watch_ports(server, health, metrics_server)
            running = [
                tasks.create_task(self._data_layer.run(), name="data layer"),
                tasks.create_task(self._object_files.run(self._objects), name="objects"),
            ]
            uploads = self.service.uploads
            running.append(tasks.create_task(uploads.run(), name="uploads"))
            if (limits := self.service.time_limits) is not None:
                running.append(tasks.create_task(limits.run(), name="time-limits"))
            if self._reloader is not None:
                running.append(tasks.create_task(self._reloader.run(), name="config"))
            if metrics_follower is not None:
                follow = metrics_follower.run()
                running.append(tasks.create_task(follow, name="metrics-certificates"))
            if listener.follower is not None:
                running.append(tasks.create_task(listener.follower.run(), name="certificates"))
            try:
                health_port = await health.start()
                await self._until_there_are_endpoints()
                ports = Ports(await server.start(), health_port, metrics_server.port)
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
                await self._drain(server)
            finally:
                await server.stop(0)
                await health.stop()
                for task in running:
                    task.cancel()

    def _watch_ports(self, server: Server, health: HealthServer, metrics: MetricsServer) -> None:
        ports = {"health": health.port_statistics, "metrics": metrics.port_statistics}
        self._idle_closers = [metrics.close_idle, health.close_idle]
        if isinstance(server, Http2Server):
            ports["ext_proc"] = server.port_statistics
            self._idle_closers.append(server.close_idle)
        self.metrics.registry.register(
            PortCollector(lambda: {name: read() for name, read in ports.items()})
        )

    def build(self, config: LoadedConfig, types: PluginTypes) -> PluginGraph:
        """Build a graph that keeps the unchanged instances of the current one.

        Raises:
            ConfigError: The configuration is invalid.
        """
        return self._builder.build(config, self.graph, types=types, observer=self._watch(config))

    async def swap(self, graph: PluginGraph) -> None:
        """Replace the current graph; requests in flight finish on the previous one.

        Raises:
            ConfigError: Its discovery failed; the current graph stays in use.
        """
        loop = asyncio.get_running_loop()
        self._lifetimes.enter(graph)
        try:
            following = _pipeline(graph)
            await self._data_layer.prepare(graph)
            use_flow = self._prepare_flow(graph)
            self._data_layer.use(graph)
        except BaseException as error:
            # One loop iteration later: the cancelled task of a failed discovery ends in this one.
            loop.call_soon(self._lifetimes.leave, graph)
            if isinstance(error, DataLayerError):
                raise ConfigError(f"{graph.config.source}: {error}") from error
            raise
        use_flow()  # nothing below can fail
        before, self.graph = self.graph, graph
        pipeline, self.director.pipeline = self.director.pipeline, following
        before.guards.observer.retire()
        self.metrics.plugins_disabled.clear()
        self._tell_of(graph)

        def leave() -> None:
            # One iteration later, as above: tasks of dropped discoveries and sources end first.
            loop.call_soon(self._lifetimes.leave, before)

        pipeline.when_idle(leave)

    def _prepare_flow(self, graph: PluginGraph) -> Callable[[], None]:
        """Return a callback that switches flow control to ``graph``.

        Raises:
            ConfigError: Its session plugins cannot be configured.
        """
        settings = flow_settings(
            graph,
            self.settings.refresh_metrics_interval_seconds,
            self.settings.eviction_staleness_seconds,
        )
        if settings is not None and self.settings.ext_proc.compat == "reference":
            settings = replace(settings, holds_filtered=False, displaces=False)
        try:
            return self.flow.prepare(settings)
        except (PluginError, RegistrationError) as error:
            raise ConfigError(f"{graph.config.source}: extensions.sessions: {error}") from error

    async def _until_there_are_endpoints(self) -> None:
        """Wait for the first report: a gateway sends requests as soon as the port is open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ENDPOINTS_SECONDS):
                await self.store.reported.wait()

    def _watch(self, config: LoadedConfig) -> PluginWatch:
        limit = config.file.extensions.guard_rails.slow_call_ms / 1000
        return PluginWatch(self.metrics, slow_call_seconds=limit)

    def _tell_of(self, graph: PluginGraph) -> None:
        self._config_metrics.in_use(graph.config.digest, graph.version)
        for warning in (*graph.config.warnings, *graph.warnings):
            text = warning.text(graph.config.source)
            log.warning("configuration accepted with a warning", problem=text)

    def _make_reloader(self) -> ConfigReloader | None:
        settings = self.settings
        if settings.config_file is None:
            return None
        return ConfigReloader(
            settings.config_file,
            self,
            registry=self._builder.registry,
            metrics=self._config_metrics,
            clock=time.monotonic,
            rollback=settings.rollback,
            poll_seconds=settings.config_poll_seconds,
        )

    async def _drain(self, server: Server) -> None:
        self._draining = True
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


def _pipeline(graph: PluginGraph) -> Pipeline:
    detector = graph.detector
    assert detector is None or isinstance(detector, SaturationDetector)  # noqa: S101 - the plan has looked
    return Pipeline.of(
        graph.hooks,
        graph.scheduler,
        graph.guards,
        graph.shadows,
        detector,
        parsers=graph.parsers,
    )

"""The composition root: builds every component and owns every long-running task.

Start: plugins, store, metrics, listeners, then discovery and scraping; the ext_proc port opens
last. Stop: readiness goes off, open streams get the drain timeout and are then ended so that their
HTTP answers go on, and everything else is cancelled.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog

from epp.config import ConfigError, ConfigFile, GraphBuilder, PluginGraph, PluginRegistry
from epp.data_layer import EndpointStore, Scraper, StaticDiscovery
from epp.data_layer.plugins import EndpointDiscovery, EndpointListener
from epp.ext_proc import METHOD, ExtProcService
from epp.observability import (
    HealthServer,
    Metrics,
    MetricsServer,
    PluginWatch,
    TransportCollector,
)
from epp.request_control import DataProducer, Director, PreRequest, ResponseComplete
from epp.transport import (
    GrpcioServer,
    Http2Server,
    OpenStream,
    Server,
    TlsSettings,
    TransportSettings,
    load_certificate,
    make_context,
)

log = structlog.get_logger()

Transport = Literal["http2", "grpcio"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What one EPP process is told on its command line."""

    config: ConfigFile
    config_source: str
    """Where ``config`` is from, for messages."""
    endpoints: tuple[str, ...] = ()
    """Static endpoints, ``host:port`` or ``name=host:port``."""
    endpoints_file: str | None = None
    """File in the reference's discovery format, followed while running."""
    pool_name: str = "default"
    host: str = "0.0.0.0"  # noqa: S104 - a gateway on another host has to reach it
    grpc_port: int = 9002
    grpc_health_port: int = 9003
    metrics_port: int = 9090
    transport: Transport = "http2"
    """``http2`` is our own, ``grpcio`` the C core's."""
    transport_settings: TransportSettings = field(default_factory=TransportSettings)
    """Limits and timeouts; grpcio takes the length of messages from it, and nothing else."""
    tls: TlsSettings | None = None
    """None for plaintext."""
    refresh_metrics_interval_seconds: float = 0.05
    metrics_staleness_seconds: float = 0.2
    drain_timeout_seconds: float = 30.0
    seed: int | None = None
    """Makes every random choice repeatable."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a started EPP listens."""

    grpc: int
    health: int
    metrics: int


class App:
    """One endpoint picker."""

    def __init__(self, settings: ServeSettings) -> None:
        """Build every part; nothing listens or runs yet.

        Raises:
            ConfigError: The configuration cannot be built.
        """
        self.settings = settings
        self.metrics = Metrics()
        self.store = EndpointStore()
        registry = PluginRegistry.from_entry_points()
        builder = GraphBuilder(
            registry, services=_services(settings.seed), observer=PluginWatch(self.metrics)
        )
        self.graph = builder.build(settings.config, settings.config_source)
        self._discoveries = self._build_discoveries(builder, registry)
        for listener in self.graph.implementing(EndpointListener):
            self.store.add_listener(listener)
        self.scraper = Scraper(
            self.store,
            interval_seconds=settings.refresh_metrics_interval_seconds,
            staleness_seconds=settings.metrics_staleness_seconds,
            clock=time.monotonic,
            observer=self.metrics,
        )
        self.metrics.watch_pool(settings.pool_name, lambda: self.store.snapshot)
        self.director = _director(self.graph, self.store, self.metrics)
        self.service = ExtProcService(self.director, time.monotonic)
        self._draining = False

    @property
    def is_ready(self) -> bool:
        """Discovery has reported and the process is not stopping."""
        return self.store.synced and not self._draining

    async def run(self, stop: asyncio.Event, ready: Callable[[Ports], None] | None = None) -> None:
        """Serve until ``stop`` is set.

        Args:
            stop: Ends the run, draining first.
            ready: Called once with the ports when everything listens.

        Raises:
            ExceptionGroup: A part failed (a taken port, a discovery that cannot start, a bug);
                the others were stopped first.
        """
        settings = self.settings
        server = await asyncio.to_thread(self._build_server)
        health = HealthServer(
            lambda: self.is_ready, host=settings.host, port=settings.grpc_health_port
        )
        async with (
            asyncio.TaskGroup() as tasks,
            MetricsServer(
                self.metrics, host=settings.host, port=settings.metrics_port
            ) as metrics_server,
        ):
            running = [
                tasks.create_task(discovery.run(self.store), name=f"discovery-{discovery.name}")
                for discovery in self._discoveries
            ]
            running.append(tasks.create_task(self.scraper.run(), name="scraper"))
            try:
                health_port = await health.start()
                ports = Ports(await server.start(), health_port, metrics_server.port)
                log.info(
                    "endpoint picker started",
                    grpc_port=ports.grpc,
                    grpc_health_port=ports.health,
                    metrics_port=ports.metrics,
                    config=settings.config_source,
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

    def _build_server(self) -> Server:
        """Make the transport; blocks, as it reads and makes certificates."""
        settings = self.settings
        methods: dict[str, OpenStream] = {METHOD: self.service.opened}
        tls = settings.tls
        certificate = None if tls is None else load_certificate(tls.certificate_directory)
        if settings.transport == "grpcio":
            return GrpcioServer(
                methods,
                host=settings.host,
                port=settings.grpc_port,
                max_message_bytes=settings.transport_settings.messages.max_message_bytes,
                certificate=certificate,
            )
        server = Http2Server(
            methods,
            host=settings.host,
            port=settings.grpc_port,
            tls=None if tls is None or certificate is None else make_context(tls, certificate),
            settings=settings.transport_settings,
        )
        self.metrics.registry.register(TransportCollector(server.statistics))
        return server

    async def _drain(self, server: Server) -> None:
        self._draining = True
        timeout = self.settings.drain_timeout_seconds
        log.info("draining", open_streams=len(self.service.open_streams), timeout_seconds=timeout)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.service.drain(timeout), name="drain")
            # A second more than the drain: ended streams still have to flush their status.
            tasks.create_task(server.stop(timeout + 1), name="stop-server")
        log.info("endpoint picker stopped", requests_in_flight=self.director.in_flight)

    def _build_discoveries(
        self, builder: GraphBuilder, registry: PluginRegistry
    ) -> list[EndpointDiscovery]:
        settings = self.settings
        discoveries: list[EndpointDiscovery] = []
        if self.graph.discovery is not None:
            if not isinstance(self.graph.discovery, EndpointDiscovery):
                raise ConfigError(
                    f"{settings.config_source}: dataLayer.discovery refers to"
                    f" {self.graph.discovery.name!r}, which is no endpoint discovery"
                )
            discoveries.append(self.graph.discovery)
        if settings.endpoints_file is not None:
            made = registry.build(
                "file-discovery", "endpoints-file", {"path": settings.endpoints_file}
            )
            if isinstance(made, EndpointDiscovery):
                discoveries.append(made)
        if settings.endpoints:
            discoveries.append(StaticDiscovery(settings.endpoints))
        if not discoveries:
            raise ConfigError(
                "no endpoints: give --endpoint HOST:PORT, --endpoints-file FILE, or"
                " dataLayer.discovery in the configuration"
            )
        return discoveries


def _services(seed: int | None) -> dict[str, Callable[[str], Any]]:
    """What plugins may ask for: a random generator of their own, and the clock."""
    return {
        "rng": lambda name: random.Random(None if seed is None else f"{seed}/{name}"),  # noqa: S311 - spreads ties
        "clock": lambda _: time.monotonic,
    }


def _director(graph: PluginGraph, store: EndpointStore, metrics: Metrics) -> Director:
    return Director(
        pool=lambda: store.snapshot,
        find_address=store.find_address,
        scheduler=graph.scheduler,
        metrics=metrics,
        clock=time.monotonic,
        producers=graph.implementing(DataProducer),
        pre_request=graph.implementing(PreRequest),
        response_complete=graph.implementing(ResponseComplete),
    )

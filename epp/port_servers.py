"""The servers of the ext_proc, health and metrics ports, with their shares of file descriptors.

A port that runs out of descriptors closes idle connections of all three.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from epp.descriptors import PortLimits
from epp.health import HealthServer
from epp.listening import make_listener, make_metrics_tls
from epp.observability import (
    AdminCalls,
    Authorizer,
    CertificateCollector,
    DebugPagesCallback,
    EventSource,
    HttpLimits,
    Metrics,
    MetricsRegistry,
    MetricsServer,
    PortCollector,
    Response,
    TransportCollector,
)
from epp.settings import ServeSettings
from epp.transport import Budget, CredentialsFollower, Http2Server, OpenStream, Server


@dataclass(frozen=True, slots=True)
class PortServers:
    """The servers of one process; only the metrics port listens already."""

    ext_proc: Server
    health: HealthServer
    metrics: MetricsServer
    followers: Mapping[str, CredentialsFollower]
    """Tasks that reload certificates, by name."""

    def tasks(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the tasks that must run while the servers do, by name."""
        return {name: follower.run for name, follower in self.followers.items()}

    async def stop(self) -> None:
        """Close the ext_proc and health ports and their connections."""
        await self.ext_proc.stop(0)
        await self.health.stop()


@asynccontextmanager
async def port_servers(
    settings: ServeSettings,
    methods: Mapping[str, OpenStream],
    limits: PortLimits,
    *,
    metrics: Metrics,
    pools: Callable[[], Mapping[str, MetricsRegistry]],
    pages: DebugPagesCallback,
    feeds: Callable[[], Mapping[str, EventSource]],
    files: Mapping[str, Response],
    admin: AdminCalls,
    authorizer: Authorizer | None,
    budget: Budget,
    is_ready: Callable[[], bool],
    is_alive: Callable[[], bool],
) -> AsyncIterator[PortServers]:
    """Create the servers, and register their metrics; the metrics port is open within the block.

    Args:
        settings: Ports, transport and TLS.
        methods: Handlers of the ext_proc port, by gRPC method path.
        limits: Maximum number of connections of each port.
        metrics: Served on the metrics port.
        pools: Returns the metrics of each pool, which are on the same page; none if there is only
            one pool.
        pages: Returns the current debug pages.
        feeds: Returns the current feeds of events; called in another thread.
        files: Files of the live page.
        admin: The changing calls of the metrics port.
        authorizer: Authorizes clients of that port's other pages; None lets in all.
        budget: Memory budget for bytes that the ext_proc transport buffers.
        is_ready: Result of the readiness check; called in the health server's thread.
        is_alive: The same for the liveness check.

    Raises:
        TlsError: A certificate is invalid.
        PortError: The metrics port cannot be opened.
    """
    idle_closers: list[Callable[[], None]] = []

    def close_idle() -> None:
        """Close idle connections, so that a port can accept new ones; thread-safe."""
        for close in idle_closers:
            close()

    own = replace(settings.transport_settings, max_connections=limits.ext_proc)
    listener = await asyncio.to_thread(
        make_listener,
        replace(settings, transport_settings=own),
        methods,
        budget=budget,
        exhausted=close_idle,
    )
    metrics_tls, metrics_follower = await asyncio.to_thread(make_metrics_tls, settings)
    health = HealthServer(
        is_ready,
        host=settings.host,
        port=settings.grpc_health_port,
        is_alive=is_alive,
        max_connections=limits.health,
        exhausted=close_idle,
        path=settings.health_socket,
    )
    async with MetricsServer(
        metrics,
        host=settings.host,
        port=settings.metrics_port,
        path=settings.metrics_socket,
        pools=pools,
        pages=pages,
        feeds=feeds,
        files=files,
        admin=admin,
        authorizer=authorizer,
        limits=HttpLimits(max_connections=limits.metrics),
        tls=metrics_tls,
    ) as metrics_server:
        statistics = {"health": health.port_statistics, "metrics": metrics_server.port_statistics}
        idle_closers += [metrics_server.close_idle, health.close_idle]
        if isinstance(server := listener.server, Http2Server):
            metrics.registry.register(TransportCollector(server.statistics))
            statistics["ext_proc"] = server.port_statistics
            idle_closers.append(server.close_idle)
        metrics.registry.register(
            PortCollector(lambda: {name: read() for name, read in statistics.items()})
        )
        if (follower := listener.follower) is not None:
            metrics.registry.register(
                CertificateCollector(
                    lambda: follower.current.certificate.expires_at, lambda: follower.reloads
                )
            )
        followers = {"certificates": follower, "metrics-certificates": metrics_follower}
        yield PortServers(
            server,
            health,
            metrics_server,
            {name: each for name, each in followers.items() if each is not None},
        )

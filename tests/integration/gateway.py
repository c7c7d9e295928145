"""A whole gateway in the test's process but for Envoy, which is the real binary."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from epp.app import App, Ports, ServeSettings
from epp.config import DEFAULT_CONFIG, load_text
from epp.lab.envoy import EXT_PROC_STATS, EnvoyProcess, GatewayConfig, Mode
from epp.lab.envoy.bootstrap import render_yaml
from epp.lab.fleet import Fleet, FleetConfig

MODES = tuple(Mode)


@dataclass(slots=True)
class Gateway:
    """The parts of a running gateway, for a test to look into."""

    url: str
    app: App
    fleet: Fleet
    envoy: EnvoyProcess
    client: httpx.AsyncClient
    ports: Ports

    async def faults(self) -> dict[str, int]:
        """Envoy's counters that must stay at 0."""
        stats = await self.envoy.stats(EXT_PROC_STATS)
        names = ("spurious_msgs_received", "streams_failed", "rejected_header_mutations")
        return {name: stats[EXT_PROC_STATS + name] for name in names}

    async def messages(self) -> int:
        """Messages Envoy has sent to the endpoint picker so far."""
        stats = await self.envoy.stats(EXT_PROC_STATS)
        return stats[EXT_PROC_STATS + "stream_msgs_sent"]

    def in_flight(self) -> int:
        """What the EPP holds reserved."""
        return sum(endpoint.load.in_flight for endpoint in self.app.store.snapshot)

    async def settled(self) -> None:
        """Wait until every ext_proc stream has ended."""
        await self.app.service.drain(10)

    async def completion(self, **body: Any) -> httpx.Response:
        """Ask for a completion through the gateway."""
        document = {"model": "tiny", "prompt": "Hello", "max_tokens": 4, **body}
        return await self.client.post(f"{self.url}/v1/completions", json=document)


@asynccontextmanager
async def running(
    mode: Mode = Mode.LEAN,
    *,
    fleet: FleetConfig | None = None,
    config: str = DEFAULT_CONFIG,
    refresh_seconds: float = 0.05,
) -> AsyncIterator[Gateway]:
    """Run a fleet, an EPP and an Envoy in front of both; all are ready and scraped."""
    stop = asyncio.Event()
    ready: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    fleet = fleet or FleetConfig(endpoints=3, time_scale=0.05)
    async with asyncio.TaskGroup() as tasks, Fleet(fleet) as servers:
        settings = ServeSettings(
            config=load_text(config, "test"),
            config_source="test",
            endpoints=servers.addresses,
            host="127.0.0.1",
            grpc_port=0,
            grpc_health_port=0,
            metrics_port=0,
            drain_timeout_seconds=2.0,
            refresh_metrics_interval_seconds=refresh_seconds,
            seed=1,
        )
        app = await asyncio.to_thread(App, settings)  # it looks for plugins on disk
        serving = tasks.create_task(app.run(stop, ready.set_result), name="app")
        try:
            serving.add_done_callback(lambda _: ready.done() or ready.cancel())
            ports = await ready
            text = await asyncio.to_thread(
                render_yaml,
                GatewayConfig(
                    mode=mode,
                    endpoints=servers.addresses,
                    listen_port=0,
                    epp_port=ports.grpc,
                ),
            )
            limits = httpx.Limits(max_connections=200)
            client = await asyncio.to_thread(
                httpx.AsyncClient, timeout=15.0, limits=limits, trust_env=False
            )
            async with EnvoyProcess(text) as envoy, client:
                host, port = await envoy.listener_address()
                gateway = Gateway(f"http://{host}:{port}", app, servers, envoy, client, ports)
                await until(
                    lambda: all(
                        endpoint.metrics.requested_at is not None for endpoint in app.store.snapshot
                    )
                )
                yield gateway
        finally:
            stop.set()
            await serving


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something outside the test's reach has happened; fail after 10 s."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - nothing there tells of it
            await asyncio.sleep(0.005)

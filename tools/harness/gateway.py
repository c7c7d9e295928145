"""A gateway in the test's process, with a real Envoy binary."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import Any, Protocol

import httpx
import pytest

from epp.app import App, Ports, ServeSettings, Transport
from epp.config import DEFAULT_CONFIG, RollbackSettings, load_file, load_text
from epp.lab.envoy import EXT_PROC_STATS, EnvoyProcess, GatewayConfig, Mode
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.names import EPP_CLUSTER, LISTENER
from epp.lab.fleet import EngineConfig, Fleet, FleetConfig
from epp.observability import TransportCollector
from epp.observability.deprecated_metrics import MirroredCollector
from epp.outlier_detection import OutlierSettings
from epp.transport import TlsSettings
from tools.harness.ports import free_ports

MODES = tuple(Mode)
TRANSPORTS: tuple[Transport, ...] = ("http2", "grpcio")
in_each_mode = pytest.mark.parametrize(
    ("mode", "transport"),
    [
        *(pytest.param(mode, "http2", id=mode.value) for mode in MODES),
        # This mode has the most and the longest messages.
        pytest.param(Mode.FULL_DUPLEX, "grpcio", id="full-duplex-grpcio"),
    ],
    indirect=True,
)
"""Each mode of Envoy on our transport, and one on the other."""

NO_FAULTS = {"spurious_msgs_received": 0, "streams_failed": 0, "rejected_header_mutations": 0}
"""Result of :meth:`Gateway.faults` without errors."""
ROOMY = FleetConfig(
    endpoints=2, engine=EngineConfig(max_model_len=4_000_000, num_blocks=270_000, time_scale=0.001)
)
"""Takes prompts of millions of tokens."""
Labels = Mapping[int, Mapping[str, str]]
"""Labels of endpoints by the index of their server."""


class Servers(Protocol):
    """Model servers that listen."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """``host:port`` of each."""


@dataclass(slots=True)
class Picker:
    """A running endpoint picker that a test inspects."""

    app: App
    ports: Ports
    stop: asyncio.Event
    """Ends it, as SIGTERM does."""

    def in_flight(self) -> int:
        """Number of requests reserved on its endpoints."""
        return sum(endpoint.load.in_flight for endpoint in self.app.pool.store.snapshot)

    def open_streams(self) -> int:
        """Number of streams whose HTTP requests have not ended."""
        return len(self.app.service.open_streams)

    def counted(self, name: str) -> float | None:
        """Return a metric of our own transport, summed over its labels; None on another one."""
        full = f"llm_d_epp_transport_{name}"
        # Only those that may have it: to collect all took a fifth of the CPU time of some tests.
        kinds = TransportCollector | MirroredCollector
        collectors = [
            each for each in self.app.metrics.registry.collectors if isinstance(each, kinds)
        ]
        families = [family for each in collectors for family in each.collect()]
        if not any(family.name.startswith("llm_d_epp_transport_") for family in families):
            return None
        return sum(
            sample.value for family in families for sample in family.samples if sample.name == full
        )

    async def settled(self) -> None:
        """Wait until every ext_proc stream has ended."""
        async with asyncio.timeout(10):
            await self.app.service.drain(3600)
        await until(lambda: self.counted("streams") in {0, None})

    def assert_untouched(self) -> None:
        """Check that nothing is reserved, no stream is open, and this side ended no connection."""
        assert self.open_streams() == 0
        assert self.app.pool.director.in_flight == self.in_flight() == 0
        assert self.counted("streams") in {0, None}
        assert self.counted("waiting_bytes") in {0, None}
        assert self.counted("connections_ended_total") in {0, None}


@dataclass(slots=True)
class Gateway(Picker):
    """The parts of a running gateway that a test inspects."""

    url: str
    fleet: Fleet
    envoy: EnvoyProcess
    client: httpx.AsyncClient

    async def faults(self) -> dict[str, int]:
        """Envoy's counters that must stay at 0."""
        stats = await self.envoy.stats(EXT_PROC_STATS)
        names = ("spurious_msgs_received", "streams_failed", "rejected_header_mutations")
        return {name: stats[EXT_PROC_STATS + name] for name in names}

    async def messages(self) -> int:
        """Messages Envoy has sent to the endpoint picker so far."""
        stats = await self.envoy.stats(EXT_PROC_STATS)
        return stats[EXT_PROC_STATS + "stream_msgs_sent"]

    async def connections(self) -> dict[str, int]:
        """Envoy's connections to the endpoint picker: made, lost, and told to end by GOAWAY."""
        prefix = f"cluster.{EPP_CLUSTER}.upstream_cx_"
        stats = await self.envoy.stats(prefix)
        return {name: stats[prefix + name] for name in ("total", "destroy", "close_notify")}

    async def completion(self, **body: Any) -> httpx.Response:
        """Request a completion through the gateway."""
        document = {"model": "tiny", "prompt": "Hello", "max_tokens": 4, **body}
        return await self.client.post(f"{self.url}/v1/completions", json=document)


@asynccontextmanager
async def serving(settings: ServeSettings) -> AsyncIterator[Picker]:
    """Run an EPP; its ports are open."""
    stop = asyncio.Event()
    ready: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        app = await asyncio.to_thread(App, settings)  # it looks for plugins on disk
        running = tasks.create_task(app.run(stop, ready.set_result), name="app")
        try:
            running.add_done_callback(lambda _: ready.done() or ready.cancel())
            yield Picker(app, await ready, stop)
        finally:
            stop.set()
            await running


def is_scraped(app: App, endpoints: int) -> bool:
    """Return whether the pool has `endpoints` endpoints, all of them scraped."""
    pool = app.pool.store.snapshot
    return len(pool) == endpoints and all(e.metrics.requested_at is not None for e in pool)


NO_EJECTIONS = OutlierSettings(outlier_detection=False)


@asynccontextmanager
async def picking(
    fleet: Servers,
    *,
    transport: Transport = "http2",
    tls: bool | TlsSettings = False,
    config: str | Path = DEFAULT_CONFIG,
    refresh_seconds: float = 0.05,
    rollback: RollbackSettings | None = None,
    endpoints_file: Path | None = None,
    objects: tuple[Path, ...] = (),
    serve: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[Picker]:
    """Run an EPP in front of a fleet; it is ready and the fleet scraped.

    If ``config`` is a path, the file is polled many times a second. ``endpoints_file`` lists the
    fleet's servers; without it they are fixed endpoints. ``serve`` has further settings of the EPP;
    without ``outliers`` it ejects no endpoint, so a server that is stopped for a moment stays a
    candidate. With empty ``endpoints`` the configuration has to discover the servers.
    """
    endpoints = () if endpoints_file else fleet.addresses
    settings = ServeSettings(
        **{
            "outliers": NO_EJECTIONS,
            "endpoints": endpoints,
            "drain_timeout_seconds": 2.0,
            **serve,
        },
        allow_experimental_plugins=True,
        config=await asyncio.to_thread(load_file, config)
        if isinstance(config, Path)
        else load_text(config, "test"),
        config_file=config if isinstance(config, Path) else None,
        config_poll_seconds=0.02,
        rollback=rollback or RollbackSettings(),
        objects=objects,
        endpoints_file=endpoints_file,
        host="127.0.0.1",
        grpc_port=0,
        grpc_health_port=0,
        metrics_port=0,
        transport=transport,
        tls=(TlsSettings() if tls is True else tls) or None,
        refresh_metrics_interval_seconds=refresh_seconds,
        seed=1,
    )
    async with serving(settings) as picker:
        await until(lambda: is_scraped(picker.app, len(fleet.addresses)))
        yield picker


@asynccontextmanager
async def running(
    mode: Mode = Mode.LEAN,
    *,
    transport: Transport = "http2",
    tls: bool | TlsSettings = False,
    fleet: FleetConfig | None = None,
    config: str | Path | Callable[[Fleet], str] = DEFAULT_CONFIG,
    refresh_seconds: float = 0.05,
    rollback: RollbackSettings | None = None,
    labels: Labels | None = None,
    objects: tuple[Path, ...] = (),
    serve: Mapping[str, Any] = MappingProxyType({}),
    hedging: bool = False,
    edit: Callable[[dict[str, Any]], None] = lambda _: None,
    listener: str = LISTENER,
) -> AsyncIterator[Gateway]:
    """Run a fleet, an EPP and an Envoy in front of both.

    With ``labels`` the endpoints have them, and are named ``default/endpoint-0`` and so on.
    ``config`` may depend on the running fleet. ``serve`` has further settings of the EPP, ``edit``
    changes the bootstrap of Envoy, and ``listener`` is Envoy's listener in the gateway's URL.
    """
    fleet = fleet or FleetConfig(endpoints=3, time_scale=0.05)
    if not (fleet.ports or fleet.first_port):
        # No connection takes the port of a server that refuses connections for a time.
        ports = await asyncio.to_thread(free_ports, fleet.endpoints)
        fleet = replace(fleet, ports=tuple(ports))
    async with (
        Fleet(fleet) as servers,
        _endpoints_file(servers, labels) as endpoints_file,
        picking(
            servers,
            transport=transport,
            tls=tls,
            config=config(servers) if callable(config) else config,
            refresh_seconds=refresh_seconds,
            rollback=rollback,
            endpoints_file=endpoints_file,
            objects=objects,
            serve=serve,
        ) as picker,
    ):
        document = await asyncio.to_thread(
            bootstrap,
            GatewayConfig(
                mode=mode,
                endpoints=servers.addresses,
                listen_port=0,
                epp_port=picker.ports.grpc or 9002,
                epp_socket=str(serve.get("socket_file", "")),
                epp_tls=bool(tls),
                hedging=hedging,
            ),
        )
        edit(document)
        text = json.dumps(document)
        limits = httpx.Limits(max_connections=400)
        client = await asyncio.to_thread(
            httpx.AsyncClient, timeout=15.0, limits=limits, trust_env=False
        )
        async with EnvoyProcess(text) as envoy, client:
            host, port = await envoy.listener_address(listener)
            yield Gateway(
                picker.app,
                picker.ports,
                picker.stop,
                f"http://{host}:{port}",
                servers,
                envoy,
                client,
            )


@asynccontextmanager
async def _endpoints_file(fleet: Fleet, labels: Labels | None) -> AsyncIterator[Path | None]:
    """Yield a temporary endpoints file with a fleet's servers; None without ``labels``."""
    if labels is None:
        yield None
        return
    entries = [
        {
            "name": server.name,
            "address": server.host,
            "port": server.port,
            "labels": dict(labels.get(index, {})),
        }
        for index, server in enumerate(fleet.servers)
    ]
    with NamedTemporaryFile("w", prefix="epp-endpoints-") as file:
        json.dump({"endpoints": entries}, file)
        file.flush()
        yield Path(file.name)


async def until(holds: Callable[[], bool]) -> None:
    """Poll until a condition outside the test's control holds; fail after 40 s."""
    async with asyncio.timeout(40):
        while not holds():  # noqa: ASYNC110 - nothing there tells of it
            await asyncio.sleep(0.005)

"""A gateway for fault runs: model servers that fail on demand, a real Envoy, and the EPP.

The EPP runs in the test's own process, where its objects can be counted, or as a process of its
own, whose memory can be read. Either way it is judged by its own metrics.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from epp.lab.envoy import EXT_PROC_STATS, EnvoyProcess, GatewayConfig, Mode
from epp.lab.envoy.bootstrap import render_yaml
from epp.lab.envoy.names import EPP_CLUSTER
from tools.bench import processes
from tools.faults.upstream import ModelServers, model_servers
from tools.harness.gateway import Picker, picking

SETTLE_SECONDS = 30.0
POLL_SECONDS = 0.02

NOTHING_LEFT = (
    "endpoint_inflight_requests",
    "request_running",
    "transport_streams",
    "transport_waiting_bytes",
)
"""Metrics that are 0 when no request is under way."""
NEVER = ("transport_connections_ended_total", "internal_faults_total", "plugin_failures_total")
"""Metrics that must stay 0 whatever clients and model servers do."""
ENVOYS_FAULTS = (
    "spurious_msgs_received",
    "streams_failed",
    "rejected_header_mutations",
    "message_timeouts",
    "failure_mode_allowed",
)
CONNECTIONS = ("destroy", "close_notify")
"""Counters of Envoy's connections to the EPP that ended, and that the EPP announced to end."""


@dataclass(slots=True, kw_only=True)
class FaultGateway:
    """The parts of a running gateway that a fault run inspects."""

    mode: Mode
    port: int
    """Port of Envoy."""
    servers: ModelServers
    envoy: EnvoyProcess
    metrics_url: str
    http: httpx.AsyncClient
    pid: int = 0
    """The EPP's process; 0 if it is this one."""
    picker: Picker | None = field(default=None)
    """The EPP, if it is in this process."""

    async def metrics(self) -> dict[str, float]:
        """Return the sums of the EPP's metrics over their labels."""
        page = (await self.http.get(self.metrics_url)).text
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(page):
            suffix = "_total" if family.type == "counter" else ""
            sums.setdefault(family.name.removeprefix("llm_d_epp_") + suffix, 0.0)
            for sample in family.samples:
                name = sample.name.removeprefix("llm_d_epp_")
                sums[name] = sums.get(name, 0.0) + sample.value
        return sums

    async def until(self, name: str, least: float) -> None:
        """Wait until a metric is at least ``least``.

        Raises:
            TimeoutError: It is not in time; the message has its value.
        """
        deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while (value := (await self.metrics())[name]) < least:
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"{name} is {value:g}, not {least:g}")
            await asyncio.sleep(POLL_SECONDS)

    async def until_held(self, count: int) -> None:
        """Wait until model servers hold ``count`` requests.

        Raises:
            TimeoutError: They do not in time.
        """
        deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while (held := len(self.servers.held)) < count:
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"{held} requests are held by model servers, not {count}")
            await asyncio.sleep(POLL_SECONDS)

    async def wrongs(self, settle_seconds: float = SETTLE_SECONDS) -> list[str]:
        """Wait until all streams have ended; return a line for each leak and each fault counted."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settle_seconds
        found = await self.metrics()
        while any(found[name] for name in NOTHING_LEFT) and loop.time() < deadline:
            await asyncio.sleep(POLL_SECONDS)
            found = await self.metrics()
        wrong = [f"{name} is {found[name]:g}" for name in (*NOTHING_LEFT, *NEVER) if found[name]]
        wrong += [f"Envoy's {name} is {n}" for name, n in (await self.envoys_faults()).items() if n]
        wrong += [
            f"connections of Envoy: {name} {n}" for name, n in (await self.ended()).items() if n
        ]
        if self.servers.held:
            wrong.append(f"{len(self.servers.held)} requests of nobody are held by model servers")
        return wrong

    async def envoys_faults(self) -> dict[str, int]:
        """Return Envoy's counters that should stay at 0."""
        stats = await self.envoy.stats(EXT_PROC_STATS)
        return {name: stats.get(EXT_PROC_STATS + name, 0) for name in ENVOYS_FAULTS}

    async def ended(self) -> dict[str, int]:
        """Return how many connections of Envoy to the EPP were lost, or told to end by GOAWAY."""
        prefix = f"cluster.{EPP_CLUSTER}.upstream_cx_"
        stats = await self.envoy.stats(prefix)
        return {name: stats[prefix + name] for name in CONNECTIONS}


@asynccontextmanager
async def in_process(mode: Mode) -> AsyncIterator[FaultGateway]:
    """Run a gateway whose EPP is in this process."""
    async with (
        model_servers() as servers,
        picking(servers) as picker,
        _behind_envoy(mode, servers, picker.ports.grpc, picker.ports.metrics) as gateway,
    ):
        gateway.picker = picker
        yield gateway


@asynccontextmanager
async def processes_of(mode: Mode) -> AsyncIterator[FaultGateway]:
    """Run a gateway whose EPP is a process of its own."""
    async with (
        model_servers() as servers,
        processes.epp(servers.addresses, "--log-level", "warning") as running,
        _behind_envoy(mode, servers, running.ready["grpc"], running.ready["metrics"]) as gateway,
    ):
        gateway.pid = running.pid
        yield gateway


@asynccontextmanager
async def _behind_envoy(
    mode: Mode, servers: ModelServers, grpc_port: int, metrics_port: int
) -> AsyncIterator[FaultGateway]:
    config = GatewayConfig(
        mode=mode, endpoints=servers.addresses, listen_port=0, epp_port=grpc_port
    )
    async with AsyncExitStack() as stack:
        # In threads: both load files from disk.
        text = await asyncio.to_thread(render_yaml, config)
        http = await asyncio.to_thread(httpx.AsyncClient, timeout=30.0, trust_env=False)
        await stack.enter_async_context(http)
        envoy = await stack.enter_async_context(EnvoyProcess(text))
        _, port = await envoy.listener_address()
        yield FaultGateway(
            mode=mode,
            port=port,
            servers=servers,
            envoy=envoy,
            metrics_url=f"http://127.0.0.1:{metrics_port}/metrics",
            http=http,
        )

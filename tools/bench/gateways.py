"""Ext_proc servers, each behind its own Envoy, and the load sent through it."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from epp.lab.envoy import EnvoyProcess, GatewayConfig, Mode
from epp.lab.envoy.bootstrap import bootstrap, render_yaml
from epp.lab.load import LoadPlan, Report, run
from tools.bench import processes

ENDPOINTS = 10
CONCURRENCY = 16
PROMPT_BYTES = 500
# Scraping is measured by itself (idle); rare scrapes keep its noise out of the request's cost.
SLOW_SCRAPES = ("--refresh-metrics-interval", "1s")


_EXT_PROC = "envoy.filters.http.ext_proc"


class Server(Enum):
    """An ext_proc server under test."""

    EPP = "EPP"
    BARE = "bare"
    """Decides nothing, on the EPP's own transport."""
    GRPC_AIO = "grpc.aio"
    """Decides nothing, on grpc.aio without an adapter."""
    EPP_GRPCIO = "EPP on grpcio"
    BARE_GRPCIO = "bare on grpcio"
    """Decides nothing, on the EPP's adapter for grpc.aio."""


SERVERS = (Server.EPP, Server.BARE, Server.GRPC_AIO)

_OPTIONS: dict[Server, tuple[str, ...]] = {
    Server.EPP: SLOW_SCRAPES,
    Server.EPP_GRPCIO: (*SLOW_SCRAPES, "--transport", "grpcio"),
    Server.BARE: (),
    Server.BARE_GRPCIO: ("--transport", "grpcio"),
    Server.GRPC_AIO: ("--plain",),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request and of response."""

    mode: Mode
    chunks: int = 1
    """Pieces of the response; several come with a pause in between."""
    prompt_bytes: int = PROMPT_BYTES


@dataclass(frozen=True, slots=True)
class Setup:
    """A server behind its Envoy."""

    server: Server
    running: processes.Running
    envoy: EnvoyProcess
    url: str


async def set_up(
    stack: contextlib.AsyncExitStack,
    endpoints: Sequence[str],
    mode: Mode,
    server: Server,
    sampled: Path | None = None,
) -> Setup:
    """Start a server and its Envoy; ``stack`` ends them.

    Args:
        stack: Ends both.
        endpoints: Addresses of the model servers.
        mode: How Envoy talks to the server.
        server: Which one.
        sampled: Where samples of its stacks are to go (:mod:`tools.bench.sampled`); None for none.
    """
    options = _OPTIONS[server]
    if server in {Server.EPP, Server.EPP_GRPCIO}:
        starting = processes.epp(endpoints, *options, sampled=sampled)
    else:
        starting = processes.bare(mode.value, endpoints, *options, sampled=sampled)
    running = await stack.enter_async_context(starting)
    envoy = await stack.enter_async_context(gateway(mode, endpoints, running))
    return Setup(server, running, envoy, await url_of(envoy))


def gateway(
    mode: Mode, endpoints: Sequence[str], server: processes.Running
) -> contextlib.AbstractAsyncContextManager[EnvoyProcess]:
    """Run Envoy in front of an ext_proc server."""
    config = GatewayConfig(
        mode=mode, endpoints=tuple(endpoints), listen_port=0, epp_port=server.ready["grpc"]
    )
    return EnvoyProcess(render_yaml(config))


def without_ext_proc(endpoints: Sequence[str], mode: Mode) -> str:
    """Return the configuration of a gateway without the filter; its fallback policy stays."""
    config = GatewayConfig(mode=mode, endpoints=tuple(endpoints), listen_port=0, epp_port=1)
    document: dict[str, Any] = bootstrap(config)
    for listener in document["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            manager = chain["filters"][0]["typed_config"]
            filters = manager["http_filters"]
            manager["http_filters"] = [each for each in filters if each["name"] != _EXT_PROC]
            for host in manager["route_config"]["virtual_hosts"]:
                for route in host["routes"]:
                    route.get("typed_per_filter_config", {}).pop(_EXT_PROC, None)
    return json.dumps(document)


async def url_of(envoy: EnvoyProcess) -> str:
    """Return where the gateway listens."""
    host, port = await envoy.listener_address()
    return f"http://{host}:{port}"


def plan(
    url: str,
    case: Case,
    *,
    pause_ms: float = 0.0,
    seconds: float | None = None,
    requests: int | None = None,
    concurrency: int = CONCURRENCY,
    seed: int = 0,
) -> LoadPlan:
    """Return the load of ``case``; another ``seed`` gives prompts new to the prefix index."""
    return LoadPlan(
        url=url,
        model="bench",
        concurrency=concurrency,
        duration_seconds=seconds,
        requests=requests,
        prompt_chars=case.prompt_bytes,
        stream=case.chunks > 1,
        headers=(("x-bench-chunks", str(case.chunks)), ("x-bench-pause-ms", f"{pause_ms:g}")),
        seed=seed,
    )


def load_errors(report: Report) -> dict[str, str]:
    """Return the failures of a load by kind."""
    return {kind: f"{e.count}: {e.first_message}" for kind, e in report.errors.items()}


RECORD_SECONDS = 10.0
"""A recorded request of 12 MB is a line of 24."""

Reads = Sequence[Sequence[bytes]]
"""The ext_proc messages of one request; those that came together in a sequence of their own."""


def _whole_lines(file: Path) -> list[str]:
    """Return those lines of ``file`` that another process has written to their ends."""
    return file.read_text().split("\n")[:-1] if file.exists() else []


async def _recorded(file: Path, count: int) -> list[str]:
    """Return the lines of ``file`` as soon as there are ``count``: another process writes it."""
    while True:
        lines = await asyncio.to_thread(_whole_lines, file)
        if len(lines) >= count:
            return lines
        await asyncio.sleep(0.02)


async def record(endpoints: Sequence[str], cases: Sequence[Case]) -> dict[Case, Reads]:
    """Return what Envoy sends for one request of each case."""
    recorded: dict[Case, Reads] = {}
    for mode in Mode:
        wanted = [case for case in cases if case.mode is mode]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
            file = Path(folder) / "messages"
            async with (
                processes.bare(mode.value, endpoints, "--record", str(file)) as running,
                gateway(mode, endpoints, running) as envoy,
            ):
                url = await url_of(envoy)
                lines: list[str] = []
                for number, case in enumerate(wanted, start=1):
                    await run(plan(url, case, pause_ms=2.0, requests=1))
                    async with asyncio.timeout(RECORD_SECONDS):
                        lines = await _recorded(file, number)
        for case, line in zip(wanted, lines, strict=True):
            recorded[case] = [[bytes.fromhex(message) for message in r] for r in json.loads(line)]
    return recorded

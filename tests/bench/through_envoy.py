"""CPU per request of the EPP and of bare servers, each behind the same Envoy binary."""

import asyncio
import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import processes
from bench.cpu_time import CpuReading

from epp.lab.envoy import EXT_PROC_STATS, EnvoyProcess, GatewayConfig, Mode
from epp.lab.envoy.bootstrap import render_yaml
from epp.lab.load import LoadPlan, Report, run

ENDPOINTS = 10
CONCURRENCY = 16
ROUNDS = 5
"""Slices of a cell's time; a cell tells their median."""
PROMPT_CHARS = 500
CHUNKS = (1, 100)
SERVERS = ("epp", "bare", "grpc.aio")
# Scraping is measured by itself (idle); rare scrapes keep its noise out of the request's cost.
SLOW_SCRAPES = ("--refresh-metrics-interval", "1s")
NO_SCRAPES = ("--refresh-metrics-interval", "60s")

BAD_STATS = (
    "streams_failed",
    "spurious_msgs_received",
    "rejected_header_mutations",
    "message_timeouts",
    "failure_mode_allowed",
    "override_message_timeout_ignored",
    "http_not_ok_resp_received",
    "immediate_responses_sent",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One server in one mode with one kind of answer."""

    mode: str
    chunks: int
    server: str
    requests: int
    cpu_us: float
    """CPU of the server per request, idle cost taken off; median of the slices."""
    idle_share: float
    """Cores it uses without load."""
    requests_per_second: float
    messages_per_request: float
    """Both directions."""
    envoy_errors: dict[str, int]
    load_errors: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long, and how slow the answers are."""

    seconds: float
    pause_ms: float
    """Between the chunks of an answer."""


@dataclass(frozen=True, slots=True)
class _Setup:
    """A server behind its Envoy."""

    server: str
    running: processes.Running
    envoy: EnvoyProcess
    url: str


@dataclass(frozen=True, slots=True)
class _Slice:
    """One server under load for a part of a cell's time."""

    report: Report
    cpu_us: float
    stats: dict[str, int]


async def measure(settings: Settings, endpoints: Sequence[str]) -> list[Cell]:
    """Return all cells."""
    return [cell for mode in Mode for cell in await _cells(settings, endpoints, mode)]


async def _cells(settings: Settings, endpoints: Sequence[str], mode: Mode) -> list[Cell]:
    async with contextlib.AsyncExitStack() as stack:
        setups = [await _set_up(stack, endpoints, mode, server) for server in SERVERS]
        for setup in setups:
            await run(_plan(setup.url, 1, 0.0, requests=200))  # connections, caches, bytecode
        await asyncio.sleep(0.3)
        began = [CpuReading.of(setup.running.pid) for setup in setups]
        await asyncio.sleep(settings.seconds)
        idle = [
            CpuReading.of(setup.running.pid).share_since(before)
            for setup, before in zip(setups, began, strict=True)
        ]
        cells = []
        for chunks in CHUNKS:
            slices: dict[str, list[_Slice]] = {server: [] for server in SERVERS}
            # In turns, so that a neighbour's noise on the machine hits all servers alike.
            for _ in range(ROUNDS):
                for setup, idle_share in zip(setups, idle, strict=True):
                    one = await _slice(setup, chunks, settings, idle_share)
                    slices[setup.server].append(one)
            for setup, idle_share in zip(setups, idle, strict=True):
                cells.append(_cell(mode, chunks, setup.server, slices[setup.server], idle_share))
        return cells


async def _set_up(
    stack: contextlib.AsyncExitStack, endpoints: Sequence[str], mode: Mode, server: str
) -> _Setup:
    if server == "epp":
        starting = processes.epp(endpoints, *SLOW_SCRAPES)
    else:
        plain = ("--plain",) if server == "grpc.aio" else ()
        starting = processes.bare(mode.value, endpoints, *plain)
    running = await stack.enter_async_context(starting)
    envoy = await stack.enter_async_context(gateway(mode, endpoints, running))
    return _Setup(server, running, envoy, await _url(envoy))


async def _slice(setup: _Setup, chunks: int, settings: Settings, idle_share: float) -> _Slice:
    plan = _plan(setup.url, chunks, settings.pause_ms, seconds=settings.seconds / ROUNDS)
    stats_before = await setup.envoy.stats(EXT_PROC_STATS)
    before = CpuReading.of(setup.running.pid)
    report = await run(plan)
    await asyncio.sleep(0.05)  # the ends of the last streams
    used = CpuReading.of(setup.running.pid).since(before, idle_share)
    stats = _difference(stats_before, await setup.envoy.stats(EXT_PROC_STATS))
    return _Slice(report, used / report.sent * 1e6, stats)


def _cell(
    mode: Mode, chunks: int, server: str, slices: Sequence[_Slice], idle_share: float
) -> Cell:
    stats = sum((Counter(each.stats) for each in slices), Counter[str]())
    sent = sum(each.report.sent for each in slices)
    return Cell(
        mode=mode.value,
        chunks=chunks,
        server=server,
        requests=sent,
        cpu_us=median(each.cpu_us for each in slices),
        idle_share=idle_share,
        requests_per_second=median(each.report.requests_per_second for each in slices),
        messages_per_request=(stats["stream_msgs_sent"] + stats["stream_msgs_received"]) / sent,
        envoy_errors={name: stats[name] for name in BAD_STATS if stats[name]},
        load_errors={k: text for each in slices for k, text in load_errors(each.report).items()},
    )


async def record(endpoints: Sequence[str], mode: Mode, chunks: int) -> list[bytes]:
    """Return the messages that Envoy sends for one request, as bytes."""
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        file = Path(folder) / "messages"
        async with (
            processes.bare(mode.value, endpoints, "--record", str(file)) as running,
            gateway(mode, endpoints, running) as envoy,
        ):
            await run(_plan(await _url(envoy), chunks, 2.0, requests=1))
            async with asyncio.timeout(5):
                while not file.exists():  # noqa: ASYNC110 - another process writes it
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.05)
            return [bytes.fromhex(message) for message in json.loads(file.read_text())]


async def burst(
    endpoints: Sequence[str], requests: int, *options: str
) -> tuple[dict[str, int], dict[str, str]]:
    """Send ``requests`` at once; return how many each endpoint got, and the errors.

    Args:
        endpoints: Addresses of the model servers.
        requests: How many.
        options: Further options of ``epp serve``.
    """
    async with (
        processes.epp(endpoints, *options) as running,
        gateway(Mode.LEAN, endpoints, running) as envoy,
    ):
        url = await _url(envoy)
        await asyncio.sleep(0.3)  # every endpoint scraped
        # Half a second each, so that none ends before the last begins.
        plan = _plan(url, 50, 10.0, requests=requests, concurrency=requests)
        report = await run(plan)
        return report.endpoints, load_errors(report)


async def idle_share_with_default_scrapes(endpoints: Sequence[str], seconds: float) -> float:
    """Return the cores an EPP without load uses at the default scrape interval (50 ms)."""
    async with processes.epp(endpoints) as running:
        await asyncio.sleep(1)
        before = CpuReading.of(running.pid)
        await asyncio.sleep(seconds)
        return CpuReading.of(running.pid).share_since(before)


def gateway(
    mode: Mode, endpoints: Sequence[str], server: processes.Running
) -> contextlib.AbstractAsyncContextManager[EnvoyProcess]:
    """Run Envoy in front of an ext_proc server."""
    config = GatewayConfig(
        mode=mode, endpoints=tuple(endpoints), listen_port=0, epp_port=server.ready["grpc"]
    )
    return EnvoyProcess(render_yaml(config))


def load_errors(report: Report) -> dict[str, str]:
    """Return the failures of a load by kind."""
    return {kind: f"{e.count}: {e.first_message}" for kind, e in report.errors.items()}


async def _url(envoy: EnvoyProcess) -> str:
    host, port = await envoy.listener_address()
    return f"http://{host}:{port}"


def _plan(
    url: str,
    chunks: int,
    pause_ms: float,
    *,
    seconds: float | None = None,
    requests: int | None = None,
    concurrency: int = CONCURRENCY,
) -> LoadPlan:
    return LoadPlan(
        url=url,
        model="bench",
        concurrency=concurrency,
        duration_seconds=seconds,
        requests=requests,
        prompt_chars=PROMPT_CHARS,
        stream=False,
        headers=(("x-bench-chunks", str(chunks)), ("x-bench-pause-ms", f"{pause_ms:g}")),
    )


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {
        name.removeprefix(EXT_PROC_STATS): value - before.get(name, 0)
        for name, value in after.items()
    }


def bad_cells(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells with an error; their numbers mean nothing."""
    return (cell for cell in cells if cell.envoy_errors or cell.load_errors)

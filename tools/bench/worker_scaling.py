"""Requests a second of one process, of two that share nothing, and of two workers.

Each process has a core of its own. Two that share nothing show the gain from a second process on
this machine, so that the rest of the difference is the cost of sharing.

The load passes Envoy to the same fleet, in turns. The CPU of Envoy and the fleet does not count:
requests a second are those of the busiest process if it had a core to itself, that is, requests
divided by its CPU seconds. Each process has the same number of requests in flight, because CPU per
request falls with their number (:data:`~tools.bench.gateways.CONCURRENCY` each).
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
from rich.console import Group
from rich.table import Table
from rich.text import Text

from epp.lab.envoy import EnvoyProcess, GatewayConfig, Mode
from epp.lab.envoy.bootstrap import render_yaml
from epp.lab.load import run
from tools.bench import processes
from tools.bench.cpu_time import CpuReading
from tools.bench.gateways import (
    CONCURRENCY,
    SLOW_SCRAPES,
    Case,
    load_errors,
    plan,
    url_of,
)
from tools.bench.through_envoy import Settings
from tools.harness.worker_processes import worker_pids

WORKERS = 2
AIM = 1.6
"""Requests a second of two workers, as a multiple of those of one process."""
MODES = (Mode.ADAPTIVE, Mode.FULL_DUPLEX)
BURST_REQUESTS = 60
BURST_ENDPOINTS = 6
_THREADS = (2, 4)
_ENVOYS = 8
_SHARED_OUT = 200
"""Requests through each Envoy, to see which worker gets them."""
_REQUESTS = "llm_d_epp_request_total{"
_RESIDENT = "VmRSS:"
_ENVOY_THREADS = 2
"""Each has a connection of its own to each worker."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One set-up in one mode; medians of the rounds."""

    mode: Mode
    setup: str
    requests_per_second: float
    """See the top."""
    cpu_ms: float
    """CPU of all its processes per request."""
    busiest_share: float
    """Part of the CPU of the workers that the busiest of them used."""
    resident_mb: float
    """Memory of all its processes, shared pages counted in each."""


@dataclass(slots=True)
class _SetUp:
    name: str
    pids: Sequence[int]
    """Those that serve."""
    supervisor: int | None
    url: str


async def _one(
    stack: contextlib.AsyncExitStack, endpoints: Sequence[str], mode: Mode, *options: str
) -> _SetUp:
    """Start an endpoint picker and its Envoy; ``stack`` ends them."""
    socket = _folder(stack) / "epp.sock"
    running = await _epp(stack, endpoints, socket, *options)
    url = await _envoy(stack, endpoints, mode, socket, 1)
    return _SetUp("one process", [running.pid], None, url)


async def _apart(
    stack: contextlib.AsyncExitStack, endpoints: Sequence[str], mode: Mode, *options: str
) -> _SetUp:
    """Start endpoint pickers that know nothing of each other, and their Envoy."""
    folder = _folder(stack)
    pids = []
    for number in range(WORKERS):
        # The name that a worker's socket has.
        running = await _epp(stack, endpoints, folder / f"epp-{number}.sock", *options)
        pids.append(running.pid)
    url = await _envoy(stack, endpoints, mode, folder / "epp.sock", WORKERS)
    return _SetUp(f"{WORKERS} that share nothing", pids, None, url)


async def _workers(
    stack: contextlib.AsyncExitStack, endpoints: Sequence[str], mode: Mode, *options: str
) -> _SetUp:
    """Start workers and their Envoy."""
    socket = _folder(stack) / "epp.sock"
    running = await _epp(stack, endpoints, socket, "--workers", str(WORKERS), *options)
    url = await _envoy(stack, endpoints, mode, socket, WORKERS)
    pids = await asyncio.to_thread(worker_pids, running.pid)
    return _SetUp(f"{WORKERS} workers", [pids[index] for index in sorted(pids)], running.pid, url)


def _folder(stack: contextlib.AsyncExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-bench-")))


async def _epp(
    stack: contextlib.AsyncExitStack, endpoints: Sequence[str], socket: Path, *options: str
) -> processes.Running:
    return await stack.enter_async_context(
        processes.epp(endpoints, "--listen", f"unix:{socket}", *options)
    )


async def _envoy(
    stack: contextlib.AsyncExitStack,
    endpoints: Sequence[str],
    mode: Mode,
    socket: Path,
    workers: int,
) -> str:
    config = GatewayConfig(
        mode=mode,
        endpoints=tuple(endpoints),
        listen_port=0,
        epp_socket=str(socket),
        epp_workers=workers,
    )
    envoy = await stack.enter_async_context(
        EnvoyProcess(render_yaml(config), concurrency=_ENVOY_THREADS)
    )
    return await url_of(envoy)


async def measure(settings: Settings, endpoints: Sequence[str]) -> list[Cell]:
    """Return the cells of one process, of two that share nothing and of two workers, by mode."""
    cells = []
    for mode in MODES:
        async with contextlib.AsyncExitStack() as stack:
            made = [
                await start(stack, endpoints, mode, *SLOW_SCRAPES)
                for start in (_one, _apart, _workers)
            ]
            rounds: list[list[Cell]] = [[] for _ in made]
            for number in range(settings.rounds + 1):
                for each, found in zip(made, rounds, strict=True):
                    cell = await _round(each, mode, settings.seconds, number)
                    if number:  # the first one warms up
                        found.append(cell)
        cells += [_median(found) for found in rounds]
    return cells


async def _round(made: _SetUp, mode: Mode, seconds: float, number: int) -> Cell:
    counted = [*made.pids, *([] if made.supervisor is None else [made.supervisor])]
    before = [CpuReading.of(pid) for pid in counted]
    load = plan(
        made.url,
        Case(mode),
        seconds=seconds,
        concurrency=CONCURRENCY * len(made.pids),
        seed=number,
    )
    report = await run(load)
    if report.errors:
        raise RuntimeError(f"requests failed: {load_errors(report)}")
    used = [CpuReading.of(pid).since(reading) for pid, reading in zip(counted, before, strict=True)]
    serving = used[: len(made.pids)]
    return Cell(
        mode=mode,
        setup=made.name,
        requests_per_second=report.succeeded / max(serving),
        cpu_ms=1e3 * sum(used) / report.succeeded,
        busiest_share=max(serving) / sum(serving),
        resident_mb=sum(_resident_mb(pid) for pid in counted),
    )


def _median(cells: Sequence[Cell]) -> Cell:
    return Cell(
        mode=cells[0].mode,
        setup=cells[0].setup,
        requests_per_second=median(each.requests_per_second for each in cells),
        cpu_ms=median(each.cpu_ms for each in cells),
        busiest_share=median(each.busiest_share for each in cells),
        resident_mb=median(each.resident_mb for each in cells),
    )


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [each for each in lines if each.startswith(_RESIDENT)]
    return int(line.split()[1]) / 1024


async def shares(endpoints: Sequence[str]) -> dict[str, list[float]]:
    """Return the part of the requests that the busiest worker got, by how Envoy reaches them.

    Each Envoy is started anew, because the kernel chooses when it connects.
    """
    found: dict[str, list[float]] = {}
    for threads in _THREADS:
        found[f"one port, {threads} threads"] = await _busiest(endpoints, threads, is_shared=True)
        found[f"a socket each, {threads} threads"] = await _busiest(
            endpoints, threads, is_shared=False
        )
    return found


async def _busiest(endpoints: Sequence[str], threads: int, *, is_shared: bool) -> list[float]:
    shares = []
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-bench-")))
        socket = str(folder / "epp.sock")
        listen = () if is_shared else ("--listen", f"unix:{socket}")
        running = await stack.enter_async_context(
            processes.epp(endpoints, "--workers", str(WORKERS), *listen, *SLOW_SCRAPES)
        )
        config = GatewayConfig(
            mode=Mode.LEAN,
            endpoints=tuple(endpoints),
            listen_port=0,
            epp_port=running.ready["grpc"] or 9002,
            epp_socket="" if is_shared else socket,
            epp_workers=1 if is_shared else WORKERS,
        )
        text = render_yaml(config)
        before = await _served(running)
        for number in range(_ENVOYS):
            async with EnvoyProcess(text, concurrency=threads) as envoy:
                url = await url_of(envoy)
                report = await run(plan(url, Case(Mode.LEAN), requests=_SHARED_OUT, seed=number))
                if report.errors:
                    raise RuntimeError(f"requests failed: {load_errors(report)}")
            now = await _served(running)
            served = [after - earlier for after, earlier in zip(now, before, strict=True)]
            shares.append(max(served) / sum(served))
            before = now
    return shares


async def _served(running: processes.Running) -> list[float]:
    """Return the number of requests of each worker."""
    url = f"http://127.0.0.1:{running.ready['metrics']}/metrics"
    served = []
    async with httpx.AsyncClient(timeout=30.0, trust_env=False) as client:
        for worker in range(WORKERS):
            page = (await client.get(url, params={"worker": worker})).text
            counts = [each for each in page.splitlines() if each.startswith(_REQUESTS)]
            served.append(sum(float(each.rpartition(" ")[2]) for each in counts))
    return served


async def burst(endpoints: Sequence[str]) -> dict[str, int]:
    """Send requests at once through the workers; return how many each endpoint got.

    There is no scrape meanwhile, so that the workers know of each other's requests only what they
    share.
    """
    some = endpoints[:BURST_ENDPOINTS]
    rare = ("--refresh-metrics-interval", "60s")
    async with contextlib.AsyncExitStack() as stack:
        made = await _workers(stack, some, Mode.LEAN, *rare)
        # Half a second each, so that none ends before the last begins.
        load = plan(
            made.url,
            Case(Mode.LEAN, chunks=50),
            pause_ms=10.0,
            requests=BURST_REQUESTS,
            concurrency=BURST_REQUESTS,
        )
        report = await run(load)
        if report.errors:
            raise RuntimeError(f"requests failed: {load_errors(report)}")
        return report.endpoints


def table(cells: Sequence[Cell], served: dict[str, int], reached: dict[str, list[float]]) -> Group:
    """Return the cells with their ratios, the spread of the burst, and shares of requests."""
    shown = Table(
        "mode", "processes", "requests/s", "CPU ms/request", "busiest", "RSS MB", title=_TITLE
    )
    lines = []
    for one, apart, several in zip(cells[0::3], cells[1::3], cells[2::3], strict=True):
        for each in (one, apart, several):
            shown.add_row(
                each.mode.value,
                each.setup,
                f"{each.requests_per_second:.0f}",
                f"{each.cpu_ms:.3f}",
                f"{each.busiest_share:.0%}",
                f"{each.resident_mb:.0f}",
            )
        ratio, bound = (
            each.requests_per_second / one.requests_per_second for each in (several, apart)
        )
        lines.append(
            f"{one.mode.value}: {ratio:.2f} times the requests of one (aim {AIM});"
            f" {WORKERS} that share nothing: {bound:.2f} times"
        )
    least = min(served.values()) if len(served) == BURST_ENDPOINTS else 0
    spread = max(served.values()) - least
    lines.append(
        f"a burst of {BURST_REQUESTS} over {BURST_ENDPOINTS} endpoints: {sorted(served.values())},"
        f" max - min {spread} (aim {1 + WORKERS})"
    )
    lines += [
        f"{how}: the busier worker got {', '.join(f'{each:.0%}' for each in sorted(shares))}"
        for how, shares in reached.items()
    ]
    return Group(shown, *(Text(line) for line in lines))


_TITLE = f"One process and {WORKERS} workers, a core each: requests by the CPU of the busiest"

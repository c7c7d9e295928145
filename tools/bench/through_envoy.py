"""CPU per request of the EPP and of bare servers, each behind the same Envoy binary."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import median

from epp.lab.envoy import EXT_PROC_STATS, Mode
from epp.lab.load import Report, run
from tools.bench.cpu_time import CpuReading
from tools.bench.gateways import CONCURRENCY, Case, Server, Setup, load_errors, plan, set_up

CHUNKS = 100
LONG_PROMPTS = (16_000, 400_000)
CASES = (
    *(Case(mode, chunks) for mode in Mode for chunks in (1, CHUNKS)),
    *(Case(Mode.ADAPTIVE, prompt_bytes=size) for size in LONG_PROMPTS),
)

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

_LARGE_BYTES = 4 << 20
_LARGE_IN_PARALLEL = 4
"""Parallel large requests: a connection buffers at most 98 MB."""

_seeds = count(1)
"""Each slice sends prompts of its own: repeated ones would be in the prefix index already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Duration of the run and speed of the responses."""

    seconds: float
    """Load per server and case, all rounds together."""
    rounds: int
    """Slices of that time."""
    pause_ms: float
    """Between the chunks of a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One server in one case."""

    case: Case
    server: Server
    requests: int
    cpu_us: tuple[float, ...]
    """CPU of the server per request in each round, idle cost taken off. The servers take turns, so
    the same round of another server saw the same noise."""
    idle_share: float
    """Cores it uses without load."""
    requests_per_second: float
    messages_per_request: float
    """Both directions."""
    envoy_errors: dict[str, int]
    load_errors: dict[str, str]

    @property
    def median_us(self) -> float:
        """CPU per request of the middle round."""
        return median(self.cpu_us)


@dataclass(frozen=True, slots=True)
class Slice:
    """One server under load for a part of a cell's time."""

    report: Report
    cpu_us: float
    stats: dict[str, int]


async def measure(
    settings: Settings,
    endpoints: Sequence[str],
    servers: Sequence[Server],
    cases: Sequence[Case],
    concurrency: Sequence[int] = (CONCURRENCY,),
) -> list[list[Cell]]:
    """Return the cells of all cases and servers, a list for each number of parallel requests.

    Args:
        settings: Duration and speed.
        endpoints: Addresses of the model servers.
        servers: What to measure, in turns.
        cases: Kinds of requests.
        concurrency: Numbers of parallel requests; the same processes are loaded with each.
    """
    cells: list[list[Cell]] = [[] for _ in concurrency]
    for mode in dict.fromkeys(case.mode for case in cases):
        async with contextlib.AsyncExitStack() as stack:
            setups = [await set_up(stack, endpoints, mode, server) for server in servers]
            idle = await warmed_up(setups, settings.seconds)
            for case in (case for case in cases if case.mode is mode):
                for found, number in zip(cells, concurrency, strict=True):
                    found.extend(await _cells(setups, idle, case, settings, number))
    return cells


async def warmed_up(setups: Sequence[Setup], seconds: float) -> list[float]:
    """Send some requests to each server; return the cores that each uses without load."""
    for setup in setups:
        # Connections, caches, bytecode.
        await run(plan(setup.url, Case(Mode.LEAN), requests=400, seed=next(_seeds)))
    await asyncio.sleep(0.3)
    began = [CpuReading.of(setup.running.pid) for setup in setups]
    await asyncio.sleep(seconds)
    return [
        CpuReading.of(setup.running.pid).share_since(before)
        for setup, before in zip(setups, began, strict=True)
    ]


async def _cells(
    setups: Sequence[Setup],
    idle: Sequence[float],
    case: Case,
    settings: Settings,
    concurrency: int,
) -> list[Cell]:
    slices: list[list[Slice]] = [[] for _ in setups]
    in_parallel = concurrency if case.prompt_bytes < _LARGE_BYTES else _LARGE_IN_PARALLEL
    if case.prompt_bytes != Case(case.mode).prompt_bytes:
        for setup in setups:
            # Until the endpoints' parts of the prefix index are full, and entries evict others.
            requests = 250 if in_parallel == concurrency else 60
            load = plan(setup.url, case, requests=requests, concurrency=in_parallel)
            await run(replace(load, seed=next(_seeds)))
    if case.chunks > 1:
        # Each response takes a second: fewer rounds, each long enough for several responses.
        settings = replace(settings, seconds=2 * settings.seconds, rounds=settings.rounds - 1)
    for _ in range(settings.rounds):
        for setup, idle_share, done in zip(setups, idle, slices, strict=True):
            done.append(await slice_of(setup, case, settings, idle_share, in_parallel))
    return [_cell(case, *each) for each in zip(setups, idle, slices, strict=True)]


async def slice_of(
    setup: Setup,
    case: Case,
    settings: Settings,
    idle_share: float,
    concurrency: int = CONCURRENCY,
) -> Slice:
    """Put one server under load for one round."""
    load = plan(
        setup.url,
        case,
        pause_ms=settings.pause_ms,
        seconds=settings.seconds / settings.rounds,
        concurrency=concurrency,
        seed=next(_seeds),
    )
    stats_before = await setup.envoy.stats(EXT_PROC_STATS)
    before = CpuReading.of(setup.running.pid)
    report = await run(load)
    await asyncio.sleep(0.05)  # the ends of the last streams
    used = CpuReading.of(setup.running.pid).since(before, idle_share)
    stats = _difference(stats_before, await setup.envoy.stats(EXT_PROC_STATS))
    return Slice(report, used / report.sent * 1e6, stats)


def _cell(case: Case, setup: Setup, idle_share: float, slices: Sequence[Slice]) -> Cell:
    stats = sum((Counter(each.stats) for each in slices), Counter[str]())
    sent = sum(each.report.sent for each in slices)
    return Cell(
        case=case,
        server=setup.server,
        requests=sent,
        cpu_us=tuple(each.cpu_us for each in slices),
        idle_share=idle_share,
        requests_per_second=median(each.report.requests_per_second for each in slices),
        messages_per_request=(stats["stream_msgs_sent"] + stats["stream_msgs_received"]) / sent,
        envoy_errors={name: stats[name] for name in BAD_STATS if stats[name]},
        load_errors={k: text for each in slices for k, text in load_errors(each.report).items()},
    )


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {
        name.removeprefix(EXT_PROC_STATS): value - before.get(name, 0)
        for name, value in after.items()
    }


def bad_cells(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells with an error; their numbers mean nothing."""
    return (cell for cell in cells if cell.envoy_errors or cell.load_errors)

"""Send millions of requests in quick succession; the server must keep nothing of them.

``make soak`` or ``.venv/bin/python -m tools.soak [--requests N] [--epp]``. Connections are
reused, some are closed and some dropped with requests under way. The server's memory is read
after each hundredth; at the end its counters must be those of a server that has just started.
"""

import argparse
import asyncio
import random
import re
import sys
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression
from typing import Any

import httpx
import msgspec
import uvloop

from epp.ext_proc import METHOD
from tools.bench import processes
from tools.bench.cpu_time import CpuReading
from tools.soak import envoy_like, frames, server
from tools.soak.connection import Lost, RawConnection
from tools.soak.requests import STREAMS, Chunk, make_chunk

CONNECTIONS = 4
CHUNKS = 48
"""Number of different chunks, which are sent repeatedly."""
PROMPTS = 500
RECONNECT_SHARE = 1 / 150
"""Probability that a connection is replaced after a chunk: 10,000 requests each, on average."""
ENDPOINTS = 4
ABORTS_AT_ONCE = 2_000
SAMPLES = 100
MAX_GROWTH_MIB = 4.0
"""Allowed growth of the memory from the second quarter to the second half: allocator noise."""

MUST_BE_ZERO = ("request_running", "internal_faults_total")
"""Expected metrics of the endpoint picker after the run."""

NOTHING_LEFT = {
    "waiting_bytes": 0,
    "ready_streams": 0,
    "buffered_bytes": 0,
    "missing_credit_bytes": 0,
    # Those of the call for statistics.
    "connections": 1,
    "open_streams": 1,
    "live_http2_streams": 1,
    "live_grpc_streams": 1,
    "live_handlers": 1,
}


@dataclass(slots=True)
class Progress:
    """Counts of the run so far."""

    wanted: int
    answered: int = 0
    aborted: int = 0
    dropped: int = 0
    """Requests in progress on connections that were dropped."""
    connections: int = 0
    bytes_sent: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Number of requests begun."""
        return self.answered + self.aborted + self.dropped


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the server by number of requests."""

    samples: Sequence[tuple[int, float]]
    """Number of requests, and MiB."""

    @property
    def growth_mib(self) -> float:
        """Maximum of the second half minus that of the second quarter."""
        count = len(self.samples)
        early = max(mib for _, mib in self.samples[count // 4 : count // 2])
        return max(mib for _, mib in self.samples[count // 2 :]) - early

    @property
    def slope_mib(self) -> float:
        """Slope of the second half, in MiB per million requests."""
        late = self.samples[len(self.samples) // 2 :]
        return linear_regression([n / 1e6 for n, _ in late], [mib for _, mib in late]).slope

    def quarters(self) -> list[float]:
        """Maximum of each quarter."""
        count = len(self.samples)
        bounds = [count * quarter // 4 for quarter in range(5)]
        return [max(mib for _, mib in self.samples[low:high]) for low, high in pairwise(bounds)]


def resident_mib(pid: int) -> float:
    """Return the resident memory of ``pid``."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


async def client(port: int, chunks: Sequence[Chunk], progress: Progress, seed: int) -> None:
    """Send chunks one after another, each after the previous one was answered."""
    chooser = random.Random(seed)
    connection = await RawConnection.connect(port)
    progress.connections += 1
    while progress.requests < progress.wanted:
        chunk = chooser.choice(chunks)
        try:
            await connection.until_room(chunk.content_bytes)
            chunk.number(connection.take_stream_ids(STREAMS))
            expected = connection.answered + chunk.answered
            if chooser.random() < RECONNECT_SHARE:
                await _leave(connection, chunk, progress, chooser)
                connection = await RawConnection.connect(port)
                progress.connections += 1
                continue
            # The chunk is one buffer for all clients: a copy goes to the socket.
            await connection.send(bytes(chunk.data))
            resets = bytes(chunk.resets)
            await connection.until_ended(expected)
            await connection.send(resets)
        except Lost:
            progress.failures.append(f"connection lost, GOAWAY {connection.goaways}")
            return
        progress.answered += chunk.answered
        progress.aborted += chunk.aborted
        progress.bytes_sent += len(chunk.data) + len(resets)
        if connection.failed or connection.goaways:
            progress.failures.append(f"failed {connection.failed}, GOAWAY {connection.goaways}")
            return
    connection.abort()
    await connection.until_lost()


async def _leave(
    connection: RawConnection, chunk: Chunk, progress: Progress, chooser: random.Random
) -> None:
    """End a connection in the middle of a chunk, with or without GOAWAY."""
    cut = chooser.randrange(len(chunk.data))
    await connection.send(bytes(chunk.data[:cut]))
    if chooser.random() < 0.5:
        connection.transport.close()
    else:
        connection.abort()
    await connection.until_lost()
    progress.dropped += STREAMS


async def watch(pid: int, progress: Progress, samples: list[tuple[int, float]]) -> None:
    """Read the memory of ``pid`` after each hundredth of the requests."""
    step = progress.wanted // SAMPLES
    due = 0
    while True:
        if progress.requests >= due:
            due += step
            samples.append((progress.requests, resident_mib(pid)))
        await asyncio.sleep(0.05)


async def run(port: int, pid: int, wanted: int, seed: int, *, to_epp: bool) -> dict[str, Any]:
    """Send the requests; return counts and memory."""
    chooser = random.Random(seed)
    path = (lambda _: METHOD) if to_epp else server.method
    prompts = {
        index: frames.completion(f"{index} " + "word " * chooser.choice((20, 100, 400, 3000)))
        for index in range(PROMPTS)
    }
    chunks = [make_chunk(chooser, path, prompts) for _ in range(CHUNKS)]
    progress = Progress(wanted)
    samples: list[tuple[int, float]] = []
    began, cpu = time.perf_counter(), CpuReading.of(pid)
    watching = asyncio.create_task(watch(pid, progress, samples), name="memory")
    async with asyncio.TaskGroup() as tasks:
        for number in range(CONNECTIONS):
            tasks.create_task(
                client(port, chunks, progress, seed + number), name=f"client-{number}"
            )
    seconds = time.perf_counter() - began
    watching.cancel()
    memory = Memory(samples)
    cpu_seconds = CpuReading.of(pid).since(cpu)
    return {
        "requests": progress.requests,
        "answered": progress.answered,
        "aborted": progress.aborted,
        "dropped with their connection": progress.dropped,
        "connections made": progress.connections,
        "GB sent": round(progress.bytes_sent / 1e9, 2),
        "seconds": round(seconds, 1),
        "requests/s": round(progress.requests / seconds),
        "server CPU µs/request": round(cpu_seconds / progress.requests * 1e6, 1),
        "memory MiB, most per quarter": [round(mib, 1) for mib in memory.quarters()],
        "memory growth MiB": round(memory.growth_mib, 2),
        "memory slope MiB per million": round(memory.slope_mib, 2),
        "failures": progress.failures,
    }


async def statistics(port: int) -> dict[str, Any]:
    """Return the objects that the server holds after all connections have ended."""
    connection = await RawConnection.connect(port)
    found: dict[str, Any] = {}
    for _ in range(50):
        found = msgspec.json.decode(await connection.call(server.STATISTICS, b""))
        if found["connections"] == 1:
            break
        await asyncio.sleep(0.1)  # connection_lost comes in a later turn of the server's loop
    connection.abort()
    return found


def leaks(found: dict[str, Any]) -> list[str]:
    """Return the objects left in a server that should hold none."""
    return [
        f"{name} is {found[name]}, not {expected}"
        for name, expected in NOTHING_LEFT.items()
        if found[name] != expected
    ]


async def soak_transport(wanted: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Soak the transport alone; return the figures and the faults."""
    async with processes.python("-m", "tools.soak.server") as running:
        port = running.ready["grpc"]
        forgiven = await as_envoy(port, min(wanted, 100_000))
        before = await statistics(port)
        figures = await run(port, running.pid, wanted, seed, to_epp=False)
        after = await statistics(port)
    wrong = forgiven + figures["failures"] + leaks(after)
    http2, grpc = after["counters"]["http2"], after["counters"]["grpc"]
    figures |= {"objects before and after": (before["live_objects"], after["live_objects"])}
    figures |= {"cache": after["cache"], "http2": http2, "grpc": grpc}
    figures |= {name: after[name] for name in NOTHING_LEFT}
    if http2["connection_faults"] or grpc["handler_failures"] or http2["stream_faults"]:
        wrong.append(f"faults: {http2} {grpc}")
    if after["live_objects"] > before["live_objects"] + 20_000:
        wrong.append(f"objects: {before['live_objects']} before, {after['live_objects']} after")
    return figures, wrong


async def as_envoy(port: int, requests: int) -> list[str]:
    """Send ``requests`` and 2,000 concurrent aborts as Envoy does; return the faults."""
    connection = await RawConnection.connect(port)
    try:
        await envoy_like.normal_requests(connection, requests // 2)
        await envoy_like.aborts_at_once(connection, ABORTS_AT_ONCE)
        await envoy_like.normal_requests(connection, requests // 2)
    except Lost:
        return [f"an Envoy-like connection was ended: GOAWAY {connection.goaways}"]
    print(f"{requests} requests and {ABORTS_AT_ONCE} aborts at once on one connection: no GOAWAY")
    connection.abort()
    return []


@asynccontextmanager
async def _epp() -> Any:
    """Run a whole endpoint picker and its model servers."""
    async with (
        processes.upstream(ENDPOINTS) as upstream,
        processes.epp(upstream.ready["endpoints"]) as running,
    ):
        yield running


async def soak_epp(wanted: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Soak the whole endpoint picker; return the figures and the faults."""
    async with _epp() as running:
        figures = await run(running.ready["grpc"], running.pid, wanted, seed, to_epp=True)
        metrics: dict[str, float] = {}
        url = f"http://127.0.0.1:{running.ready['metrics']}/metrics"
        async with httpx.AsyncClient() as http:
            for _ in range(50):
                metrics = _sums((await http.get(url)).text)
                if not metrics["request_running"]:
                    break
                await asyncio.sleep(0.1)  # the end of the last connection has not arrived yet
    figures |= metrics
    wrong = list(figures["failures"])
    wrong += [f"{name} is {metrics[name]}, not 0" for name in MUST_BE_ZERO if metrics[name]]
    if metrics["request_total"] < figures["answered"] * 0.98:  # some are half-closed at once
        wrong.append(f"only {metrics['request_total']} requests were counted")
    return figures, wrong


def _sums(page: str) -> dict[str, float]:
    """Return the request metrics summed over all labels, errors by code."""
    sums = dict.fromkeys((*MUST_BE_ZERO, "request_total"), 0.0)
    for name, labels, value in re.findall(
        r"^llm_d_epp_(\w+)\{?(.*?)\}? (\S+)$", page, re.MULTILINE
    ):
        if name == "request_error_total":
            code = re.search(r'error_code="(.*?)"', labels)
            name = f"errors {code[1] if code else ''}"  # noqa: PLW2901
        elif name not in sums:
            continue
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def command() -> int:
    """Run the command line and print the results; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000_000)
    parser.add_argument(
        "--epp", action="store_true", help="soak the whole endpoint picker, not the transport alone"
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    soak = soak_epp if given.epp else soak_transport
    figures, wrong = uvloop.run(soak(given.requests, given.seed))
    growth = figures["memory growth MiB"]
    if growth > MAX_GROWTH_MIB:
        wrong.append(f"memory grew by {growth} MiB, {MAX_GROWTH_MIB} are allowed")
    for name, value in figures.items():
        print(f"{name:32} {value}")
    for each in wrong:
        print(f"WRONG: {each}", file=sys.stderr)
    print("soak:", "FAILED" if wrong else "nothing left behind")
    return 1 if wrong else 0

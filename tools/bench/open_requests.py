"""The periodic work of an endpoint picker while requests are open and none begins or ends.

``.venv/bin/python -m tools.bench --only open``

Requests are sent to a real process without an Envoy, and stay open. Besides CPU time, the benchmark
counts the wake-ups of the process, which a busy machine does not change, and in a second run, with
:mod:`tools.bench.timed`, the timers that it sets.
"""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Group
from rich.table import Table

from epp.ext_proc import METHOD
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.bench.cpu_time import CpuReading
from tools.bench.many_endpoints import of_file, pages_sent
from tools.bench.processes import Running, python
from tools.bench.tables import new_table
from tools.harness import raw_client
from tools.harness.ext_proc import LEAN, POST, http_headers

ENDPOINTS: Final = (10, 100)
OPEN: Final = (0, 1, 16, 256)
SCRAPES: Final[Mapping[str, tuple[str, ...]]] = {
    "60 s": ("--refresh-metrics-interval", "60s"),
    "50 ms": (),
}
SETTLE_SECONDS: Final = 4.0
"""Idle endpoints reach their longest interval, busy ones their shortest."""
_COUNTED_OPEN: Final = 16
"""Open requests while timers are counted."""
_RARE: Final = 0.2
"""Timers that are set less often, in a second, are added up."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of a picker per second; medians of several seconds."""

    endpoints: int
    scrapes: str
    """Their interval."""
    open_requests: int
    cpu_ms: float
    wakeups: float
    """How often one of its threads has gone to sleep."""
    pages: float
    """Pages of model servers that it got."""


@dataclass(frozen=True, slots=True)
class Timers:
    """Timers set per second, by the function that they call."""

    scrapes: str
    by_name: Mapping[str, float]


async def measure(seconds: int) -> tuple[list[Cost], list[Timers]]:
    """Measure every number of endpoints and of open requests, each for some seconds."""
    costs, timers = [], []
    for endpoints in ENDPOINTS:
        async with python("-m", "tools.bench.page_server", str(endpoints)) as servers:
            hosts, port = servers.ready["hosts"], servers.ready["port"]
            for scrapes, options in SCRAPES.items():
                for count in OPEN:
                    async with of_file(hosts, port, options) as picker, _requests(picker, count):
                        parts = await _seconds_of(picker.pid, hosts[0], port, seconds)
                    medians = [median(each) for each in zip(*parts, strict=True)]
                    costs.append(Cost(endpoints, scrapes, count, *medians))
                if endpoints == ENDPOINTS[0]:
                    timers.append(await _timers(hosts, port, scrapes, seconds))
    return costs, timers


async def _seconds_of(
    pid: int, host: str, port: int, seconds: int
) -> list[tuple[float, float, float]]:
    """Return CPU time, wake-ups and pages of several seconds, of each in a second."""
    parts = []
    before = CpuReading.of(pid), _wakeups(pid), await pages_sent(host, port)
    for _ in range(seconds):
        await asyncio.sleep(1.0)
        after = CpuReading.of(pid), _wakeups(pid), await pages_sent(host, port)
        passed = after[0].at - before[0].at
        parts.append(
            (
                after[0].share_since(before[0]) * 1e3,
                (after[1] - before[1]) / passed,
                (after[2] - before[2]) / passed,
            )
        )
        before = after
    return parts


async def _timers(hosts: Sequence[str], port: int, scrapes: str, seconds: int) -> Timers:
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        file = Path(folder) / "timers"
        options = SCRAPES[scrapes]
        async with (
            of_file(hosts, port, options, timed=file) as picker,
            _requests(picker, _COUNTED_OPEN),
        ):
            os.kill(picker.pid, signal.SIGUSR1)
            await asyncio.sleep(seconds)
            os.kill(picker.pid, signal.SIGUSR2)
            while not await asyncio.to_thread(file.exists):  # noqa: ASYNC110 - another process writes
                await asyncio.sleep(0.02)
        counts: dict[str, int] = json.loads(await asyncio.to_thread(file.read_text))
    return Timers(scrapes, {name: count / seconds for name, count in counts.items()})


@asynccontextmanager
async def _requests(picker: Running, count: int) -> AsyncIterator[None]:
    """Have requests open that are routed and whose responses do not come; then settle."""
    message = pb.ProcessingRequest(request_headers=http_headers(POST, end=False))
    config = message.protocol_config
    config.request_body_mode, config.response_body_mode = LEAN
    async with raw_client.connected(picker.ready["grpc"]) as client:
        stream_ids = range(1, 2 * count, 2)
        for number in stream_ids:
            # Prompts that have nothing in common, so that the requests are spread.
            prompt = json.dumps({"model": "bench", "prompt": f"{number} " * 500}).encode()
            body = pb.ProcessingRequest(request_body=pb.HttpBody(body=prompt, end_of_stream=True))
            sent = [raw_client.message(each.SerializeToString()) for each in (message, body)]
            client.send(
                raw_client.headers(number, raw_client.fields(METHOD)),
                raw_client.data(number, b"".join(sent)),
            )
        await client.until(
            lambda: all(n in client.streams and client.streams[n].data for n in stream_ids)
        )
        await asyncio.sleep(SETTLE_SECONDS)
        yield


def _wakeups(pid: int) -> int:
    """Return how often the threads of a process have gone to sleep."""
    switches = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                switches += int(line.split()[1])
    return switches


def table(costs: Sequence[Cost], timers: Sequence[Timers]) -> Group:
    """Return a row for each case, and the timers by what they call."""
    made = new_table(
        "Open requests, none of which begins or ends: what the process does in a second",
        *("endpoints", "scrapes every", "open", "CPU ms", "wake-ups", "pages"),
    )
    for cost in costs:
        made.add_row(
            *(str(cost.endpoints), cost.scrapes, str(cost.open_requests)),
            *(f"{cost.cpu_ms:.1f}", f"{cost.wakeups:.0f}", f"{cost.pages:.0f}"),
        )
    return Group(made, _timers_table(timers))


def _timers_table(timers: Sequence[Timers]) -> Table:
    made = new_table(
        f"Timers set in a second, {ENDPOINTS[0]} endpoints, {_COUNTED_OPEN} open requests",
        *("what it calls", *(f"scrapes every {each.scrapes}" for each in timers)),
    )
    names = {name for each in timers for name, rate in each.by_name.items() if rate >= _RARE}
    rates = {name: [each.by_name.get(name, 0.0) for each in timers] for name in names}
    for name in sorted(names, key=lambda name: -sum(rates[name])):
        made.add_row(name, *(f"{rate:.1f}" for rate in rates[name]))
    rest = [
        sum(rate for name, rate in each.by_name.items() if name not in names) for each in timers
    ]
    made.add_row("others", *(f"{rate:.1f}" for rate in rest))
    return made

"""CPU and memory of an endpoint picker without requests, by the number of its endpoints.

``.venv/bin/python -m tools.bench --only endpoints``
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from rich.table import Table

from tools.bench.cpu_time import CpuReading
from tools.bench.pod_api import LABELS, kubeconfig, pod_api
from tools.bench.processes import Running, python
from tools.bench.tables import new_table

COUNTS: Final = (10, 100, 1000)
SETTLE_SECONDS: Final = 6.0
"""Idle endpoints reach their longest interval."""
_IDLE: Final = "idle"
_FIXED: Final = "fixed, 50 ms"
_WATCHED: Final = "idle, pods watched"
CASES: Final[Mapping[str, tuple[str, ...]]] = {
    _IDLE: (),
    _FIXED: ("--scrape", "fixed", "--max-scrape-cpu-percent", "100"),
    "idle, no health checks": ("--health-check-path", ""),
    _WATCHED: (),
}
AIMS: Final = {(100, _IDLE): 0.02, (1000, _IDLE): 0.15, (100, _FIXED): 0.2}
"""Most cores."""
_EXPOSITIONS: Final = 10
AIM_KB: Final = 15.0
"""Most memory of an endpoint."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Resources that a picker uses."""

    endpoints: int
    case: str
    cores: float
    pages_per_second: float
    """Pages that it got."""
    rss_bytes: int
    exposition_bytes: int = 0
    """Its own page of metrics; 0 where it was not read."""
    exposition_seconds: float = 0.0
    """CPU time of this page."""


async def measure(seconds: float) -> list[Cost]:
    """Measure each case with each number of endpoints."""
    costs = []
    for count in COUNTS:
        async with python("-m", "tools.bench.page_server", str(count)) as servers:
            hosts, port = servers.ready["hosts"], servers.ready["port"]
            for case, options in CASES.items():
                picker = (
                    _of_pods(hosts, port) if case == _WATCHED else of_file(hosts, port, options)
                )
                async with picker as running:
                    await asyncio.sleep(SETTLE_SECONDS)
                    before, pages = CpuReading.of(running.pid), await pages_sent(hosts[0], port)
                    await asyncio.sleep(seconds)
                    after, more = CpuReading.of(running.pid), await pages_sent(hosts[0], port)
                    cost = Cost(
                        count,
                        case,
                        after.share_since(before),
                        (more - pages) / (after.at - before.at),
                        _rss_bytes(running.pid),
                    )
                    costs.append(await _with_exposition(cost, running) if case == _IDLE else cost)
    return costs


async def _with_exposition(cost: Cost, picker: Running) -> Cost:
    """Return ``cost`` with that of the picker's own page of metrics."""
    url = f"http://127.0.0.1:{picker.ready['metrics']}/metrics"
    length = len(await asyncio.to_thread(_read, url))  # the first one, which makes more
    before = CpuReading.of(picker.pid)
    for _ in range(_EXPOSITIONS):
        await asyncio.to_thread(_read, url)
    used = CpuReading.of(picker.pid).since(before, cost.cores)
    return replace(cost, exposition_bytes=length, exposition_seconds=used / _EXPOSITIONS)


def table(costs: Sequence[Cost]) -> Table:
    """Cost by number of endpoints."""
    made = new_table(
        f"Endpoint picker without requests, pages of 54 KB; aim {AIM_KB:g} KB per endpoint",
        *("endpoints", "scrapes", "pages/s", "cores", "aim", "RSS MB", "KB per further endpoint"),
        *("own metrics: KB", "CPU ms"),
    )
    smallest = {cost.case: cost for cost in costs if cost.endpoints == COUNTS[0]}
    for cost in costs:
        more = cost.endpoints - COUNTS[0]
        extra = (cost.rss_bytes - smallest[cost.case].rss_bytes) / more / 1e3 if more else 0.0
        aim = AIMS.get((cost.endpoints, cost.case))
        made.add_row(
            str(cost.endpoints),
            cost.case,
            f"{cost.pages_per_second:.0f}",
            f"{cost.cores:.3f}",
            "" if aim is None else f"{aim:g}",
            f"{cost.rss_bytes / 1e6:.1f}",
            f"{extra:.1f}" if more else "",
            f"{cost.exposition_bytes / 1e3:.0f}" if cost.exposition_bytes else "",
            f"{cost.exposition_seconds * 1e3:.1f}" if cost.exposition_bytes else "",
        )
    return made


@asynccontextmanager
async def of_file(
    hosts: Sequence[str], port: int, options: Sequence[str], *, timed: Path | None = None
) -> AsyncIterator[Running]:
    """Run a picker whose endpoints are in a file.

    Args:
        hosts: Addresses of the endpoints.
        port: Their port.
        options: Further options of ``epp serve``.
        timed: Where counts of its timers are to go (:mod:`tools.bench.timed`); None for none.
    """
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        file = Path(folder) / "endpoints.json"
        entries = [
            {"name": f"vllm-{number}", "address": host, "port": str(port)}
            for number, host in enumerate(hosts)
        ]
        await asyncio.to_thread(file.write_text, json.dumps({"endpoints": entries}))
        async with _picker("--endpoints-file", str(file), *options, timed=timed) as picker:
            yield picker


@asynccontextmanager
async def _of_pods(hosts: Sequence[str], port: int) -> AsyncIterator[Running]:
    """Run a picker that follows the pods of an API server."""
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        async with pod_api(len(hosts), ips=hosts) as api:
            file = Path(folder) / "kubeconfig"
            await asyncio.to_thread(file.write_text, kubeconfig(api.url))
            selector = ",".join(f"{name}={value}" for name, value in LABELS.items())
            options = ("--endpoint-selector", selector, "--endpoint-target-ports", str(port))
            environment = {"KUBECONFIG": str(file), "POD_NAME": "epp-6d5f9c7b48-x2x4z"}
            async with _picker(*options, environment=environment) as picker:
                yield picker


@asynccontextmanager
async def _picker(
    *options: str, environment: Mapping[str, str] | None = None, timed: Path | None = None
) -> AsyncIterator[Running]:
    counter = () if timed is None else ("tools.bench.timed", str(timed))
    arguments = (
        *("-m", *counter, "epp", "serve", "--log-level", "error"),
        *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
        *("--host", "127.0.0.1", "--secure-serving=false"),
    )
    async with python(*arguments, *options, environment=environment) as picker:
        yield picker


async def pages_sent(host: str, port: int) -> int:
    """Return how many pages the servers of :mod:`tools.bench.page_server` have sent."""
    return int(await asyncio.to_thread(_read, f"http://{host}:{port}/pages"))


def _read(url: str) -> bytes:
    with urlopen(url, timeout=30) as response:
        page: bytes = response.read()
        return page


def _rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024

"""CPU and memory of an endpoint picker without requests, by the number of its endpoints.

``.venv/bin/python -m tools.bench --only endpoints``
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from tools.bench.cpu_time import CpuReading
from tools.bench.processes import Running, python
from tools.bench.tables import new_table

COUNTS = (10, 100, 1000)
SETTLE_SECONDS = 6.0
"""Idle endpoints reach their longest interval."""
_FIXED = ("--scrape", "fixed", "--max-scrape-cpu-percent", "100")
CASES: dict[str, tuple[str, ...]] = {
    "adaptive": (),
    "fixed, 50 ms": _FIXED,
    "adaptive, no health checks": ("--health-check-path", ""),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a picker uses."""

    endpoints: int
    case: str
    cores: float
    rss_bytes: int


async def measure(seconds: float) -> list[Cost]:
    """Measure each case with each number of endpoints."""
    costs = []
    for count in COUNTS:
        async with python("-m", "tools.bench.page_server", str(count)) as servers:
            for case, options in CASES.items():
                async with _picker(servers.ready["addresses"], *options) as picker:
                    await asyncio.sleep(SETTLE_SECONDS)
                    before = CpuReading.of(picker.pid)
                    await asyncio.sleep(seconds)
                    cores = CpuReading.of(picker.pid).share_since(before)
                    costs.append(Cost(count, case, cores, _rss_bytes(picker.pid)))
    return costs


def table(costs: list[Cost]) -> Table:
    """Cost by number of endpoints."""
    made = new_table(
        "Endpoint picker without requests, pages of 54 KB",
        *("endpoints", "scrapes", "cores", "RSS MB", "KB per endpoint"),
    )
    smallest = {cost.case: cost for cost in costs if cost.endpoints == COUNTS[0]}
    for cost in costs:
        more = cost.endpoints - COUNTS[0]
        extra = (cost.rss_bytes - smallest[cost.case].rss_bytes) / more / 1e3 if more else 0.0
        made.add_row(
            str(cost.endpoints),
            cost.case,
            f"{cost.cores:.3f}",
            f"{cost.rss_bytes / 1e6:.1f}",
            f"{extra:.1f}" if more else "-",
        )
    return made


@asynccontextmanager
async def _picker(addresses: list[str], *options: str) -> AsyncIterator[Running]:
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        file = Path(folder) / "endpoints.json"
        entries = []
        for number, address in enumerate(addresses):
            host, _, port = address.rpartition(":")
            entries.append({"name": f"vllm-{number}", "address": host, "port": port})
        await asyncio.to_thread(file.write_text, json.dumps({"endpoints": entries}))
        arguments = (
            *("-m", "epp", "serve", "--endpoints-file", str(file)),
            *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
            *("--host", "127.0.0.1", "--secure-serving=false", "--log-level", "error"),
        )
        async with python(*arguments, *options) as picker:
            yield picker


def _rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024

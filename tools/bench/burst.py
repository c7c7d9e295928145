"""How evenly a burst of requests is spread, and the CPU use of an idle EPP."""

import asyncio
from collections.abc import Sequence

from epp.lab.envoy import Mode
from epp.lab.load import run
from tools.bench import processes
from tools.bench.cpu_time import CpuReading
from tools.bench.gateways import Case, gateway, load_errors, plan, url_of

REQUESTS = 60
ENDPOINTS = 6
NO_SCRAPES = ("--refresh-metrics-interval", "60s")
SCRAPES: tuple[tuple[str, int | None, tuple[str, ...]], ...] = (
    ("no scrape in between", 1, NO_SCRAPES),
    ("scrapes every 50 ms", None, ()),
)
"""Name, most spread that is right (None: no promise), options of the EPP."""


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
        url = await url_of(envoy)
        await asyncio.sleep(0.3)  # every endpoint scraped
        # Half a second each, so that none ends before the last begins.
        case = Case(Mode.LEAN, chunks=50)
        load = plan(url, case, pause_ms=10.0, requests=requests, concurrency=requests)
        report = await run(load)
        return report.endpoints, load_errors(report)


async def idle_share_with_default_scrapes(endpoints: Sequence[str], seconds: float) -> float:
    """Return the cores an EPP without load uses at the default scrape interval (50 ms)."""
    async with processes.epp(endpoints) as running:
        await asyncio.sleep(1)
        before = CpuReading.of(running.pid)
        await asyncio.sleep(seconds)
        return CpuReading.of(running.pid).share_since(before)

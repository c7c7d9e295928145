"""CPU that viewers of the live page cost an endpoint picker.

``.venv/bin/python -m tools.bench --only viewers``
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, TypeVar

import httpx
from rich.table import Table

from epp.admin.live.pool_reader import ConfigReading, EndpointReading, PoolReader, PoolReading
from epp.admin.live.request_tally import EndpointTally
from epp.admin.live.source import LiveSource
from epp.observability import Metrics
from epp.observability.loop_calls import LoopCalls
from epp.scheduling import Endpoint
from epp.testing import make_endpoint
from tools.bench.cpu_time import CpuReading
from tools.bench.many_endpoints import SETTLE_SECONDS, of_file
from tools.bench.processes import python
from tools.bench.tables import new_table

COUNTS: Final = (100, 1000)
VIEWERS: Final = (0, 1, 16)
AIMS: Final = {(100, 1): 0.01}
"""Most cores, beyond those without a viewer."""
_TICKS: Final = 50

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cost:
    """What viewers cost, or one step of the feed."""

    endpoints: int
    viewers: int
    cores: float
    """Of the process."""
    bytes_per_second: float
    """What one viewer gets."""


async def measure(seconds: float) -> list[Cost]:
    """Measure pickers without requests, whose endpoints are scraped."""
    costs = []
    for count in COUNTS:
        async with python("-m", "tools.bench.page_server", str(count)) as servers:
            hosts, port = servers.ready["hosts"], servers.ready["port"]
            async with of_file(hosts, port, ()) as picker:
                url = f"http://127.0.0.1:{picker.ready['metrics']}/debug/events"
                await asyncio.sleep(SETTLE_SECONDS)
                for viewers in VIEWERS:
                    cores, received = await _watched(picker.pid, url, viewers, seconds)
                    costs.append(Cost(count, viewers, cores, received))
    return costs


async def _watched(pid: int, url: str, viewers: int, seconds: float) -> tuple[float, float]:
    received = [0]

    async def look(response: httpx.Response) -> None:
        async for chunk in response.aiter_raw():
            received[0] += len(chunk)

    async with httpx.AsyncClient(trust_env=False, timeout=30) as client, AsyncExitStack() as stack:
        tasks = []
        for _ in range(viewers):
            response = await stack.enter_async_context(client.stream("GET", url))
            tasks.append(asyncio.create_task(look(response)))
        await asyncio.sleep(2.0)  # the snapshot
        before, received[0] = CpuReading.of(pid), 0
        await asyncio.sleep(seconds)
        cores = CpuReading.of(pid).share_since(before)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return cores, received[0] / seconds / max(1, viewers)


class _BusyPool(PoolReader):
    """A pool in which every value of every endpoint changes from one reading to the next."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._number = 0

    def begin(self) -> PoolReading:
        return self.read()

    def end(self) -> None:
        pass

    def read(self) -> PoolReading:
        self._number += 1
        n = self._number
        tallies = {}
        for endpoint in self._endpoints:
            tally = tallies[endpoint] = EndpointTally()
            tally.ended, tally.seconds, tally.first_seconds = 5, 0.3 * n, [0.01 * n] * 5
        return PoolReading(
            at=float(n),
            endpoints=tuple(
                EndpointReading(e, e.metrics, n % 9, n % 7, "suspect", str(n), n, 0.5, "")
                for e in self._endpoints
            ),
            tallies=tallies,
            waiting=n,
            blocked="",
            in_flight=n,
            is_panicking=False,
            why_none_serves="",
            config=ConfigReading("", "", ""),
        )


class _Direct(LoopCalls):
    """Calls without another loop."""

    async def call(self, function: Callable[[], T]) -> T:
        return function()


async def busiest(endpoints: int) -> Cost:
    """Return the cost of a second in which everything changes, without sockets."""
    made = [make_endpoint(f"ns/pod-{n}", address=f"10.0.0.1:{n}") for n in range(endpoints)]
    source, calls = (
        LiveSource("pool", _BusyPool(made), Metrics()),
        _Direct(asyncio.get_running_loop()),
    )
    await source.begin(calls)
    began, received = time.process_time(), 0
    for _ in range(_TICKS):
        received += len(await source.advance(calls) or b"")
    return Cost(endpoints, 1, (time.process_time() - began) / _TICKS, received / _TICKS)


def table(costs: Sequence[Cost], busy: Sequence[Cost]) -> Table:
    """Cost by number of endpoints and viewers."""
    made = new_table(
        "Viewers of the live page, one event a second",
        *("endpoints", "viewers", "cores", "more than without", "aim", "KB/s for each"),
    )
    without = {cost.endpoints: cost.cores for cost in costs if not cost.viewers}
    for cost in costs:
        aim = AIMS.get((cost.endpoints, cost.viewers))
        more = cost.cores - without[cost.endpoints]
        made.add_row(
            str(cost.endpoints),
            str(cost.viewers),
            f"{cost.cores:.4f}",
            f"{more:.4f}" if cost.viewers else "",
            "" if aim is None else f"{aim:g}",
            f"{cost.bytes_per_second / 1e3:.1f}" if cost.viewers else "",
        )
    for cost in busy:
        aim = AIMS.get((cost.endpoints, 1))
        made.add_row(
            str(cost.endpoints),
            "1, every value changes",
            "",
            f"{cost.cores:.4f}",
            "" if aim is None else f"{aim:g}",
            f"{cost.bytes_per_second / 1e3:.1f}",
        )
    return made

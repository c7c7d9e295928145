"""Replicas without their Redis under load, and the cost of sharing: ``python -m tools.replicas``.

Several ``epp serve`` behind one Envoy share their state through Debian's redis-server. Traffic runs
all the time; after a third of it, Redis is killed or frozen, and it returns after ``--away``
seconds. Every response is compared with the expected one.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.console import Console
from rich.table import Table

from epp.lab.envoy import Mode
from tools.bench.cpu_time import CpuReading
from tools.faults.processes import PickerProcess, Setting
from tools.faults.traffic import Sent, Verdict
from tools.faults.trial import Pace, Run, running
from tools.harness.redis_server import RedisServer, redis_server

Fault = Literal["killed", "frozen"]

CONNECTED: Final = "llm_d_epp_replica_connected"
PEERS: Final = "llm_d_epp_replica_peers"
SENT_BYTES: Final = "llm_d_epp_replica_bytes_total"
_CPU_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Period:
    """A part of a run."""

    name: str
    began_at: float
    ended_at: float

    def of(self, sent: Sequence[Sent]) -> list[Sent]:
        """Return the requests that began in it."""
        return [each for each in sent if self.began_at <= each.began_at < self.ended_at]


async def away(replicas: int, fault: Fault, seconds: float, rate: float) -> bool:
    """Make Redis unavailable under load; print a table; return whether no request was lost."""
    requests = round(rate * 3 * seconds)
    pace = Pace(requests=requests, rate=rate, long_tokens=20)
    async with redis_server() as redis:
        options = ("--replica-state", f"redis://127.0.0.1:{redis.port}")
        async with running(Setting(Mode.LEAN), pace, *options, pickers=replicas) as run:
            for picker in run.site.pickers:
                await picker.until(PEERS, replicas - 1)
            began_at = time.monotonic()
            await run.until_share(1 / 3)
            gone_at = time.monotonic()
            await _without_redis(redis, fault, seconds, run.site.pickers)
            back_at = time.monotonic()
            for picker in run.site.pickers:
                await picker.until(CONNECTED, 1)
                await picker.until(PEERS, replicas - 1)
            shared_at = time.monotonic()
            await run.end()
            periods = [
                Period("before", began_at, gone_at),
                Period("Redis is away", gone_at, back_at),
                Period("after", back_at, time.monotonic()),
            ]
            _print(run, periods, f"{replicas} replicas, Redis {fault} for {seconds:g} s")
            print(f"all know each other again {shared_at - back_at:.2f} s after its return")
            return all(each.verdict is Verdict.WHOLE for each in run.traffic.sent)


async def _without_redis(
    redis: RedisServer, fault: Fault, seconds: float, pickers: Sequence[PickerProcess]
) -> None:
    ends_at = time.monotonic() + seconds
    if fault == "killed":
        await redis.kill()
    else:
        redis.freeze()
    for picker in pickers:
        await picker.until(CONNECTED, 0)
    await asyncio.sleep(max(0.0, ends_at - time.monotonic()))
    if fault == "killed":
        await redis.start()
    else:
        redis.thaw()


def _print(run: Run, periods: Sequence[Period], title: str) -> None:
    table = Table(title=title)
    for column in ("", "requests", "whole", "p50, ms", "p99, ms"):
        table.add_column(column, justify="left" if not column else "right")
    for period in periods:
        sent = period.of(run.traffic.sent)
        times = [each.ended_at - each.began_at for each in sent if each.kind.tokens < 10]
        cuts = statistics.quantiles(times, n=100) if len(times) > 1 else [0.0] * 99
        whole = sum(each.verdict is Verdict.WHOLE for each in sent)
        cells = [f"{len(sent)}", f"{whole}", f"{1000 * cuts[49]:.0f}", f"{1000 * cuts[98]:.0f}"]
        table.add_row(period.name, *cells)
    Console().print(table)


async def cost(replicas: int, rate: float) -> None:
    """Print the CPU time of a replica with and without sharing, under load and idle."""
    table = Table(title=f"CPU of one of {replicas} replicas, % of a core")
    for column in ("", "idle", f"{rate:g} requests/s", "messages, KB/s"):
        table.add_column(column, justify="left" if not column else "right")
    async with redis_server() as redis:
        for name, options in (
            ("alone", ()),
            ("sharing", ("--replica-state", f"redis://127.0.0.1:{redis.port}")),
        ):
            pace = Pace(requests=round(rate * 3 * _CPU_SECONDS), rate=rate, long_tokens=20)
            async with running(Setting(Mode.LEAN), pace, *options, pickers=replicas) as run:
                picker = run.site.picker
                await run.until_share(1 / 3)
                before, traffic = CpuReading.of(picker.process.pid), await _sent(picker)
                await asyncio.sleep(_CPU_SECONDS)
                loaded = CpuReading.of(picker.process.pid).share_since(before)
                rate_kb = (await _sent(picker) - traffic) / _CPU_SECONDS / 1000
                await run.end()
                before = CpuReading.of(picker.process.pid)
                await asyncio.sleep(_CPU_SECONDS)
                idle = CpuReading.of(picker.process.pid).share_since(before)
            table.add_row(name, f"{100 * idle:.1f}", f"{100 * loaded:.1f}", f"{rate_kb:.0f}")
    Console().print(table)


async def _sent(picker: PickerProcess) -> float:
    return (await picker.samples(SENT_BYTES)).get(f'{SENT_BYTES}{{direction="sent"}}', 0.0)


async def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.replicas", description=__doc__)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--away", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--rate", type=float, default=60.0, help="requests per second")
    parser.add_argument("--only", choices=["killed", "frozen", "cost"])
    given = parser.parse_args()
    kept = True
    faults: tuple[Fault, ...] = ("killed", "frozen")
    for fault in faults:
        if given.only in {None, fault}:
            kept = await away(given.replicas, fault, given.away, given.rate) and kept
    if given.only in {None, "cost"}:
        await cost(given.replicas, given.rate)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))

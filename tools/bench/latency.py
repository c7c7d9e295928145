"""Latency that the EPP adds to Envoy alone, and the rate up to which its p99 stays small.

``.venv/bin/python -m tools.bench --only latency``

The same load, an open loop, goes in turns through three gateways to the same model servers, which
answer at once: Envoy alone, Envoy with a bare ext_proc server, and Envoy with the EPP. All of it is
on one machine, so the rates are those of the machine; their ratios are not.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from statistics import median

from rich.console import Group
from rich.text import Text

from epp.lab.envoy import EnvoyProcess, Mode
from epp.lab.load import ArrivalSpacing, LoadPlan, Report, run
from epp.lab.results.distribution import percentile
from tools.bench.gateways import (
    PROMPT_BYTES,
    Server,
    load_errors,
    set_up,
    url_of,
    without_ext_proc,
)
from tools.bench.tables import new_table

RATES = (100.0, 300.0)
"""Requests per second at which the added latency is measured: far from saturation."""
AIM_ADDED_MS = 10.0
"""Most that the p99 may grow at the highest rate."""
FIRST_RATE = 400.0
RATE_STEP = 1.4
HIGHEST_RATE = 20_000.0
RATE_SECONDS = 1.5
RATE_RUNS = 3
MOST_FAILURES = 2
"""A rate is too high if the next one is, too: one alone may be the neighbours'."""
_seeds = count(1)


class Gateway(Enum):
    """The gateway that the load passes through."""

    ALONE = "Envoy alone"
    """Round robin of Envoy, no ext_proc."""
    BARE = "Envoy and bare server"
    EPP = "Envoy and EPP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latencies through one gateway at one rate, a value for each round."""

    gateway: Gateway
    mode: Mode
    per_second: float
    """Requests per second."""
    p50_ms: tuple[float, ...]
    p99_ms: tuple[float, ...]
    errors: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestRate:
    """The highest rate through one gateway."""

    gateway: Gateway
    mode: Mode
    per_second: float
    """Highest rate at which the p99 is at most `AIM_ADDED_MS` above that of Envoy alone at the
    first rate; 0.0 if the first rate is too high."""
    limit: str
    """Why the next rate was too high."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All results of one run."""

    latencies: list[Latency]
    rates: list[HighestRate]


async def measure(
    endpoints: Sequence[str], modes: Sequence[Mode], *, seconds: float, rounds: int
) -> Measured:
    """Measure all modes.

    Args:
        endpoints: Addresses of the model servers.
        modes: How Envoy talks to the servers.
        seconds: Load per gateway, mode and rate, all rounds together.
        rounds: Slices of that time.
    """
    measured = Measured([], [])
    for mode in modes:
        async with contextlib.AsyncExitStack() as stack:
            urls = await _urls(stack, endpoints, mode)
            for url in urls.values():
                await run(_plan(url, RATES[0], 2.0))  # connections, caches, bytecode
            for rate in RATES:
                reports: dict[Gateway, list[Report]] = {gateway: [] for gateway in urls}
                for _ in range(rounds):
                    for gateway, url in urls.items():
                        reports[gateway].append(await run(_plan(url, rate, seconds / rounds)))
                measured.latencies.extend(
                    _latency(gateway, mode, rate, each) for gateway, each in reports.items()
                )
            measured.rates.extend(await _highest_rates(urls, mode))
    return measured


async def _urls(
    stack: contextlib.AsyncExitStack, endpoints: Sequence[str], mode: Mode
) -> dict[Gateway, str]:
    alone = await stack.enter_async_context(EnvoyProcess(without_ext_proc(endpoints, mode)))
    bare = await set_up(stack, endpoints, mode, Server.BARE)
    epp = await set_up(stack, endpoints, mode, Server.EPP)
    return {Gateway.ALONE: await url_of(alone), Gateway.BARE: bare.url, Gateway.EPP: epp.url}


def _plan(url: str, rate: float, seconds: float) -> LoadPlan:
    return LoadPlan(
        url=url,
        model="bench",
        rate=rate,
        arrivals=ArrivalSpacing.CONSTANT,
        duration_seconds=seconds,
        prompt_chars=PROMPT_BYTES,
        stream=False,
        timeout_seconds=10.0,
        seed=next(_seeds),
    )


def _latency(gateway: Gateway, mode: Mode, rate: float, reports: Sequence[Report]) -> Latency:
    return Latency(
        gateway=gateway,
        mode=mode,
        per_second=rate,
        p50_ms=tuple(_since_due_ms(report, 0.5) for report in reports),
        p99_ms=tuple(_since_due_ms(report, 0.99) for report in reports),
        errors={kind: text for each in reports for kind, text in load_errors(each).items()},
    )


def _since_due_ms(report: Report, fraction: float) -> float:
    """Return a percentile of the time from when a request was due, not sent, to its end.

    So a gateway that holds up the generator does not hide it.
    """
    times = sorted(each.finished_at - each.scheduled_at for each in report.records)
    return percentile(times, fraction) * 1000


async def _highest_rates(urls: dict[Gateway, str], mode: Mode) -> list[HighestRate]:
    """Raise the rate for all gateways in turns, until it is too high twice in a row for each."""
    highest = dict.fromkeys(urls, 0.0)
    limits = dict.fromkeys(urls, "")
    failures = dict.fromkeys(urls, 0)
    most_ms, rate = math.inf, FIRST_RATE
    while rate <= HIGHEST_RATE and (left := [g for g in urls if failures[g] < MOST_FAILURES]):
        found: dict[Gateway, list[Report]] = {gateway: [] for gateway in left}
        for _ in range(RATE_RUNS):
            for gateway, reports in found.items():
                reports.append(await run(_plan(urls[gateway], rate, RATE_SECONDS)))
        # The best of the runs: neighbours on the machine only ever add to a latency.
        p99_ms = {g: min(_since_due_ms(each, 0.99) for each in of) for g, of in found.items()}
        if most_ms is math.inf:
            most_ms = p99_ms[Gateway.ALONE] + AIM_ADDED_MS
        for gateway, reports in found.items():
            if p99_ms[gateway] <= most_ms and not any(each.failed for each in reports):
                highest[gateway], limits[gateway], failures[gateway] = rate, "", 0
            else:
                failures[gateway] += 1
                limits[gateway] = limits[gateway] or f"p99 {p99_ms[gateway]:.1f} ms at {rate:.0f}/s"
        rate *= RATE_STEP
    return [HighestRate(gateway=g, mode=mode, per_second=highest[g], limit=limits[g]) for g in urls]


def bases(latencies: Sequence[Latency]) -> dict[tuple[Mode, float], Latency]:
    """Return the latencies of Envoy alone, by mode and requests per second."""
    return {
        (each.mode, each.per_second): each for each in latencies if each.gateway is Gateway.ALONE
    }


def added(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the median difference of rounds, which had the same neighbours."""
    return median(mine - its for mine, its in zip(one, other, strict=True))


def table(measured: Measured) -> Group:
    """Return the latencies, then the rates."""
    shown = new_table(
        "Latency, open loop, ms; added: to Envoy alone, in turns",
        *("mode", "requests/s", "gateway", "p50", "added", "p99", "added"),
    )
    alone = bases(measured.latencies)
    for each in measured.latencies:
        base = alone[each.mode, each.per_second]
        is_base = each is base
        shown.add_row(
            each.mode.value,
            f"{each.per_second:g}",
            each.gateway.value,
            f"{median(each.p50_ms):.2f}",
            "" if is_base else f"{added(each.p50_ms, base.p50_ms):.2f}",
            f"{median(each.p99_ms):.2f}",
            "" if is_base else f"{added(each.p99_ms, base.p99_ms):.2f}",
        )
    rates = new_table(
        f"Highest rate with a p99 of at most {AIM_ADDED_MS:g} ms above Envoy alone",
        *("mode", "gateway", "requests/s", "of Envoy alone", "of the bare server", "then"),
    )
    by_key = {(each.mode, each.gateway): each.per_second for each in measured.rates}
    for rate in measured.rates:
        shares = [
            f"{rate.per_second / other:.2f}" if (other := by_key[rate.mode, of]) else "-"
            for of in (Gateway.ALONE, Gateway.BARE)
        ]
        rates.add_row(
            rate.mode.value, rate.gateway.value, f"{rate.per_second:.0f}", *shares, rate.limit
        )
    errors = [f"{each.gateway.value}: {each.errors}" for each in measured.latencies if each.errors]
    verdict = Text("\n".join(errors), style="bold red") if errors else Text("no load errors")
    return Group(shown, rates, verdict)

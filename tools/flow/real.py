"""Flow control through Envoy: a load generator sends real requests to the fake fleet.

The endpoint picker, the fleet and the load generator share one process, so the figures are those of
a loaded machine: shares are valid, times only comparable with each other.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from epp.lab.fleet import EngineConfig, FleetConfig
from epp.lab.load import LoadPlan, Report, run
from tools import REPOSITORY
from tools.flow.configurations import config
from tools.flow.figures import jain, table
from tools.harness.gateway import Gateway, running

ENDPOINTS, SLOTS = 4, 8
FLEET = FleetConfig(endpoints=ENDPOINTS, engine=EngineConfig(max_num_seqs=SLOTS))
WEIGHTS = {"bronze": 1.0, "silver": 2.0, "gold": 4.0}
BATCH = REPOSITORY / "deploy" / "objects" / "batch.yaml"

ROUNDS = 3
"""Number of repeated runs; the best one counts."""

SIZES = {"bronze": (1200, 30), "silver": (400, 40), "gold": (800, 80)}
"""Characters of the prompt and tokens of the response."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Result of a run."""

    title: str
    text: str
    by_name: dict[str, float]
    """Values for assertions."""


def plan(gateway: Gateway, who: str, size: tuple[int, int], **options: Any) -> LoadPlan:
    """Return the load of one tenant."""
    objective = options.pop("objective", "")
    headers = [("x-llm-d-inference-fairness-id", who)]
    if objective:
        headers.append(("x-llm-d-inference-objective", objective))
    chars, tokens = size
    return LoadPlan(
        url=options.pop("url", gateway.url),
        model="tiny",
        prompt_chars=chars,
        max_tokens=tokens,
        stream=False,
        seed=len(who),
        headers=tuple(headers),
        **options,
    )


async def for_seconds(seconds: float, *plans: LoadPlan) -> list[Report]:
    """Run loads concurrently; requests in progress at the end do not count."""
    tasks = [asyncio.create_task(run(each)) for each in plans]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    return list(await asyncio.gather(*tasks))


async def fairness(seconds: float, *, time_scale: float = 1.0) -> Figures:
    """Three tenants with weights 1:2:4, each with more load than the pool can serve."""
    async with running(
        fleet=replace(FLEET, time_scale=time_scale),
        config=config(slots_per_endpoint=SLOTS, weights=WEIGHTS),
    ) as gateway:
        plans = [
            plan(gateway, who, SIZES[who], concurrency=40, duration_seconds=2 * seconds)
            for who in WEIGHTS
        ]
        reports = dict(zip(WEIGHTS, await for_seconds(seconds, *plans), strict=True))
    tokens = {who: each.prompt_tokens + each.output_tokens for who, each in reports.items()}
    total = sum(tokens.values())
    shares = {who: tokens[who] / total for who in WEIGHTS}
    due = {who: weight / sum(WEIGHTS.values()) for who, weight in WEIGHTS.items()}
    index = jain(tokens[who] / weight for who, weight in WEIGHTS.items())
    rows = [
        (
            who,
            f"{WEIGHTS[who]:g}",
            f"{reports[who].succeeded}",
            f"{tokens[who]}",
            f"{shares[who]:.1%}",
            f"{shares[who] / due[who] - 1:+.1%}",
            _ms(reports[who], 0.9),
        )
        for who in WEIGHTS
    ]
    head = ("tenant", "weight", "responses", "tokens", "share", "off its weight", "p90")
    text = f"{table(head, rows)}\n\nJain's index of tokens per weight: {index:.4f}"
    errors = sum(each.failed for each in reports.values())
    return Figures("Fairness", text, {"jain": index, "errors": errors, **shares})


async def flood(seconds: float) -> Figures:
    """Two tenants, one with ten times the clients of the other."""
    rows, p90 = [], []
    for clients in (40, 400):
        async with running(
            fleet=FLEET, config=config(slots_per_endpoint=SLOTS, weights=WEIGHTS)
        ) as gateway:
            numbers = {"silver": clients, "gold": 40}
            plans = [
                plan(gateway, who, (800, 40), concurrency=number, duration_seconds=2 * seconds)
                for who, number in numbers.items()
            ]
            reports = dict(zip(numbers, await for_seconds(seconds, *plans), strict=True))
        latency = reports["gold"].latency_ms
        p90.append(latency.p90 if latency else float("nan"))
        rows.append((f"{clients}", f"{reports['gold'].succeeded}", _ms(reports["gold"], 0.9)))
    change = p90[1] / p90[0] - 1
    text = table(("clients of the other", "responses", "p90"), rows)
    return Figures("Flood", f"{text}\n\nThe p90 moved by {change:+.1%}", {"change": change})


async def priority(seconds: float) -> Figures:
    """Three times the load that the pool can serve, most of it sheddable."""
    size = (800, 40)
    text = config(slots_per_endpoint=SLOTS, ttl="10s")
    async with running(fleet=FLEET, config=text, objects=(BATCH,)) as gateway:
        probe = plan(gateway, "probe", size, concurrency=ENDPOINTS * SLOTS, duration_seconds=20)
        (full,) = await for_seconds(min(4.0, seconds), probe)
        capacity = full.requests_per_second
        reports = await for_seconds(
            seconds,
            plan(gateway, "chat", size, rate=0.6 * capacity, duration_seconds=2 * seconds),
            plan(
                gateway,
                "batch",
                size,
                rate=2.4 * capacity,
                duration_seconds=2 * seconds,
                objective="batch",
            ),
        )
    service = full.latency_ms.p50 if full.latency_ms else float("nan")
    served = sum(each.succeeded for each in reports)
    rows = [
        (
            name,
            f"{load:g} times",
            f"{each.succeeded}",
            f"{each.succeeded / served:.0%}",
            f"{each.failed}",
            _ms(each, 0.5),
            _ms(each, 0.99),
        )
        for name, load, each in zip(("0", "-1"), (0.6, 2.4), reports, strict=True)
    ]
    head = ("priority", "load", "responses", "of all", "given up", "p50", "p99")
    high, low = (each.latency_ms for each in reports)
    wait = (high.p99 if high else float("nan")) - service
    return Figures(
        "Priority",
        f"{table(head, rows)}\n\nA request alone takes {service:.0f} ms with the pool full; the"
        f" high band's p99 is {wait:.0f} ms longer",
        {
            "high p50": high.p50 if high else float("inf"),
            "low p50": low.p50 if low else 0.0,
            "low share": reports[1].succeeded / served,
            "high errors": reports[0].failed,
        },
    )


async def overhead(seconds: float) -> Figures:
    """The cost of waiting: the time from the end of a request to the dispatch of the next one."""
    # Slow enough to take its nominal time despite the other work of this process.
    fleet = FleetConfig(endpoints=1, time_scale=0.2)
    on = config(slots_per_endpoint=1)
    off = on.replace("- flowControl\n", "- flowControl=false\n")
    kinds = (
        ("without flow control, one client", off, 1),
        ("with flow control, one client: nothing waits", on, 1),
        ("with flow control, eight clients: all wait", on, 8),
    )
    best = [math.inf] * len(kinds)
    for _ in range(ROUNDS):
        for number, (_, text, clients) in enumerate(kinds):
            async with running(fleet=fleet, config=text) as gateway:
                load = plan(
                    gateway, "a", (400, 8), concurrency=clients, duration_seconds=2 * seconds
                )
                (report,) = await for_seconds(seconds / ROUNDS, load)
            if report.latency_ms is not None:  # each waits for all the others
                best[number] = min(best[number], report.latency_ms.p50 / clients)
    rows = [(name, f"{ms:.2f} ms") for (name, _, _), ms in zip(kinds, best, strict=True)]
    note = (
        f"Flow control costs {best[1] - best[0]:+.2f} ms where nothing waits; requests that wait"
        f" follow each other {best[2] - best[1]:+.2f} ms later than those of one client"
    )
    text = table(("one place in the pool", f"median time for each, best of {ROUNDS} runs"), rows)
    return Figures("Overhead", f"{text}\n\n{note}", {"waiting": best[2]})


def _ms(report: Report, part: float) -> str:
    latency = report.latency_ms
    if latency is None:
        return "none"
    value = {0.5: latency.p50, 0.9: latency.p90, 0.99: latency.p99}[part]
    return f"{value:.0f} ms"


RUNS: dict[str, Callable[[float], Awaitable[Figures]]] = {
    "fairness": fairness,
    "flood": flood,
    "priority": priority,
    "overhead": overhead,
}
"""Scenarios by name; the argument is their duration in seconds."""

"""Flow control: dispatches per second, latency from a free slot to a dispatch, overhead.

The loads are those of the Go EPP's own benchmark, which publishes no figures: small and large
numbers of slots, bands, flows and callers.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from epp.config import DEFAULT_CONFIG
from epp.request_control import EndCause, PendingDecision
from tools.bench import processes
from tools.bench.callers import Callers, Cell, Readings, asks
from tools.bench.cpu_time import CpuReading
from tools.bench.flow_gates import GATE, Alone, SetUp, Whole
from tools.bench.in_process import silenced

LIMITS, BANDS, FLOWS, CALLERS = (0, 1, 100), (1, 8), (10, 5000), (10, 5000)
MATRIX = tuple(
    Cell(limit, bands, flows, callers)
    for limit in LIMITS
    for bands in BANDS
    for flows in FLOWS
    for callers in CALLERS
)
CHURN = Cell(limit=100, bands=1, flows=0, callers=1000)
"""Every request is of a flow of its own."""
STRAIGHT = Cell(limit=0, bands=1, flows=10, callers=16)
QUEUED = Cell(limit=16, bands=1, flows=10, callers=32)
"""As many in flight as in ``STRAIGHT``, and as many wait."""
CANCELLED = 5000
CANCEL_MS = 50
GIVEN_UP, TIME_OVER = "their callers give up", "their time is over"
_TICK_SECONDS = 0.001

POLICIES = {
    "defaults": "",
    "round robin": "round-robin-fairness-policy",
    "program-aware, whose keys age": "program-aware-fairness",
}
PLUGINS = {
    "session plugin node-affinity: a predicate": "node-affinity: {}",
    "session plugin node-spread: an order of nodes": "node-spread: {}",
    "session plugin priority: an order of requests": "priority: {}",
    "session plugin strict-priority: an order of flows": "strict-priority: {}",
    "session plugin proportion: shares": "proportion: {}",
}
ORDER_CELLS = (Cell(1, 1, 10, 10), Cell(1, 1, 5000, 5000), Cell(100, 1, 5000, 5000))


@dataclass(frozen=True, slots=True)
class Speed:
    """The best of some runs of one cell."""

    cell: Cell
    per_second: float
    p50_us: float | None
    """Time from a released slot to the next dispatch; None if no request waited."""
    p99_us: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """A load, in flow control alone and through a whole director."""

    alone: Speed
    whole: Speed


@dataclass(frozen=True, slots=True)
class Ordered:
    """One policy or session plugin, measured on the cells of ``ORDER_CELLS``."""

    name: str
    speeds: Sequence[Speed]


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost of flow control per request, in microseconds of a complete director."""

    off_us: float
    """Without it."""
    straight_us: float
    """With flow control, without waiting."""
    queued_us: float
    """With flow control, if the request waits."""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """``CANCELLED`` requests that begin to wait, and give up ``CANCEL_MS`` later."""

    how: str
    enqueue_us: float
    leave_us: float
    """Both for each request."""
    longest_ms: float
    """The most that the loop was held up by those that gave up."""


async def matrix(dispatches: int, rounds: int) -> list[Row]:
    """Measure all loads."""
    rows = []
    for cell in MATRIX:
        alone = [await _alone(cell, dispatches) for _ in range(rounds)]
        whole = [await _whole(cell, dispatches // 2) for _ in range(rounds)]
        rows.append(Row(_best(cell, alone), _best(cell, whole)))
    return rows


async def orders(dispatches: int, rounds: int) -> list[Ordered]:
    """Measure policies and session plugins, in flow control alone."""
    kinds = [(name, policy, "") for name, policy in POLICIES.items()]
    kinds += [(name, "", plugin) for name, plugin in PLUGINS.items()]
    measured = []
    for name, fairness, plugin in kinds:
        speeds = []
        for cell in ORDER_CELLS:
            # An order of sessions' own is a matter of milliseconds where there are many flows.
            count = dispatches // 20 if plugin and cell.flows > FLOWS[0] else dispatches
            readings = [
                await _alone(cell, count, fairness=fairness, plugin=plugin) for _ in range(rounds)
            ]
            speeds.append(_best(cell, readings))
        measured.append(Ordered(name, speeds))
    return measured


async def idle(endpoints: Sequence[str], seconds: float) -> dict[str, float]:
    """Return the cores that an EPP without requests uses, with flow control and without.

    Args:
        endpoints: Addresses of the model servers, scraped once a minute.
        seconds: How long to look.
    """
    shares = {}
    for name, gate in (("off", ""), ("on", GATE)):
        text = ("--config-text", DEFAULT_CONFIG + gate, "--refresh-metrics-interval", "60s")
        async with processes.epp(endpoints, *text) as running:
            await asyncio.sleep(2)
            before = CpuReading.of(running.pid)
            await asyncio.sleep(seconds)
            shares[name] = CpuReading.of(running.pid).share_since(before)
    return shares


async def churn(dispatches: int, rounds: int) -> Speed:
    """Measure flows that come and go, once as many are known as are kept."""
    readings = [await _alone(CHURN, dispatches, uncounted=12_000) for _ in range(rounds)]
    return _best(CHURN, readings)


async def costs(dispatches: int, rounds: int) -> Costs:
    """Measure what a request costs without flow control, past it and through it, in turns."""
    off, straight, queued = [], [], []
    for _ in range(rounds):
        off.append(await _whole(STRAIGHT, dispatches, is_on=False))
        straight.append(await _whole(STRAIGHT, dispatches))
        queued.append(await _whole(QUEUED, dispatches))
    least = [1e6 / max(each.per_second for each in some) for some in (off, straight, queued)]
    return Costs(*least)


async def cancellations(rounds: int) -> list[Cancellation]:
    """Measure callers that give up, by themselves and by their time limit."""
    measured = []
    for how in (GIVEN_UP, TIME_OVER):
        runs = [await _cancelled(how) for _ in range(rounds)]
        measured.append(min(runs, key=lambda each: each.enqueue_us + each.leave_us))
    return measured


async def _cancelled(how: str) -> Cancellation:
    cell = Cell(limit=1, bands=1, flows=5000, callers=CANCELLED)
    by_limit = how == TIME_OVER
    with silenced("info"):
        setup = SetUp.of(cell, 10)
        setup.egress.in_flight = 1
        gate = Whole(setup.director(), setup.flow)
        gate.prepare(asks(cell, CANCELLED, 0), ttl_ms=CANCEL_MS if by_limit else None)
        loop = asyncio.get_running_loop()
        all_left = loop.create_future()
        left: list[object] = []

        def gone(outcome: object) -> None:
            left.append(outcome)
            if len(left) == CANCELLED:
                all_left.set_result(None)

        def give_up(decision: PendingDecision) -> None:
            decision.cancel(EndCause.CLIENT_DISCONNECT)
            gone(decision)

        began = time.process_time()
        for number in range(CANCELLED):
            decision = gate.ask(number)
            assert isinstance(decision, PendingDecision)  # there is no room
            if by_limit:
                decision.then(gone)
            else:
                loop.call_later(CANCEL_MS / 1000, give_up, decision)
        enqueued = time.process_time()
        longest = await _longest_turn(all_left)
        ended = time.process_time()
    if setup.flow.waiting:
        raise RuntimeError(f"{setup.flow.waiting} requests wait that have given up")
    each_us = 1e6 / CANCELLED
    return Cancellation(
        how, (enqueued - began) * each_us, (ended - enqueued) * each_us, longest * 1000
    )


async def _longest_turn(until: asyncio.Future[None]) -> float:
    """Return for how long the loop was held up at most, in seconds."""
    longest = 0.0
    while not until.done():
        began = time.perf_counter()
        await asyncio.sleep(_TICK_SECONDS)
        longest = max(longest, time.perf_counter() - began - _TICK_SECONDS)
    return longest


async def _alone(
    cell: Cell, dispatches: int, *, fairness: str = "", plugin: str = "", uncounted: int = 0
) -> Readings:
    setup = SetUp.of(cell, 1, fairness=fairness, plugin=plugin)
    gate = Alone(setup.flow, setup.endpoints[0])
    return await Callers(gate, setup.egress, cell).run(dispatches, uncounted=uncounted)


async def _whole(cell: Cell, dispatches: int, *, is_on: bool = True) -> Readings:
    setup = SetUp.of(cell, 10)
    gate = Whole(setup.director(is_on=is_on), setup.flow)
    return await Callers(gate, setup.egress, cell).run(dispatches)


def _best(cell: Cell, readings: Sequence[Readings]) -> Speed:
    best = max(readings, key=lambda each: each.per_second)
    if len(best.latencies) < 2:
        return Speed(cell, best.per_second, None, None)
    percentiles = quantiles(best.latencies, n=100, method="inclusive")
    return Speed(cell, best.per_second, percentiles[49] * 1e6, percentiles[98] * 1e6)

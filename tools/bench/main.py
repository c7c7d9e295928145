"""The benchmarks: cost of a request as a multiple of the bare transport.

``.venv/bin/python -m tools.bench [--quick] [--all] [--only PART]``

The results are written below build/bench; ``tools.bench.compare`` compares them.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import uvloop
from rich.console import Console
from rich.text import Text

from epp.compiled import IS_COMPILED
from epp.lab.envoy import Mode
from tools.bench import (
    agreement,
    agreement_runs,
    body_sizes,
    budget,
    budget_table,
    burst,
    cost,
    counted,
    cycle,
    envoy_table,
    floods,
    flow_control,
    flow_tables,
    gateways,
    in_process,
    instructions,
    latency,
    live_viewer,
    many_endpoints,
    matrix,
    open_requests,
    pods,
    predicted_time,
    prefix_memory,
    processes,
    recorded,
    relayed_pods,
    result_cells,
    result_file,
    setups,
    shares,
    start_up,
    tables,
    through_envoy,
    tracing,
    worker_queues,
    worker_scaling,
)
from tools.bench.calls import Call
from tools.bench.gateways import SERVERS, Case, Reads, Server
from tools.bench.through_envoy import Settings


@dataclass(slots=True)
class Run:
    """One run of the benchmark; its parts share what they need and add their results."""

    console: Console
    settings: Settings
    sampling: Settings
    """For what is sampled: 250 samples a second of CPU time is all there is."""
    repeats: int
    """Repetitions of measurements in process."""
    quick: bool
    servers: Sequence[Server]
    budget_cases: Sequence[Case]
    endpoints: Sequence[str] = ()
    """The model servers."""
    results: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """The parts that could not be measured."""
    _recorded: dict[Case, Reads] = field(default_factory=dict)
    _paths: dict[Case, in_process.Path] = field(default_factory=dict)

    async def path(self, case: Case) -> in_process.Path:
        """Return the whole path of ``case``, measured once."""
        if case not in self._paths:
            recorded = {case: await self.reads(case)}
            (self._paths[case],) = await in_process.paths(recorded, self.repeats)
        return self._paths[case]

    async def reads(self, case: Case) -> Reads:
        """Return what Envoy sends for ``case``."""
        if not self._recorded:
            cases = dict.fromkeys((*through_envoy.CASES, *body_sizes.CASES))
            self._recorded = await gateways.record(self.endpoints, tuple(cases))
        return self._recorded[case]


async def envoy(run: Run) -> None:
    """CPU through Envoy, all servers."""
    run.console.print(f"{gateways.CONCURRENCY} in parallel, {run.settings} ...")
    (cells,) = await through_envoy.measure(
        run.settings, run.endpoints, run.servers, through_envoy.CASES
    )
    idle = await burst.idle_share_with_default_scrapes(run.endpoints, run.settings.seconds)
    run.results |= {"through_envoy": cells, "idle_share_50ms_scrapes": idle}
    run.console.print(envoy_table.cells(cells, run.settings), envoy_table.idle(idle))
    run.console.print(envoy_table.verdict(cells))


async def parts(run: Run) -> None:
    """The budget by part: samples, and counted calls."""
    budgets = await budget.measure(run.sampling, run.endpoints, run.budget_cases)
    run.console.print(budget_table.by_case(budgets))
    calls: dict[str, list[Call]] = {}
    run.results |= {"budgets": budgets, "calls": calls}
    if IS_COMPILED:
        run.console.print("Calls are counted in pure Python only: no profiler sees compiled ones.")
        return
    for case in (case for case in run.budget_cases if case in budget.DETAILED):
        path = await run.path(case)
        calls[tables.named(case)] = await counted.measure(
            case, await run.reads(case), path, run.repeats
        )
        run.console.print(budget_table.parts(budgets, path, calls[tables.named(case)]))
        run.console.print(budget_table.functions(budgets, case))


async def micro(run: Run) -> None:
    """The whole path, the cycle and the prefix index, in process."""
    cases = [case for case in through_envoy.CASES if case.chunks == 1 or case in budget.CASES]
    paths = [await run.path(case) for case in cases]
    cycles, prefixes = cycle.cycles(run.repeats), cycle.prefixes(run.repeats)
    run.results |= {"paths": paths, "cycles": cycles, "prefixes": prefixes}
    run.console.print(tables.paths(paths), tables.cycles(cycles), tables.prefixes(prefixes))
    await explain(run)


async def instruction_counts(run: Run) -> None:
    """Machine instructions of a request in process, if valgrind is installed."""
    recorded = {case: await run.reads(case) for case in instructions.CASES}
    try:
        counted = await asyncio.to_thread(instructions.measure, recorded)
    except instructions.InstructionsError as error:
        run.console.print(Text(str(error), style="yellow"))
        return
    run.results["instructions"] = counted
    run.console.print(instructions.table(counted))


async def explain(run: Run) -> None:
    """Measure what it costs to record decisions."""
    costs = recorded.measure(run.repeats)
    run.results["recorded"] = costs
    run.console.print(recorded.table(costs))


async def predicted(run: Run) -> None:
    """What predicted times cost beside the default profile, in process."""
    measured = predicted_time.measure(run.repeats)
    run.results["predicted_time"] = measured
    run.console.print(predicted_time.table(measured))


async def observability(run: Run) -> None:
    """What metrics and the log line take of a request, in process."""
    measured = [
        await shares.measure(case, await run.reads(case), run.repeats) for case in shares.CASES
    ]
    run.results["shares"] = measured
    run.console.print(shares.table(measured))


async def sizes(run: Run) -> None:
    """Bodies by size, in process and through Envoy."""
    paths = [await run.path(case) for case in body_sizes.CASES]
    run.console.print(body_sizes.paths(paths))
    (cells,) = await through_envoy.measure(
        run.settings, run.endpoints, body_sizes.SERVERS, body_sizes.ENVOY_CASES
    )
    run.results |= {"sizes": paths, "sizes_through_envoy": cells}
    run.console.print(body_sizes.cells(cells), envoy_table.verdict(cells))


async def traced(run: Run) -> None:
    """The whole path in process without tracing, and with it."""
    measured = [await tracing.measure(c, await run.reads(c), run.repeats) for c in tracing.CASES]
    run.results["tracing"] = measured
    run.console.print(tracing.table(measured))


async def memory(run: Run) -> None:
    """The prefix index, counted and resident."""
    measured = [prefix_memory.measure(case) for case in prefix_memory.CASES]
    run.results["prefix_memory"] = measured
    run.console.print(prefix_memory.table(measured))


async def sample_setups(run: Run) -> None:
    """The samples in deploy/config beside the default, in process."""
    measured = setups.measure(run.repeats)
    run.results["setups"] = measured
    run.console.print(setups.table(measured))


async def spread(run: Run) -> None:
    """A burst over few endpoints."""
    some = run.endpoints[: burst.ENDPOINTS]
    for scrapes, most, options in burst.SCRAPES:
        served, errors = await burst.burst(some, burst.REQUESTS, *options)
        run.results[f"burst, {scrapes}"] = {"served": served, "errors": errors}
        run.console.print(tables.burst(served, errors, burst.ENDPOINTS, scrapes, most))


async def flood(run: Run) -> None:
    """Floods on one connection, and what the others notice."""
    rows = await floods.measure()
    run.results["floods"] = rows
    run.console.print(floods.table(rows), floods.verdict(rows))


async def flow(run: Run) -> None:
    """Flow control: its speed by load and by order, and what it costs a request."""
    count, rounds = (2000, 1) if run.quick else (5000, 3)
    rows = await flow_control.matrix(count, rounds)
    run.console.print(flow_tables.matrix(rows))
    orders = await flow_control.orders(count, rounds)
    run.console.print(flow_tables.orders(orders))
    costs = await flow_control.costs(count // 3, 3 * rounds)
    churn = await flow_control.churn(count, rounds)
    gone = await flow_control.cancellations(2 * rounds)
    idle = await flow_control.idle(run.endpoints, 10.0)
    run.console.print(
        flow_tables.costs(costs), flow_tables.churn(churn), flow_tables.cancellations(gone)
    )
    run.console.print(flow_tables.idle(idle))
    run.results |= {
        "flow_control": rows,
        "flow_control_orders": orders,
        "flow_control_costs": costs,
        "flow_control_churn": churn,
        "flow_control_cancellations": gone,
        "flow_control_idle": idle,
    }


async def start(run: Run) -> None:
    """Measure the time until the process listens."""
    measured = await asyncio.to_thread(start_up.measure, 3 if run.quick else 10)
    run.results["start"] = measured
    run.console.print(start_up.table(measured))


async def follow_pods(run: Run) -> None:
    """Pods of the Kubernetes API."""
    measured = [await pods.measure(case) for case in pods.CASES]
    relayed = [await relayed_pods.measure(case) for case in relayed_pods.CASES]
    run.results["pods"] = {"alone": measured, "relayed": relayed}
    run.console.print(pods.table(measured))
    run.console.print(relayed_pods.table(relayed))


async def worst(run: Run) -> None:
    """Each step on what is made to be costly."""
    measured = cost.measure(quick=run.quick)
    run.results["cost"] = measured
    run.console.print(cost.table(measured))


async def endpoints(run: Run) -> None:
    """CPU and memory by the number of endpoints."""
    measured = await many_endpoints.measure(5.0 if run.quick else 20.0)
    run.results["endpoints"] = measured
    run.console.print(many_endpoints.table(measured))


async def open_ones(run: Run) -> None:
    """What is done by the clock while requests are open."""
    costs, timers = await open_requests.measure(5 if run.quick else 15)
    run.results["open_requests"] = costs
    run.console.print(open_requests.table(costs, timers))


async def viewers(run: Run) -> None:
    """CPU that viewers of the live page cost."""
    measured = await live_viewer.measure(5.0 if run.quick else 20.0)
    busy = [await live_viewer.busiest(count) for count in live_viewer.COUNTS]
    run.results["viewers"] = {"idle": measured, "busy": busy}
    run.console.print(live_viewer.table(measured, busy))


async def by_everything(run: Run) -> None:
    """CPU by mode, chunks, length and endpoints."""
    measured = await matrix.measure(run.settings)
    run.results["matrix"] = measured
    run.console.print(matrix.table(measured))


async def added_latency(run: Run) -> None:
    """Latency added to Envoy alone, and the highest rate."""
    modes = (Mode.ADAPTIVE,) if run.quick else (Mode.ADAPTIVE, Mode.FULL_DUPLEX)
    measured = await latency.measure(
        run.endpoints, modes, seconds=run.settings.seconds * 3, rounds=run.settings.rounds
    )
    run.results["latency"] = measured
    run.console.print(latency.table(measured))


async def agree(run: Run) -> None:
    """Whether simulation and live fleet agree."""
    seeds = range(1, 2 if run.quick else 4)
    measured = await agreement_runs.measure(seeds, run.console.print)
    run.results["agreement"] = measured
    run.console.print(agreement.table(measured))


async def several_workers(run: Run) -> None:
    """Requests a second of one process and of several workers."""
    measured = await worker_scaling.measure(run.settings, run.endpoints)
    served = await worker_scaling.burst(run.endpoints)
    reached = await worker_scaling.shares(run.endpoints)
    queues = await worker_queues.measure(2000 if run.quick else 20_000, 1 if run.quick else 3)
    run.results["workers"] = {
        "cells": measured, "burst": served, "shares": reached, "queues": queues
    }  # fmt: skip
    run.console.print(worker_scaling.table(measured, served, reached))
    run.console.print(worker_queues.table(queues))


PARTS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "envoy": envoy,
    "matrix": by_everything,
    "latency": added_latency,
    "parts": parts,
    "micro": micro,
    "instructions": instruction_counts,
    "shares": observability,
    "explain": explain,
    "predicted-time": predicted,
    "sizes": sizes,
    "setups": sample_setups,
    "tracing": traced,
    "memory": memory,
    "burst": spread,
    "flow": flow,
    "pods": follow_pods,
    "floods": flood,
    "cost": worst,
    "start": start,
    "endpoints": endpoints,
    "open": open_ones,
    "viewers": viewers,
    "agreement": agree,
    "workers": several_workers,
}
BY_DEFAULT = [
    name
    for name in PARTS
    if name
    not in {"matrix", "instructions", "explain", "floods", "cost", "endpoints", "open", "viewers"}
]


async def measure_parts(run: Run, names: Iterable[str]) -> None:
    """Measure these parts and print their tables; the others are measured even if a part fails."""
    for name in names:
        began = time.monotonic()
        try:
            await PARTS[name](run)
        except Exception:
            run.failed.append(name)
            run.console.print_exception()
        run.console.print(f"{name}: {time.monotonic() - began:.0f} s\n")


async def main(given: argparse.Namespace, console: Console) -> Run:
    """Run the parts asked for, and print their tables."""
    settings = Settings(
        seconds=1.0 if given.quick else 5.0,
        rounds=3 if given.quick else 5,
        pause_ms=given.pause_ms,
    )
    run = Run(
        console,
        settings,
        settings if given.quick else replace(settings, seconds=10.0, rounds=10),
        repeats=6 if given.quick else 24,
        quick=given.quick,
        servers=tuple(Server) if given.all else SERVERS,
        budget_cases=budget.DETAILED[:2] if given.quick else budget.CASES,
    )
    async with processes.upstream(gateways.ENDPOINTS) as upstream:
        run.endpoints = upstream.ready["endpoints"]
        await measure_parts(run, [given.only] if given.only else BY_DEFAULT)
    return run


def command() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="measure each cell for 1 s instead of 5 s"
    )
    parser.add_argument("--all", action="store_true", help="also measure --transport grpcio")
    parser.add_argument(
        "--pause-ms", type=float, default=10.0, help="pause between two chunks of a response"
    )
    parser.add_argument("--only", choices=PARTS, help="run one part only")
    arguments = parser.parse_args()
    console = Console(width=160)
    machine = result_file.this_machine()
    run = uvloop.run(main(arguments, console))
    found = result_cells.cells_of(run.results, machine.reference_us)
    path = result_file.write(found, run.results, machine, sys.argv[1:])
    console.print(f"{len(found)} cells for `make bench-compare`: {path}")
    if run.failed:
        raise SystemExit(f"not measured, see the errors above: {', '.join(run.failed)}")

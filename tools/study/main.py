"""The study: policies by engines, fleets, traffic and loads, as ratios.

``.venv/bin/python -m tools.study [--coarse] [--results FILE] [--jobs N] [--policy NAME-OR-FILE]``

Each run is a simulation, so the results depend on the seeds alone, not on the machine. A finished
run is a line of the results file: the same command continues an interrupted study, and ``--show``
prints the tables of what there is. The coarse one takes some minutes on two cores.
"""

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from rich import box
from rich.console import Console

from epp.lab.simulation import Contender, RunSettings, quiet_logs, run
from tools import REPOSITORY
from tools.study.cases import Case, cases, loads
from tools.study.table import BASELINES, METRICS, Measured, tables

CONFIGS = REPOSITORY / "deploy" / "config"
POLICIES = (
    *BASELINES,
    str(CONFIGS / "predicted-time.yaml"),
    str(CONFIGS / "predicted-time-holding.yaml"),
)
_COARSE_REQUESTS, _REQUESTS = 600, 2000
_COARSE_SEEDS, _SEEDS = 2, 5

Task = tuple[Case, float, str, int, int]
"""Case, load, policy, seed, number of requests."""


def throughput(case: Case, requests: int) -> float:
    """Return the requests a second that the reference default serves in overload."""
    settings = RunSettings(scenario=case.overload(requests))
    ended = run(settings, Contender.of_policy(BASELINES[0]), 1)
    return sum(record.succeeded for record in ended.records) / ended.virtual_seconds


def measure(task: Task, rate: float) -> Measured:
    """Run one simulation.

    Args:
        task: What to run.
        rate: Requests a second at load 1.
    """
    case, load, policy, seed, requests = task
    path = Path(policy)
    contender = Contender.of_config(path) if path.suffix else Contender.of_policy(policy)
    settings = RunSettings(scenario=case.scenario(load * rate, requests))
    summary = run(settings, contender, seed).summary
    values = {name: value for name, of in METRICS.items() if (value := of(summary)) is not None}
    return Measured(case.name, case.is_parity, load, contender.name, seed, values)


def study(
    tasks: Sequence[Task], results: Path, known: Sequence[Measured], jobs: int
) -> Iterator[Measured]:
    """Yield the results of all tasks, those of the file first; append the others to it."""
    done = {(each.case, each.load, each.policy, each.seed): each for each in known}
    wanted = [task for task in tasks if _name(task) not in done]
    yield from (done[_name(task)] for task in tasks if _name(task) in done)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=quiet_logs) as pool:
        sizes = {task[0]: task[4] // 2 for task in wanted}
        rates = dict(zip(sizes, pool.map(throughput, sizes, sizes.values()), strict=True))
        running = [pool.submit(measure, task, rates[task[0]]) for task in wanted]
        with results.open("a", encoding="utf-8") as file:
            for future in as_completed(running):
                ended = future.result()
                file.write(json.dumps(ended.to_json()) + "\n")
                file.flush()
                yield ended


def read(results: Path) -> list[Measured]:
    """Return the runs of a results file; none if there is no file."""
    if not results.exists():
        return []
    lines = results.read_text(encoding="utf-8").splitlines()
    return [Measured.from_json(json.loads(line)) for line in lines]


def _name(task: Task) -> tuple[str, float, str, int]:
    case, load, policy, seed, _ = task
    return case.name, load, Path(policy).name, seed


def _tasks(policies: Iterable[str], *, is_coarse: bool) -> list[Task]:
    seeds = range(1, 1 + (_COARSE_SEEDS if is_coarse else _SEEDS))
    requests = _COARSE_REQUESTS if is_coarse else _REQUESTS
    return [
        (case, load, policy, seed, requests)
        for seed in seeds
        for case in cases(is_coarse=is_coarse)
        for load in loads(case, is_coarse=is_coarse)
        for policy in policies
    ]


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the study and print its tables."""
    parser = argparse.ArgumentParser(prog="python -m tools.study", description=__doc__)
    parser.add_argument("--coarse", action="store_true", help="fewer cases, loads and seeds")
    parser.add_argument("--results", type=Path, help="by default build/study-coarse.jsonl or so")
    parser.add_argument("--policy", action="append", default=[], help="one more; repeatable")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument(
        "--show", action="store_true", help="run nothing: show what the results file has"
    )
    parser.add_argument(
        "--up-to", type=float, default=0.9, help="highest load compared with the oracle"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    console = console or Console(width=300 if given.markdown else 160)
    shape = box.MARKDOWN if given.markdown else box.SIMPLE_HEAD

    def _print(measured: Sequence[Measured]) -> None:
        for table in tables(measured, given.up_to, shape):
            console.print(table)

    kind = "coarse" if given.coarse else "full"
    results = given.results or REPOSITORY / "build" / f"study-{kind}.jsonl"
    known = read(results)
    if given.show:
        if not known:
            parser.error(f"{results} has no runs; without --show they are made")
        _print(known)
        return 0
    results.parent.mkdir(parents=True, exist_ok=True)
    policies = [*POLICIES, *given.policy]
    tasks = [
        task for task in _tasks(policies, is_coarse=given.coarse) if given.case in task[0].name
    ]
    measured: list[Measured] = []
    for each in study(tasks, results, known, given.jobs):
        measured.append(each)
        if len(measured) % 20 == 0 or len(measured) == len(tasks):
            console.print(f"{len(measured)} of {len(tasks)} runs")
    _print(measured)
    return 0

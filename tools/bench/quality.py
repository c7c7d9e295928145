"""The quality table: policies by scenarios, as ratios to round robin and to an oracle.

``.venv/bin/python -m tools.bench.quality [--scenario NAME] [--policy NAME] [--trace NAME=FILE]``

Each cell is `epp simulate`: the endpoint picker's own classes on a virtual clock. So it measures
decisions, not their cost, and the same commit gives the same table. Scenarios whose trace is not
here are left out, and named.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from epp.lab.results import Cell, Comparison, RatioVerdict, Summary, compare
from epp.lab.scenarios import LabScenario, ScenarioError, load_scenario
from epp.lab.simulation import (
    Contender,
    RunSettings,
    SimulationError,
    quiet_logs,
    run_all,
    summaries,
)
from epp.lab.traffic import TrafficError
from tools import REPOSITORY
from tools.bench import result_file

FOLDER = REPOSITORY / "deploy" / "lab"
BASELINE = "round-robin"
ORACLE = "oracle-holding"
BOUND = "lower-bound"
"""No policy: below it no TTFT can be."""
POLICIES = (BASELINE, "random", "least-request", "reference-weighted", "reference-affinity")
METRICS = ("TTFT p90", "goodput")
_STYLES = {RatioVerdict.BETTER: "green", RatioVerdict.WORSE: "red"}


@dataclass(frozen=True, slots=True)
class Quality:
    """One scenario: all policies compared with round robin, and with the oracle."""

    scenario: str
    to_baseline: Comparison
    to_oracle: Comparison


def missing_trace(scenario: LabScenario) -> Path | None:
    """Return the path of the scenario's trace if it is not there; None otherwise."""
    trace = scenario.traffic.get("trace")
    path = None if trace is None else scenario.folder / str(trace)
    return None if path is None or path.exists() else path


def measure(
    scenario: LabScenario, policies: Sequence[str], seeds: Sequence[int], jobs: int
) -> Quality:
    """Run a scenario with all policies, round robin, the oracle and the lower bound.

    Args:
        scenario: The scenario.
        policies: Names of further policies.
        seeds: Seeds of the traffic.
        jobs: Number of processes.

    Raises:
        SimulationError: A policy is not known.
        TrafficError: Its traffic is invalid.
    """
    names = dict.fromkeys((BASELINE, *policies, ORACLE, BOUND))
    runs = run_all(
        RunSettings(scenario=scenario),
        [Contender.of_policy(name) for name in names],
        seeds,
        jobs=jobs,
        finished=lambda _: None,
    )
    found: Mapping[str, Mapping[int, Summary]] = summaries(runs)
    return Quality(
        scenario.name,
        compare(found, BASELINE, oracles=[ORACLE, BOUND]),
        compare(found, ORACLE, oracles=[ORACLE, BOUND]),
    )


def cells(measured: Sequence[Quality]) -> dict[str, result_file.Cell]:
    """Return the cells for `make bench-compare`: a ratio to round robin for each seed."""
    found = {}
    for quality in measured:
        comparison = quality.to_baseline
        base = comparison.summaries[BASELINE]
        for metric in comparison.metrics:
            if metric.name not in METRICS:
                continue
            for policy, runs in comparison.summaries.items():
                pairs = [
                    (metric.value(run), metric.value(base[seed])) for seed, run in runs.items()
                ]
                ratios = [value / its for value, its in pairs if value and its]
                if policy != BASELINE and len(ratios) == len(pairs):
                    found[f"quality: {quality.scenario}: {policy}: {metric.name} / {BASELINE}"] = (
                        result_file.Cell(values=ratios, higher_is_better=metric.higher_is_better)
                    )
    return found


def table(measured: Sequence[Quality], seeds: int) -> Table:
    """Return a row for each scenario and policy."""
    shown = Table(
        title=f"Ratios, {seeds} seeds, 95% intervals; in colour: beyond the noise",
        title_justify="left",
    )
    shown.add_column("scenario")
    shown.add_column("policy", overflow="fold")
    for metric in METRICS:
        for other in ("round robin", "oracle"):
            shown.add_column(f"{metric} / {other}", justify="right")
    shown.add_column("within the objectives", justify="right")
    for quality in measured:
        policies = list(quality.to_baseline.cells)
        for policy in policies:
            shown.add_row(
                quality.scenario if policy == policies[0] else "",
                policy,
                *(
                    _text(_cell(comparison, policy, metric))
                    for metric in METRICS
                    for comparison in (quality.to_baseline, quality.to_oracle)
                ),
                _share(quality.to_baseline.summaries[policy].values()),
                end_section=policy == policies[-1],
            )
    return shown


def _cell(comparison: Comparison, policy: str, metric: str) -> Cell | None:
    known = [each.name for each in comparison.metrics]
    return comparison.cell(policy, metric) if metric in known else None


def _share(runs: Iterable[Summary]) -> str:
    """Return the middle share of requests that met the objectives; "" without objectives."""
    shares = [run.goodput.share for run in runs if run.goodput is not None]
    return f"{median(shares):.1%}" if shares else ""


def _text(cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    if cell.verdict is None:
        return Text("1", style="dim")
    if cell.ratio is None:
        return Text("-")
    text = f"{cell.ratio.mean:.3g}"
    if cell.ratio.low is not None and cell.ratio.high is not None:
        text += f" ({cell.ratio.low:.3g} to {cell.ratio.high:.3g})"
    style = _STYLES.get(cell.verdict)
    return Text(text, style=f"bold {style}" if style else "")


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the program; return 2 if a scenario or a policy is not known."""
    known = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
    parser = argparse.ArgumentParser(prog="python -m tools.bench.quality", description=__doc__)
    parser.add_argument("--scenario", action="append", choices=known, help="repeatable")
    parser.add_argument("--policy", action="append", help="repeatable")
    parser.add_argument("--trace", action="append", default=[], metavar="SCENARIO=FILE")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    console = console or Console(width=160)
    traces = {name: Path(file) for name, _, file in (each.partition("=") for each in given.trace)}
    if unknown := traces.keys() - known:
        parser.error(f"--trace: no scenario {', '.join(sorted(unknown))}: give SCENARIO=FILE")
    measured = []
    for name in given.scenario or known:
        try:
            scenario = load_scenario(known[name]).changed(trace=traces.get(name))
            if (lost := missing_trace(scenario)) is not None:
                note = f"left out: {name}: there is no {lost}; give --trace {name}=FILE"
                console.print(Text(note, style="yellow"))
                continue
            seeds = range(1, given.seeds + 1)
            measured.append(measure(scenario, given.policy or POLICIES, seeds, given.jobs))
        except (ScenarioError, SimulationError, TrafficError) as error:
            console.print(Text(f"{name}: {error}", style="red"))
            return 2
        console.print(f"{name}: done")
    console.print(table(measured, given.seeds))
    path = result_file.write(
        cells(measured), None, result_file.this_machine(), list(arguments or sys.argv[1:])
    )
    console.print(f"for `make bench-compare`: {path}")
    return 0


if __name__ == "__main__":
    quiet_logs()
    sys.exit(main())

"""The sweep of ``epp simulate``: all policies at several rates."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from epp.cli.running import write_whole
from epp.lab.results import Sweep, compare, sweep_table
from epp.lab.results.page import sweep_page
from epp.lab.scenarios import LabScenario
from epp.lab.simulation import ORACLES, Contender, FinishedRun, RunSettings, run_all, summaries


def sweep(
    settings: RunSettings,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    rates: Sequence[float],
    *,
    jobs: int,
    notes: Console,
) -> Sweep:
    """Run all contenders at all rates.

    Args:
        settings: The scenario, with its own rate.
        contenders: Policies to compare; the first is the baseline.
        seeds: Seeds of the traffic.
        rates: Arrivals per second, in ascending order.
        jobs: Number of processes.
        notes: Console for a line about each run.

    Raises:
        ConfigError: A configuration is invalid.
        ScenarioError: The scenario cannot have another rate.
        TrafficError: The traffic is invalid.
        VirtualLoopError: A plugin needs a socket.
    """
    comparisons = {}
    total, done = len(rates) * len(contenders) * len(seeds), 0
    for rate in rates:

        def finished(run: FinishedRun, rate: float = rate) -> None:
            nonlocal done
            done += 1
            notes.print(
                f"{done}/{total}  {run.contender.name}, {rate:g}/s, seed {run.seed}:"
                f" {pace_text(run)}"
            )

        at_rate = replace(settings, scenario=settings.scenario.changed(rate=rate))
        runs = run_all(at_rate, contenders, seeds, jobs=jobs, finished=finished)
        comparisons[rate] = compare(summaries(runs), oracles=ORACLES)
    return Sweep(comparisons)


def show_sweep(swept: Sweep, scenario: LabScenario, *, html: Path | None, as_json: bool) -> None:
    """Print a sweep, and write its page."""
    if html is not None:
        page = sweep_page(
            swept,
            scenario.slo,
            title=f"Simulation of {scenario.name} by rate",
            settings={**scenario_settings(scenario), "seeds": len(swept.first.seeds)},
        )
        write_whole(html, page)
    if as_json:
        print(json.dumps(swept.to_dict(), indent=2))  # noqa: T201 - the command's output
    else:
        Console(highlight=False).print(sweep_table(swept))


def scenario_settings(scenario: LabScenario) -> dict[str, Any]:
    """Return the description of a scenario for a page."""
    return {
        "what it shows": scenario.description.strip(),
        "source": scenario.source.strip(),
        "workers": len(scenario.engines),
        "warm-up": f"{scenario.warm_up_seconds:g} s",
    }


def pace_text(each: FinishedRun) -> str:
    """Return the size and the speed of a run in words."""
    factor = each.virtual_seconds / each.cpu_seconds if each.cpu_seconds else 0.0
    return (
        f"{each.summary.sent} requests, {each.virtual_seconds:.0f} s in"
        f" {each.cpu_seconds:.1f} s of CPU time ({factor:.0f} times real time)"
    )

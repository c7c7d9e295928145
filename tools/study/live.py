"""The order of policies on a live fleet, through a real Envoy, beside the simulated one.

``.venv/bin/python -m tools.study.live [--results FILE] [--plot FILE] [--scenario FILE]``

Scenarios of `deploy/lab`, halved and slowed so that this machine can bear them (`scenarios/`), run
live with `epp fleet`, `epp serve`, Envoy and `epp load`'s generator, all policies at once, and
simulated, with the same traffic and seeds. A finished seed is in the results file: the same command
continues an interrupted study, and repeats seeds in which the machine was the bottleneck.

Exit status: 0 if all runs are valid and the order of the policies is the same both ways, else 1.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from epp.lab.scenarios import ScenarioError
from epp.lab.simulation import Contender, quiet_logs
from tools import REPOSITORY
from tools.bench.agreement import by_scenario, swapped, table
from tools.bench.agreement_runs import progress_line, rounds
from tools.bench.live_runs import REFERENCE_AFFINITY, REFERENCE_WEIGHTED, ROUND_ROBIN, Case
from tools.study.live_plot import plot
from tools.study.live_results import ResultsError, Run, agreements, append, ratio_table, read

FOLDER = Path(__file__).parent / "scenarios"
SCENARIOS = ("heterogeneous-gpus", "straggler", "prefix-37-percent", "toolagent")
POLICIES = (
    REFERENCE_WEIGHTED,
    REFERENCE_AFFINITY,
    Contender("predicted-time", REPOSITORY / "deploy" / "config" / "predicted-time.yaml"),
    ROUND_ROBIN,
)
SIMULATED_RUNS = 3
"""Simulated runs per live run, with requests a few milliseconds later; their range is the noise."""
_SEEDS = 3


async def study(
    cases: Sequence[Case], seeds: Sequence[int], results: Path, console: Console
) -> list[Run]:
    """Run the cases and seeds without valid results; return all runs by case and policy, in order.

    Raises:
        ResultsError: The file is damaged.
    """
    for seed in seeds:
        for case in cases:
            done = read(results)
            keys = [(case.scenario.name, policy.name, seed) for policy in POLICIES]
            if all(key in done and not done[key].round.live.why_invalid for key in keys):
                continue
            runs = []
            async for policy, measured in rounds(case, POLICIES, seed, SIMULATED_RUNS):
                runs.append(Run(case.scenario.name, policy.name, seed, measured))
                console.print(progress_line(case, policy, seed, measured))
            append(results, runs)
    done = read(results)
    return [
        done[case.scenario.name, policy.name, seed]
        for case in cases
        for policy in POLICIES
        for seed in seeds
    ]


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the live study, print its tables and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.study.live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", type=Path, action="append", help="by default all four")
    parser.add_argument("--seeds", type=int, default=_SEEDS, help="number of seeds, from 1 on")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "build" / "study-live.jsonl")
    parser.add_argument("--plot", type=Path, help="write an SVG of the p90 ratios")
    given = parser.parse_args(arguments)
    if given.seeds < 1:
        parser.error(f"--seeds: {given.seeds} is not above 0")
    console = console or Console(width=170)
    given.results.parent.mkdir(parents=True, exist_ok=True)
    paths = given.scenario or [FOLDER / f"{name}.yaml" for name in SCENARIOS]
    quiet_logs()
    try:
        cases = [Case.of_file(path) for path in paths]
        runs = asyncio.run(study(cases, range(1, given.seeds + 1), given.results, console))
    except (ScenarioError, ResultsError) as error:
        parser.error(str(error))
    measured = agreements(runs)
    console.print(ratio_table(measured), table(measured))
    if given.plot is not None:
        given.plot.write_text(plot(measured), encoding="utf-8")
    is_valid = all(len(each.valid) == len(each.rounds) for each in measured)
    is_same = not any(swapped(policies) for policies in by_scenario(measured).values())
    return 0 if is_valid and is_same else 1


if __name__ == "__main__":
    # SIGTERM ends the processes that were started, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())

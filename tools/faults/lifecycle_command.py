"""Runs the scenarios of lifecycle.py and prints a table of request outcomes.

``python -m tools.faults.lifecycle_command [--requests N] [--mode NAME] [--only SCENARIO]``. With
``--health-check`` Envoy checks the health of the endpoint pickers. The scenarios of frozen.py run
only with that option, or if they are named.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import uvloop
from rich.console import Console
from rich.table import Table

from tools.faults import frozen, workers
from tools.faults.lifecycle import SCENARIOS
from tools.faults.processes import SETTINGS, Setting
from tools.faults.traffic import Verdict
from tools.faults.trial import Pace, Scenario, TrialOutcome


async def run(
    console: Console, scenarios: Sequence[Scenario], settings: Sequence[Setting], pace: Pace
) -> list[TrialOutcome]:
    """Run every scenario in every setting."""
    outcomes = []
    for scenario in scenarios:
        for setting in settings:
            outcome = await scenario(setting, pace)
            outcomes.append(outcome)
            result = "; ".join(outcome.broken) or "all kept"
            console.print(f"{outcome.scenario}, {outcome.setting}: {result}", highlight=False)
            console.print_json(json.dumps(outcome.facts))
    return outcomes


def table(outcomes: Sequence[TrialOutcome]) -> Table:
    """Return the outcomes as a table."""
    made = Table("scenario", "mode", *(each.value for each in Verdict), "figures", "broken")
    for each in outcomes:
        made.add_row(
            each.scenario,
            each.setting,
            *(str(each.verdicts[verdict]) for verdict in Verdict),
            ", ".join(f"{name} {_short(value)}" for name, value in each.facts.items()),
            str(len(each.broken)),
        )
    return made


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def command() -> int:
    """Run the command line; return the exit status: 1 if a promise was broken."""
    known = (*SCENARIOS, *frozen.SCENARIOS, *workers.SCENARIOS)
    parser = argparse.ArgumentParser(prog="python -m tools.faults.lifecycle_command")
    parser.add_argument(
        "--requests", type=int, default=Pace().requests, help="number of requests in each run"
    )
    parser.add_argument("--rate", type=float, default=Pace().rate, help="requests a second")
    parser.add_argument("--mode", action="append", choices=[each.name for each in SETTINGS])
    parser.add_argument(
        "--health-check", action="store_true", help="have Envoy check the pickers' health"
    )
    parser.add_argument("--only", action="append", choices=[each.__name__ for each in known])
    given = parser.parse_args()
    settings = [each for each in SETTINGS if not given.mode or each.name in given.mode]
    settings = [replace(each, health_check=given.health_check) for each in settings]
    scenarios: Sequence[Scenario] = (
        known if given.health_check else (*SCENARIOS, *workers.SCENARIOS)
    )
    if given.only:
        scenarios = [each for each in known if each.__name__ in given.only]
    pace = replace(Pace(), requests=given.requests, rate=given.rate)
    console = Console(width=200)
    outcomes = uvloop.run(run(console, scenarios, settings, pace))
    console.print(table(outcomes))
    return int(any(each.broken for each in outcomes))


if __name__ == "__main__":
    sys.exit(command())

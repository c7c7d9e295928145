"""Fairness, priority and cost of flow control through Envoy.

``make flow`` or ``.venv/bin/python -m tools.flow [--only NAME] [--seconds N]``. Each run has a
gateway of its own.
"""

import argparse

import structlog
import uvloop

from tools.flow.real import RUNS

DEFAULT_SECONDS = 60.0


async def run_all(names: list[str], seconds: float) -> None:
    """Run the scenarios one after the other, and print their results."""
    for name in names:
        figures = await RUNS[name](seconds)
        print(f"## {figures.title}, {seconds:g} s\n\n{figures.text}\n", flush=True)


def command() -> int:
    """Run the command line and print the results; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.flow", description=__doc__)
    parser.add_argument("--only", choices=RUNS, action="append", metavar="NAME")
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_SECONDS, help="duration of each run"
    )
    given = parser.parse_args()
    if not given.seconds > 0:
        parser.error(f"--seconds {given.seconds:g}: give more than 0")
    only_errors = structlog.make_filtering_bound_logger("error")
    structlog.configure(wrapper_class=only_errors)
    uvloop.run(run_all(given.only or list(RUNS), given.seconds))
    return 0

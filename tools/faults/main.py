"""Breaks clients and model servers on purpose, thousands of times, in every Envoy mode.

``make faults`` or ``.venv/bin/python -m tools.faults [--only NAME] [--mode MODE]
[--requests N]``. Each run has a gateway of its own: Envoy, and the EPP as a process. Its memory is
read after a warm-up of the same kind, and again after the run. Other runs are of another kind:

* ``lifecycle`` (:mod:`tools.faults.lifecycle`);
* ``reliability`` (:mod:`tools.faults.reliability`) takes ``--rate``, ``--setup`` and ``--fault``;
* ``calm``: a healthy fleet that is loaded to 90 % for ``--minutes``, to find false ejections;
* ``attacks`` (:mod:`tools.attacks.main`) takes ``--seconds``, ``--attack``, ``--one-by-one`` and
  ``--report-only``.
"""

import argparse
import time
from dataclasses import dataclass, replace

import uvloop
from rich.console import Console

from epp.lab.envoy import Mode
from tools.attacks.catalogue import ATTACKS
from tools.attacks.main import plans
from tools.attacks.main import run_all as attack
from tools.faults import lifecycle_command, reliability
from tools.faults.gateway import processes_of
from tools.faults.lifecycle import SCENARIOS
from tools.faults.outcome import RunOutcome
from tools.faults.processes import SETTINGS
from tools.faults.scenarios import FAULT_RUNS, FaultRun
from tools.faults.trial import Pace
from tools.soak.soak import resident_mib


@dataclass(frozen=True, slots=True)
class Row:
    """One run in one mode."""

    name: str
    mode: Mode
    outcome: RunOutcome
    seconds: float
    mib: tuple[float, float]
    """Memory of the EPP after the warm-up and at the end."""

    def line(self) -> str:
        """The row, for a table in Markdown."""
        broken, (before, after) = self.outcome.broken.total(), self.mib
        cells = (
            self.name,
            self.mode.value,
            f"{self.outcome.right}",
            f"{broken}",
            f"{len(self.outcome.wrong)}",
            f"{before:.0f} → {after:.0f} MiB",
            f"{self.seconds:.0f} s",
        )
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| run | mode | answered right | broken on purpose | wrong | memory of the EPP | took |",
    "|---|---|---|---|---|---|---|",
)


async def run(name: str, fault_run: FaultRun, mode: Mode, requests: int) -> Row:
    """Run one scenario in one mode."""
    began = time.perf_counter()
    async with processes_of(mode) as gateway:
        warm_up = await fault_run.scenario(gateway, fault_run.warm_up_requests(requests))
        wrong = warm_up.wrong + await gateway.wrongs()
        before = resident_mib(gateway.pid)
        outcome = await fault_run.scenario(gateway, requests)
        outcome.wrong += wrong + await gateway.wrongs()
        mib = before, resident_mib(gateway.pid)
        outcome.check(
            mib[1] - mib[0] <= fault_run.growth_mib,
            f"memory grew from {mib[0]:.1f} to {mib[1]:.1f} MiB, by more than"
            f" {fault_run.growth_mib:g}",
        )
    return Row(name, mode, outcome, time.perf_counter() - began, mib)


async def run_all(names: list[str], modes: list[Mode], requests: int | None) -> list[Row]:
    """Run all scenarios in all modes, one after the other, and print each result."""
    rows = []
    for name in names:
        fault_run = FAULT_RUNS[name]
        for mode in modes:
            row = await run(name, fault_run, mode, requests or fault_run.requests)
            rows.append(row)
            print(f"{name}, {mode.value}: {row.seconds:.0f} s", flush=True)
            for line in row.outcome.lines():
                print(f"    {line}", flush=True)
    return rows


LIFECYCLE_RUN, RELIABILITY_RUN, ATTACK_RUN = "lifecycle", "reliability", "attacks"
CALM_RUN = "calm"


def command() -> int:
    """Run the command line and print the results; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    choices = [*FAULT_RUNS, LIFECYCLE_RUN, RELIABILITY_RUN, CALM_RUN, ATTACK_RUN]
    parser.add_argument("--only", choices=choices, action="append", metavar="NAME")
    modes = [mode.value for mode in Mode]
    parser.add_argument("--mode", choices=modes, action="append", metavar="MODE")
    parser.add_argument("--requests", type=int, help="number of requests in each run")
    scores = parser.add_argument_group("reliability")
    scores.add_argument("--rate", type=float, default=reliability.RATE, help="requests a second")
    setups = [setup.value for setup in reliability.Setup]
    scores.add_argument("--setup", choices=setups, action="append", metavar="NAME")
    faults = [fault.name for fault in reliability.FAULTS]
    scores.add_argument("--fault", choices=faults, action="append", metavar="NAME")
    scores.add_argument("--minutes", type=float, default=30.0, help="duration of each calm run")
    attacks = parser.add_argument_group("attacks")
    attacks.add_argument("--seconds", type=float, default=120.0, help="duration of each attack run")
    attacks.add_argument("--attack", choices=ATTACKS, action="append", metavar="NAME")
    attacks.add_argument(
        "--one-by-one", action="store_true", help="run the attacks one after the other"
    )
    attacks.add_argument(
        "--report-only", action="store_true", help="exit with status 0 even if targets are missed"
    )
    given = parser.parse_args()
    chosen = [Mode(mode) for mode in given.mode or modes]
    names = given.only or choices
    wrong = 0
    if fault_runs := [name for name in names if name in FAULT_RUNS]:
        rows = uvloop.run(run_all(fault_runs, chosen, given.requests))
        print("\n".join((*HEAD, *(row.line() for row in rows))))
        wrong = sum(len(row.outcome.wrong) for row in rows)
        print("faults:", f"{wrong} WRONG" if wrong else "nothing wrong, nothing left behind")
    if LIFECYCLE_RUN in names:
        settings = [setting for setting in SETTINGS if setting.mode in chosen]
        pace = replace(Pace(), requests=given.requests or Pace().requests)
        console = Console(width=200)
        outcomes = uvloop.run(lifecycle_command.run(console, SCENARIOS, settings, pace))
        console.print(lifecycle_command.table(outcomes))
        wrong += sum(len(each.broken) for each in outcomes)
    if RELIABILITY_RUN in names:
        card = uvloop.run(
            reliability.run_all(
                [each for each in reliability.FAULTS if each.name in (given.fault or faults)],
                chosen,
                [reliability.Setup(each) for each in given.setup or setups],
                given.rate,
            )
        )
        Console(width=200).print(reliability.table(card))
        wrong += sum(each.misses_aim for each in card)
    if CALM_RUN in names:
        for mode in chosen:
            found = uvloop.run(reliability.calm(mode, given.minutes))
            print(f"calm, {mode.value}: {found}")
            wrong += found.ejections > 0
    if ATTACK_RUN in names:
        made = plans(
            chosen, given.attack or list(ATTACKS), given.seconds, one_by_one=given.one_by_one
        )
        missed = uvloop.run(attack(made))
        print("attacks:", f"{missed} aims MISSED" if missed else "every aim met")
        wrong += 0 if given.report_only else missed
    return 1 if wrong else 0

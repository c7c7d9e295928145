"""How fast a policy learns: when does the share of requests of a slow server fit?

After a server slows down, after it recovers, and after the cold start of a fleet in which it is
slow from the beginning: nothing is cached, and nothing known of any server.

``.venv/bin/python -m tools.study.learning [--policy NAME-OR-FILE] [--engine B] [--seeds 5]``
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console

from epp.lab.results import Record
from epp.lab.simulation import Contender, RunSettings, quiet_logs, run
from tools.study.cases import WORKERS, Case
from tools.study.main import CONFIGS, throughput

_REQUESTS = 3000
_WINDOW = 40
"""Requests over which a share is measured."""
_SLOW_SERVER = "worker-0"
_WHEN = ("after it slows", "after it recovers", "after a cold start with it slow")


def seconds_until_it_fits(
    records: Sequence[Record], began: float, ended: float, before: float | None = None
) -> float | None:
    """Return the seconds from `began` until the slow server's share fits; None if it never does.

    That is when the share of the next requests, and of those after them, is nearer to the share at
    which it settles than to that before `began`. Before and settled are halves of equal phases.

    Args:
        records: Requests in the order of their beginning.
        began: When the server's speed changed.
        ended: When it changes again, or the run ends.
        before: Its share before `began`; by default as measured.
    """
    half = (ended - began) / 2
    if before is None:
        before = _share(records, began - half, began)
    settled = _share(records, ended - half, ended)
    if before is None or settled is None:
        return None
    phase = [each for each in records if began <= each.started_at < ended]
    fits = [_is_nearer(phase[at : at + _WINDOW], settled, before) for at in range(len(phase))]
    for at, each in enumerate(phase[: -2 * _WINDOW]):
        if fits[at] and fits[at + _WINDOW]:
            return each.started_at - began
    return None


def _learned(records: Sequence[Record], fleet: str, length: float) -> Mapping[str, float | None]:
    """Return the seconds until the share fits, for each change in a run of `length` seconds."""
    slows, recovers, starts = _WHEN
    if fleet == "one slow":
        return {starts: seconds_until_it_fits(records, 0.0, length, before=1 / WORKERS)}
    third = length / 3
    return {
        when: seconds_until_it_fits(records, began, began + third)
        for when, began in ((slows, third), (recovers, 2 * third))
    }


def _share(records: Sequence[Record], since: float, until: float) -> float | None:
    sent = [each.worker == _SLOW_SERVER for each in records if since <= each.started_at < until]
    return sum(sent) / len(sent) if sent else None


def _is_nearer(window: Sequence[Record], share: float, other: float) -> bool:
    found = sum(each.worker == _SLOW_SERVER for each in window) / len(window)
    return abs(found - share) < abs(found - other)


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Print the medians over the seeds."""
    parser = argparse.ArgumentParser(prog="python -m tools.study.learning", description=__doc__)
    parser.add_argument("--policy", default=str(CONFIGS / "predicted-time-holding.yaml"))
    parser.add_argument("--engine", choices=("A", "B"), default="B")
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--requests", type=int, default=_REQUESTS)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args(arguments)
    path = Path(given.policy)
    contender = Contender.of_config(path) if path.suffix else Contender.of_policy(given.policy)
    found: dict[str, list[float]] = {when: [] for when in _WHEN}
    for fleet in ("slow mid-run", "one slow"):
        case = Case(given.engine, fleet, "prefixes")
        rate = given.load * throughput(case, given.requests // 4)
        settings = RunSettings(scenario=case.scenario(rate, given.requests))
        for seed in range(1, given.seeds + 1):
            records = run(settings, contender, seed).records
            in_order = sorted(records, key=lambda each: each.started_at)
            for when, learned in _learned(in_order, fleet, given.requests / rate).items():
                if learned is not None:
                    found[when].append(learned)
    console = console or Console()
    for when, seconds in found.items():
        text = f"{median(seconds):.1f} s" if seconds else "never"
        console.print(
            f"{contender.name}, {given.engine}: the share of one of {WORKERS} servers fits"
            f" {text} {when} ({len(seconds)} of {given.seeds} seeds)"
        )
    return 0


if __name__ == "__main__":
    quiet_logs()
    main()

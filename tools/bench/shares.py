"""Cost of observability per request: the whole path, and the same without one feature at a time.

Features are turned off by their settings. Metrics have no such setting: here they are replaced by
ones that do nothing. So their figure is the cost of their code, without the calls to it and without
the clock readings around each plugin call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final

from rich.table import Table

from epp.app import App
from epp.compiled import IS_COMPILED
from epp.lab.envoy import Mode
from tools.bench import tables
from tools.bench.gateways import Case, Reads
from tools.bench.in_process import in_turns, new_app, silenced, warmed, without_log_line

TURNS: Final = 3
"""So many times the readings of other measurements: the differences are small."""
CASES: Final = (Case(Mode.ADAPTIVE), Case(Mode.FULL_DUPLEX))


def _without_metrics() -> App:
    # Not at the top: compiled classes have no subclasses here.
    from tools.bench import no_metrics

    with no_metrics.instead():
        return new_app()  # its families make such children later, too


WITHOUT: Final[Mapping[str, Callable[[], App]]] = {
    **({} if IS_COMPILED else {"metrics": _without_metrics}),
    "log line": without_log_line,
}
"""What is left out, and what makes an EPP without it. Compiled metrics cannot be replaced."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The cost of one case."""

    case: Case
    all_us: float
    """CPU of a request with everything: the least of many readings."""
    taken_us: Mapping[str, float]
    """How much less a request takes without one thing, by its name: the median over the turns."""


async def measure(case: Case, reads: Reads, repeats: int) -> Shares:
    """Return the costs for the recorded messages of ``case``."""
    with silenced("info"):
        apps = [make() for make in (new_app, *WITHOUT.values())]
        connections = [await warmed(app, reads) for app in apps]
        readings = await in_turns(case, reads, TURNS * repeats, apps, connections)
    whole, *without = readings
    taken = {name: _difference(whole, each) for name, each in zip(WITHOUT, without, strict=True)}
    return Shares(case, min(whole), taken)


def _difference(whole: Sequence[float], without: Sequence[float]) -> float:
    """Return the median difference of readings of the same turn, which meet the same noise."""
    pairs = zip(whole, without, strict=True)
    return median(more - less for more, less in pairs if inf not in {more, less})


def table(measured: Sequence[Shares]) -> Table:
    """Return a row for each case: its cost, and what each thing takes of it."""
    shown = tables.new_table(
        "What observability takes of a request, in process: µs, share of the whole",
        *("case", "all", *WITHOUT),
    )
    for each in measured:
        shown.add_row(
            tables.named(each.case),
            f"{each.all_us:.1f}",
            *(f"{us:.1f} ({us / each.all_us:.1%})" for us in each.taken_us.values()),
        )
    return shown

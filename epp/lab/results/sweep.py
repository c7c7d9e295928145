"""Policies compared at several rates: the rate at which each stops meeting the objectives.

The knee of a policy is between the last rate at which enough of its requests were within the
objectives and the next one. A rate counts only if all lower ones did, too: a policy that recovers
by chance at a higher rate has not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from epp.lab.results.comparison import Cell, Comparison, ComparisonError
from epp.lab.results.comparison_table import number_text
from epp.lab.results.ratios import RatioVerdict
from epp.lab.results.table import plain_table

KNEE_SHARE = 0.9
"""Share of the requests within the objectives at which a rate counts as served."""
SHOWN = ("TTFT p90", "goodput", "throughput", "hit rate", "busiest worker / mean")
"""Metrics of the table and the page."""
_STYLES = {RatioVerdict.BETTER: "green", RatioVerdict.WORSE: "red"}


@dataclass(frozen=True, slots=True)
class Knee:
    """The two rates of a sweep between which a policy begins to miss the objectives."""

    met: float | None
    """Highest rate that it served with all lower ones; None if it did not serve the lowest."""
    missed: float | None
    """The next rate; None if it served all."""

    def __str__(self) -> str:
        if self.met is None:
            return f"below {self.missed:g}"
        return f"above {self.met:g}" if self.missed is None else f"{self.met:g} to {self.missed:g}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """Comparisons of the same policies with the same seeds, by rate.

    Raises:
        ComparisonError: There is no rate, or policies or seeds differ.
    """

    comparisons: Mapping[float, Comparison]
    """By arrivals a second, in ascending order."""

    def __post_init__(self) -> None:
        if not self.comparisons:
            raise ComparisonError("nothing to compare: there is no rate")
        known = {(tuple(each.cells), each.seeds) for each in self.comparisons.values()}
        if len(known) > 1:
            raise ComparisonError("the rates were run with different policies or seeds")

    @property
    def rates(self) -> Sequence[float]:
        """All rates."""
        return tuple(self.comparisons)

    @property
    def policies(self) -> Sequence[str]:
        """All policies, the baseline first."""
        return tuple(next(iter(self.comparisons.values())).cells)

    @property
    def first(self) -> Comparison:
        """The comparison at the lowest rate."""
        return next(iter(self.comparisons.values()))

    def cell(self, rate: float, policy: str, metric: str) -> Cell | None:
        """Return a metric of a policy at a rate; None if no run has a value."""
        comparison = self.comparisons[rate]
        known = [each.name for each in comparison.metrics]
        return comparison.cell(policy, metric) if metric in known else None

    def share(self, rate: float, policy: str) -> float | None:
        """Return the median share of requests within the objectives; None without objectives."""
        runs = self.comparisons[rate].summaries[policy].values()
        shares = [run.goodput.share for run in runs if run.goodput is not None]
        return median(shares) if shares else None

    def knee(self, policy: str) -> Knee | None:
        """Return the knee of a policy; None without objectives."""
        met: float | None = None
        for rate in self.rates:
            share = self.share(rate, policy)
            if share is None:
                return None
            if share < KNEE_SHARE:
                return Knee(met, rate)
            met = rate
        return Knee(met, None)

    def to_dict(self) -> dict[str, Any]:
        """Return the sweep as JSON values."""
        knees = {policy: self.knee(policy) for policy in self.policies}
        return {
            "knee_share": KNEE_SHARE,
            "knees": {
                policy: None if knee is None else {"met": knee.met, "missed": knee.missed}
                for policy, knee in knees.items()
            },
            "rates": [
                {"requests_per_second": rate, "comparison": comparison.to_dict()}
                for rate, comparison in self.comparisons.items()
            ],
        }


def sweep_table(sweep: Sweep) -> RenderableType:
    """Return the knees, and for each metric a row for each rate and a column for each policy."""
    baseline, seeds = sweep.first.baseline, len(sweep.first.seeds)
    table = plain_table(
        f"Medians of {seeds} {'seed' if seeds == 1 else 'seeds'} by arrivals a second;"
        f" in colour: better or worse than {baseline} beyond the noise"
    )
    table.add_column("")
    table.add_column("rate", justify="right")
    for policy in sweep.policies:
        table.add_column(Text(policy), justify="right", overflow="fold")
    for name, rows in _rows(sweep):
        for rate, cells in zip(sweep.rates, rows, strict=True):
            is_first, is_last = rate == sweep.rates[0], rate == sweep.rates[-1]
            label = name if is_first else ""
            table.add_row(label, f"{rate:g}/s", *cells, end_section=is_last)
    knees = [(policy, sweep.knee(policy)) for policy in sweep.policies]
    lines = [f"{policy}: {knee}" for policy, knee in knees if knee is not None]
    if not lines:
        return table
    head = f"knee, the rate at which fewer than {KNEE_SHARE:.0%} are within the objectives:"
    return Group(table, Text("\n  ".join((head, *lines))))


def _rows(sweep: Sweep) -> list[tuple[str, list[list[Text]]]]:
    """Return the name of each metric, and a list of cells by policy for each rate."""
    units = {each.name: each.unit for each in sweep.first.metrics}
    found = []
    for metric in SHOWN:
        if metric not in units:
            continue
        name = f"{metric}, {units[metric]}" if units[metric] else metric
        rows = [
            [_text(sweep.cell(rate, policy, metric)) for policy in sweep.policies]
            for rate in sweep.rates
        ]
        found.append((name, rows))
    if sweep.share(sweep.rates[0], sweep.policies[0]) is not None:
        shares = [
            [Text(_percent(sweep.share(rate, policy))) for policy in sweep.policies]
            for rate in sweep.rates
        ]
        found.append(("within the objectives", shares))
    return found


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _text(cell: Cell | None) -> Text:
    if cell is None:
        return Text("-")
    style = "" if cell.verdict is None else _STYLES.get(cell.verdict, "")
    return Text(number_text(cell.median), style=style)

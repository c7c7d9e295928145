"""The contents of a dashboard, independent of Grafana's format."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

WIDTH: Final = 24
"""Columns of Grafana's grid."""


class Kind(Enum):
    """How a panel draws its values; the values are Grafana's names."""

    LINES = "timeseries"
    NUMBER = "stat"
    STATES = "state-timeline"
    HEATMAP = "heatmap"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A value from which on the colour changes."""

    value: float
    color: str = "red"


@dataclass(frozen=True, slots=True)
class Query:
    """A query in PromQL, with Grafana's variables."""

    expr: str
    legend: str = ""
    """Legend, with ``{{label}}`` for the value of a label."""


@dataclass(frozen=True, slots=True)
class DrillDown:
    """The dashboard to which a click on a series leads."""

    dashboard: str
    """Name of the dashboard."""
    variable: str
    """Variable of that dashboard that gets the value of the label."""
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel of a dashboard."""

    title: str
    description: str
    """What the values mean, and what to do if they are bad, in sentences."""
    queries: Sequence[Query]
    unit: str
    """Grafana's name of the unit, such as ``s`` or ``percentunit``."""
    kind: Kind = Kind.LINES
    thresholds: Sequence[Threshold] = ()
    low_is_bad: bool = False
    """Whether values below the first threshold are the bad ones."""
    minimum: float | None = 0
    maximum: float | None = None
    is_stacked: bool = False
    states: Sequence[tuple[float, str, str]] = ()
    """Value, its text, its colour."""
    width: int = 8
    height: int = 8
    drill_down: DrillDown | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the dashboard: values of a label."""

    name: str
    label: str
    query: str
    all_value: str = ""
    """Regular expression for All; empty for a list of all values that were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A page of panels."""

    name: str
    """Name of the file, and the end of the uid."""
    title: str
    description: str
    """The question that it answers."""
    variables: Sequence[Variable]
    rows: Sequence[Row]


def number(
    title: str,
    description: str,
    expr: str,
    unit: str,
    *,
    thresholds: Sequence[Threshold] = (),
    low_is_bad: bool = False,
) -> Panel:
    """Make a small panel with one number."""
    return Panel(
        title=title,
        description=description,
        queries=(Query(expr),),
        unit=unit,
        kind=Kind.NUMBER,
        thresholds=thresholds,
        low_is_bad=low_is_bad,
        width=4,
        height=4,
    )

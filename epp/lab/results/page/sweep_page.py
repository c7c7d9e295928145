"""The page of a sweep: policies by rate, and where each has its knee."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from epp.lab.results.page.charts import Line, Points, line_chart
from epp.lab.results.page.document import document
from epp.lab.results.page.markup import Markup, element, name_text
from epp.lab.results.page.numbers import figure, percent
from epp.lab.results.page.run_page import definitions
from epp.lab.results.page.tables import section, table
from epp.lab.results.slo import Slo
from epp.lab.results.sweep import KNEE_SHARE, SHOWN, Sweep

_STYLES = 8
_TTFT = "TTFT p90"
_TOP = 4.0
"""The TTFT chart ends at this multiple of the objective: beyond the knee, TTFT only measures the
length of the run."""
_TERMS = {
    "knee": f"between the last rate at which at least {KNEE_SHARE:.0%} of the requests are within "
    "the objectives, as at all lower rates, and the next rate",
    "arrivals": "requests a second; of conversations, the first request of each",
    "median": "each value is the median of the seeds; each seed is the same traffic for every "
    "policy",
}


def sweep_page(
    sweep: Sweep, slo: Slo, *, title: str, settings: Mapping[str, Any] | None = None
) -> str:
    """Return the page of a sweep as HTML.

    Args:
        sweep: The comparisons by rate.
        slo: Objectives of a request.
        title: Title of the page.
        settings: Settings of the runs, by name.
    """
    return document(
        title,
        _headline(sweep),
        [],
        [
            section("By rate", _charts(sweep, slo)),
            section("Values", *(_table(sweep, metric) for metric in SHOWN)),
            definitions("What the terms mean", _TERMS),
            definitions("Settings", settings or {}),
        ],
    )


def _headline(sweep: Sweep) -> str:
    knees = {policy: sweep.knee(policy) for policy in sweep.policies}
    texts = [f"{policy} {knee}" for policy, knee in knees.items() if knee is not None]
    if not texts:
        return "The scenario has no objectives, so there is no knee."
    return f"Requests a second at the knee: {'; '.join(texts)}."


def _charts(sweep: Sweep, slo: Slo) -> Markup:
    unit = "arrivals a second"
    names = {each.name: each.unit for each in sweep.first.metrics}
    charts = []
    for metric in SHOWN:
        if metric not in names:
            continue
        lines = [_line(sweep, number, metric) for number in range(len(sweep.policies))]
        title, top = metric, None
        if metric == _TTFT and slo.ttft_seconds is not None:
            limit = slo.ttft_seconds * 1000
            lines = [replace(line, points=clipped(line.points, _TOP * limit)) for line in lines]
            lines.append(Line("objective", [(rate, limit) for rate in sweep.rates], "bad"))
            title, top = f"{metric}, up to {_TOP:g} times its objective", _TOP * limit
        charts.append(line_chart(title, lines, x_unit=unit, y_unit=names[metric], y_max=top))
    shares = [
        Line(policy, [(rate, sweep.share(rate, policy)) for rate in sweep.rates], _style(number))
        for number, policy in enumerate(sweep.policies)
    ]
    charts.insert(
        1,
        line_chart("Within the objectives", shares, x_unit=unit, y_unit="share", y_max=1.0),
    )
    return element("div", *charts, class_="charts")


def clipped(points: Points, top: float) -> Points:
    """Return a curve that ends where it leaves the chart, and begins again where it comes back."""
    kept: list[tuple[float, float | None]] = []
    before: tuple[float, float] | None = None
    for x, y in points:
        if y is not None and before is not None and (before[1] > top) != (y > top):
            share = (top - before[1]) / (y - before[1])
            kept.append((before[0] + share * (x - before[0]), top))
        kept.append((x, None if y is None or y > top else y))
        before = None if y is None else (x, y)
    return kept


def _line(sweep: Sweep, number: int, metric: str) -> Line:
    policy = sweep.policies[number]
    points = []
    for rate in sweep.rates:
        cell = sweep.cell(rate, policy, metric)
        points.append((rate, None if cell is None else cell.median))
    return Line(policy, points, _style(number))


def _style(number: int) -> str:
    return f"s{number % _STYLES}"


def _table(sweep: Sweep, metric: str) -> Markup:
    units = {each.name: each.unit for each in sweep.first.metrics}
    if metric not in units:
        return Markup()
    rows = []
    for policy in sweep.policies:
        cells = [sweep.cell(rate, policy, metric) for rate in sweep.rates]
        texts = [figure(None if cell is None else cell.median) for cell in cells]
        rows.append((name_text(policy), *texts))
    if metric == "goodput":
        rows += [
            (
                element("span", name_text(policy), ", share"),
                *(percent(sweep.share(rate, policy)) for rate in sweep.rates),
            )
            for policy in sweep.policies
        ]
    unit = f", {units[metric]}" if units[metric] else ""
    heading = element("h3", metric, element("span", unit, class_="soft"))
    columns = ("policy", *(f"{rate:g}/s" for rate in sweep.rates))
    return Markup(heading + table(columns, rows))

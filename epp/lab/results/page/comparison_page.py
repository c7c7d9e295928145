"""The page of a comparison: which policy is better, by how much, and with what confidence."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from epp.lab.results.comparison import Cell, Comparison, Metric
from epp.lab.results.page.charts import Line, cdf_points, line_chart
from epp.lab.results.page.document import document
from epp.lab.results.page.headlines import comparison_headline, comparison_remarks
from epp.lab.results.page.markup import Markup, element, joined, name_text
from epp.lab.results.page.numbers import figure
from epp.lab.results.page.run_page import definitions
from epp.lab.results.page.tables import section, table
from epp.lab.results.page.time_series import TimeSeries
from epp.lab.results.ratios import RatioVerdict
from epp.lab.results.record import Record

_STYLES = 8
_WIDEST = 1000
"""A ratio farther than this factor from 1 is drawn at the edge."""
_COLOURED = frozenset({RatioVerdict.BETTER, RatioVerdict.WORSE})
_TERMS = {
    "ratio": "the value divided by that of the baseline with the same seed; the geometric mean",
    "interval": "Student's t on the logarithms of the ratios, paired by seed; it covers the true "
    "ratio in 95 of 100 comparisons",
    "no difference": "the interval contains 1, the difference is within the noise of the seeds; or "
    "it is below 0.5%",
    "no value": "a run has no such value, or it is 0",
    "TTFT": "time to first token",
    "TPOT": "time per output token after the first",
    "busiest worker / mean": "tokens to compute; 1 is even",
}


def comparison_page(
    comparison: Comparison,
    records: Mapping[str, Sequence[Record]],
    *,
    title: str,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Return the page of a comparison as HTML.

    Args:
        comparison: The comparison.
        records: Finished requests by policy, of one seed, so that curves over time make sense.
        title: Title of the page.
        settings: Settings of the runs, by name.
    """
    return document(
        title,
        comparison_headline(comparison),
        comparison_remarks(comparison),
        [*comparison_sections(comparison, records), definitions("Settings", settings or {})],
    )


def comparison_sections(
    comparison: Comparison, records: Mapping[str, Sequence[Record]]
) -> list[Markup]:
    """Return the sections of a page that show a comparison: ratios, distributions, terms.

    Args:
        comparison: The comparison.
        records: Finished requests by policy, of one seed.
    """
    return [
        section(
            f"Ratios to {comparison.baseline}",
            _explanation(comparison),
            _overview(comparison),
            *(_metric(comparison, number) for number in range(len(comparison.metrics))),
        ),
        section("Distributions", _charts(records)),
        definitions("What the terms mean", _TERMS),
    ]


def _explanation(comparison: Comparison) -> Markup:
    count = len(comparison.seeds)
    text = (
        f"{count} {'seed' if count == 1 else 'seeds'}; each seed is the same traffic for every "
        f"policy. A dot is the ratio, its bar the {comparison.confidence:.0%} interval, the dashed "
        "line the baseline. Without colour: no difference beyond the noise."
    )
    return element("p", text, class_="soft")


def _overview(comparison: Comparison) -> Markup:
    """Return ratios only: a row for each policy, a column for each metric."""
    rows = [
        (
            name_text(policy),
            *(
                element("span", _ratio_text(cell), class_=_kind(cell))
                for cell in comparison.cells[policy]
            ),
        )
        for policy in comparison.cells
    ]
    return table(("policy", *(metric.name for metric in comparison.metrics)), rows)


def _metric(comparison: Comparison, number: int) -> Markup:
    metric = comparison.metrics[number]
    column = {policy: cells[number] for policy, cells in comparison.cells.items()}
    span = _span(column.values())
    rows = [
        (
            name_text(policy),
            _interval_bar(cell, span),
            _verdict(cell),
            figure(cell.median),
            _ratio_text(cell),
            _interval(cell),
        )
        for policy, cell in column.items()
    ]
    better = f" {'higher' if metric.higher_is_better else 'lower'} is better"
    heading = element("h3", metric.name, element("span", better, class_="soft"))
    return joined([heading, table(_columns(comparison, metric), rows, kinds="nws")])


def _columns(comparison: Comparison, metric: Metric) -> tuple[str, ...]:
    median = f"median, {metric.unit}" if metric.unit else "median"
    return ("policy", "", "", median, "ratio", f"{comparison.confidence:.0%} interval")


def _span(cells: Iterable[Cell]) -> float:
    """Return the largest distance of a mean or an interval's end from 1, as a logarithm."""
    most = math.log(1.1)
    for cell in cells:
        if cell.ratio is not None:
            for value in (cell.ratio.mean, cell.ratio.low, cell.ratio.high):
                if value is not None and value > 0:
                    most = max(most, min(abs(math.log(value)), math.log(_WIDEST)))
    return most * 1.08


def _interval_bar(cell: Cell, span: float) -> Markup:
    def place(ratio: float) -> str:
        share = 0.5 if ratio <= 0 else 0.5 + math.log(ratio) / span / 2
        return f"{min(max(share, 0.0), 1.0) * 100:.1f}%"

    drawn = [element("line", class_="one", x1="50%", x2="50%", y1=0, y2=18, stroke="currentColor")]
    if cell.ratio is not None:
        if cell.ratio.low is not None and cell.ratio.high is not None:
            drawn.append(
                element("line", class_="whisker", x1=place(cell.ratio.low), y1=9,
                        x2=place(cell.ratio.high), y2=9, stroke="currentColor")
            )  # fmt: skip
        drawn.append(element("circle", class_="dot", cx=place(cell.ratio.mean), cy=9, r=5))
    return element(
        "svg",
        *drawn,
        class_=_kind(cell),
        width="100%",
        height=18,
        aria_hidden="true",
    )


def _verdict(cell: Cell) -> Markup:
    if cell.verdict is None:
        return element("span", "baseline", class_="soft")
    return element("span", cell.verdict.value, class_=_kind(cell))


def _kind(cell: Cell) -> str | None:
    return cell.verdict.value if cell.verdict in _COLOURED else None


def _ratio_text(cell: Cell) -> str:
    return "1" if cell.verdict is None else figure(cell.ratio.mean if cell.ratio else None)


def _interval(cell: Cell) -> str:
    if cell.ratio is None or cell.ratio.low is None:
        return ""
    return f"{figure(cell.ratio.low)} to {figure(cell.ratio.high)}"


def _charts(records: Mapping[str, Sequence[Record]]) -> Markup:
    cdfs, over_time, in_flight = [], [], []
    for number, (policy, each) in enumerate(records.items()):
        style = f"s{number % _STYLES}"
        ttft = [r.ttft_seconds * 1000 for r in each if r.succeeded and r.ttft_seconds is not None]
        cdfs.append(Line(policy, cdf_points(ttft), style))
        if each:
            series = TimeSeries.of(each)
            over_time.append(Line(policy, series.ttft_p90, style))
            in_flight.append(Line(policy, series.in_flight, style))
    charts = [
        line_chart("TTFT", cdfs, x_unit="ms", y_unit="share of requests", is_log_x=True, y_max=1.0),
        line_chart("TTFT p90 by time of sending", over_time, x_unit="seconds", y_unit="ms"),
        line_chart("Requests in flight", in_flight, x_unit="seconds", y_unit="most of each step"),
    ]
    return element("div", *charts, class_="charts") if any(charts) else Markup()

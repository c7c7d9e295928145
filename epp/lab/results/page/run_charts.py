"""The charts of one run."""

from collections.abc import Sequence
from itertools import pairwise

from epp.lab.results.page.charts import Line, cdf_points, histogram, line_chart
from epp.lab.results.page.markup import Markup, element
from epp.lab.results.page.numbers import tick
from epp.lab.results.page.time_series import TimeSeries
from epp.lab.results.record import Record
from epp.lab.results.slo import Slo


def charts_over_time(records: Sequence[Record]) -> Markup:
    """Return curves of rates, requests in flight and TTFT over the time of the run."""
    if not records:
        return Markup()
    series = TimeSeries.of(records)
    rates = [Line("sent", series.sent, "s7"), Line("succeeded", series.succeeded)]
    if any(rate for _, rate in series.failed):
        rates.append(Line("failed", series.failed, "bad"))
    unit = f"seconds, in steps of {tick(series.bucket_seconds)}"
    return element(
        "div",
        line_chart("Requests", rates, x_unit=unit, y_unit="per second"),
        line_chart(
            "Requests in flight",
            [Line("in flight", series.in_flight)],
            x_unit=unit,
            y_unit="most of each step",
            is_filled=True,
        ),
        line_chart(
            "TTFT by time of sending",
            [Line("p50", series.ttft_p50), Line("p90", series.ttft_p90, "s1")],
            x_unit=unit,
            y_unit="ms",
        ),
        class_="charts",
    )


def latency_charts(records: Sequence[Record], slo: Slo) -> Markup:
    """Return the distributions of TTFT, gaps between tokens and whole responses."""
    good = [record for record in records if record.succeeded]
    ttft = [r.ttft_seconds * 1000 for r in good if r.ttft_seconds is not None]
    latency = [record.latency_seconds * 1000 for record in good]
    gaps = [
        (later - earlier) * 1000
        for record in good
        if record.has_all_token_times
        for earlier, later in pairwise(record.token_times)
    ]
    limit = [] if slo.ttft_seconds is None else [slo.ttft_seconds * 1000]
    charts = [
        histogram(
            "TTFT, dashed: its objective" if limit else "TTFT", ttft, x_unit="ms", marks=limit
        ),
        line_chart(
            "Responses",
            [Line("TTFT", cdf_points(ttft)), Line("whole response", cdf_points(latency), "s1")],
            x_unit="ms",
            y_unit="share that took at most",
            is_log_x=True,
            y_max=1.0,
        ),
        line_chart(
            "Time between tokens",
            [Line("gap", cdf_points(gaps))],
            x_unit="ms",
            y_unit="share that took at most",
            is_log_x=True,
            y_max=1.0,
        ),
    ]
    return element("div", *charts, class_="charts") if any(charts) else Markup()

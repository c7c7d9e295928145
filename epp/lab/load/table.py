"""Render a report as rich tables: totals, latencies, endpoints, errors."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epp.lab.load.report import Report
from epp.lab.results.distribution import Distribution

_UNNAMED = "(not named in the response)"


def report_table(report: Report) -> RenderableType:
    """Return the tables of a report, for a rich console.

    Latency rows without a value and empty tables are omitted.
    """
    parts: list[RenderableType] = [_totals(report)]
    if rows := _latency_rows(report):
        parts.append(_latencies(rows))
    if report.endpoints:
        parts.append(_endpoints(report))
    if report.errors:
        parts.append(_errors(report))
    return Group(*parts)


def _new_table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def _totals(report: Report) -> Table:
    title = "Load run, interrupted" if report.interrupted else "Load run"
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE, show_header=False, pad_edge=False
    )
    table.add_column()
    table.add_column(justify="right")
    table.add_row("elapsed", f"{report.elapsed_seconds:.2f} s")
    table.add_row("requests sent", f"{report.sent}")
    table.add_row("succeeded", f"{report.succeeded}")
    table.add_row("failed", Text(f"{report.failed}", style="red" if report.failed else ""))
    if report.left_early:
        table.add_row("aborted on purpose", f"{report.left_early}")
    if report.unfinished:
        table.add_row("unfinished", f"{report.unfinished}")
    table.add_row("peak in flight", f"{report.peak_in_flight}")
    table.add_row("throughput", f"{report.requests_per_second:.1f} requests/s")
    table.add_row("", f"{report.output_tokens_per_second:.1f} output tokens/s")
    if report.goodput is not None:
        good = report.goodput
        table.add_row("goodput", f"{good.per_second:.1f} requests/s ({good.share:.1%})")
    if report.cached_tokens:
        share = report.cached_tokens / max(report.prompt_tokens, 1)
        table.add_row("prompt tokens from cache", f"{share:.1%}")
    return table


def _latency_rows(report: Report) -> list[tuple[str, Distribution]]:
    rows = (
        ("first byte", report.first_byte_ms),
        ("TTFT", report.ttft_ms),
        ("TPOT", report.tpot_ms),
        ("inter-token", report.inter_token_ms),
        ("total", report.latency_ms),
        ("schedule delay", report.schedule_delay_ms),
    )
    return [(name, value) for name, value in rows if value is not None]


def _latencies(rows: list[tuple[str, Distribution]]) -> Table:
    title = "Latency, ms (TTFT: time to first token; TPOT: time per output token after it)"
    columns = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")
    table = _new_table(title, "", *columns, "count")
    for name, value in rows:
        figures = (getattr(value, column.replace(".", "")) for column in columns)
        table.add_row(name, *map(_figure, figures), f"{value.count}")
    return table


def _figure(value: float) -> str:
    """Return milliseconds in at most six characters, so that a row fits into 80 columns."""
    for below, digits in ((100, 2), (10_000, 1)):
        if value < below:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def _endpoints(report: Report) -> Table:
    table = _new_table("Responses per endpoint", "endpoint", "responses", "share")
    total = sum(report.endpoints.values())
    for name, count in report.endpoints.items():
        table.add_row(Text(name or _UNNAMED), f"{count}", f"{count / total:.1%}")
    return table


def _errors(report: Report) -> Table:
    table = _new_table("Errors", "kind", "count")
    table.add_column("first message", overflow="fold")
    for kind, summary in report.errors.items():
        table.add_row(kind, f"{summary.count}", Text(summary.first_message))  # Text: no markup
    return table

"""Render a summary as rich tables: totals, latencies, tenants, adapters, endpoints, errors."""

from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epp.lab.results.distribution import Distribution
from epp.lab.results.groups import GroupSummary
from epp.lab.results.summary import Summary

_UNNAMED = "(not named in the response)"


def summary_table(summary: Summary, title: str = "Load run") -> RenderableType:
    """Return the tables of a summary, for a rich console.

    Latency rows without a value and empty tables are omitted.
    """
    parts: list[RenderableType] = [_totals(summary, title)]
    if rows := _latency_rows(summary):
        parts.append(_latencies(rows))
    for name, groups in (("tenant", summary.tenants), ("adapter", summary.adapters)):
        if groups:
            parts.append(_groups(name, groups))
    if summary.endpoints:
        parts.append(_endpoints(summary))
    if summary.errors:
        parts.append(_errors(summary))
    return Group(*parts)


def plain_table(title: str | Text) -> Table:
    """Return an empty table of results, whose only line is that below the header."""
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )


def _new_table(title: str, *columns: str) -> Table:
    table = plain_table(title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def _totals(summary: Summary, title: str) -> Table:
    if summary.interrupted:
        title = f"{title}, interrupted"
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE, show_header=False, pad_edge=False
    )
    table.add_column()
    table.add_column(justify="right")
    table.add_row("elapsed", f"{summary.elapsed_seconds:.2f} s")
    table.add_row("requests sent", f"{summary.sent}")
    table.add_row("succeeded", f"{summary.succeeded}")
    table.add_row("failed", Text(f"{summary.failed}", style="red" if summary.failed else ""))
    if summary.left_early:
        table.add_row("aborted on purpose", f"{summary.left_early}")
    if summary.unfinished:
        table.add_row("unfinished", f"{summary.unfinished}")
    table.add_row("peak in flight", f"{summary.peak_in_flight}")
    table.add_row("throughput", f"{summary.requests_per_second:.1f} requests/s")
    table.add_row("", f"{summary.output_tokens_per_second:.1f} output tokens/s")
    if summary.goodput is not None:
        good = summary.goodput
        table.add_row("goodput", f"{good.per_second:.1f} requests/s ({good.share:.1%})")
    if summary.hit_rate:
        table.add_row("prompt tokens from cache", f"{summary.hit_rate:.1%}")
    if (found := summary.predictions) is not None:
        table.add_row(
            "predicted / real hit rate", f"{found.predicted_rate:.1%} / {found.real_rate:.1%}"
        )
    if summary.balance is not None and (spread := summary.balance.requests) is not None:
        table.add_row("busiest worker / mean", f"{spread.max_to_mean:.2f}")
    return table


def _latency_rows(summary: Summary) -> list[tuple[str, Distribution]]:
    rows = (
        ("first byte", summary.first_byte_ms),
        ("TTFT", summary.ttft_ms),
        ("TPOT", summary.tpot_ms),
        ("inter-token", summary.inter_token_ms),
        ("total", summary.latency_ms),
        ("schedule delay", summary.schedule_delay_ms),
    )
    known = [(name, value) for name, value in rows if value is not None]
    return known + [(name.replace("_", " "), value) for name, value in summary.parts_ms.items()]


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


def _groups(name: str, groups: Mapping[str, GroupSummary]) -> Table:
    columns = ("requests", "failed", "goodput", "hit rate", "TTFT p50", "p90", "p99")
    table = _new_table(f"By {name} (TTFT in ms)", name, *columns)
    for value, group in groups.items():
        ttft = group.ttft_ms
        table.add_row(
            Text(value or "(none)"),
            f"{group.requests}",
            f"{group.failed}",
            "" if group.goodput is None else f"{group.goodput.share:.1%}",
            "" if group.hit_rate is None else f"{group.hit_rate:.1%}",
            *(("",) * 3 if ttft is None else map(_figure, (ttft.p50, ttft.p90, ttft.p99))),
        )
    return table


def _endpoints(summary: Summary) -> Table:
    table = _new_table("Responses per endpoint", "endpoint", "responses", "share")
    total = sum(summary.endpoints.values())
    for name, count in summary.endpoints.items():
        table.add_row(Text(name or _UNNAMED), f"{count}", f"{count / total:.1%}")
    return table


def _errors(summary: Summary) -> Table:
    table = _new_table("Errors", "kind", "count")
    table.add_column("first message", overflow="fold")
    for kind, error in summary.errors.items():
        table.add_row(kind, f"{error.count}", Text(error.first_message))  # Text: no markup
    return table

"""Formats ``/debug/session`` as tables."""

from collections.abc import Iterable, Iterator, Mapping

from rich.filesize import decimal
from rich.table import Table

from epp.cli.debug_pages import plain
from epp.flow_control.views.session_page import (
    BandLine,
    FlowLine,
    RequestLine,
    SessionPage,
    SessionPluginLine,
)


def shown(page: SessionPage) -> Iterator[str | Table]:
    """Yield the lines and tables that are not empty."""
    if page.saturation:
        yield f"Saturation: {', '.join(_stages(page.saturation))}"
    if page.blocked:
        yield f"Nothing can be dispatched: {plain(page.blocked)}"
    if not page.waiting:
        yield "No request waits."
    yield from _tables(page)
    for fault in page.faults:
        yield f"Fault: {plain(fault)}"


def _stages(saturation: Mapping[str, float | None]) -> Iterator[str]:
    is_whole = len(saturation) == 1  # servers without roles are one stage, `decode`
    for stage, value in saturation.items():
        amount = "unknown" if value is None else f"{value:.3g}"
        yield amount if is_whole else f"{plain(stage)} {amount}"


def _tables(page: SessionPage) -> Iterator[str | Table]:
    if page.bands:
        yield _bands(page)
    flows = [(band, flow) for band in page.bands for flow in band.flows]
    if flows:
        yield _flows(flows, page.blocked)
        yield from _more(page, "flows", (band.more_flows for band in page.bands))
    if waiting := [line for band in page.bands for line in band.requests]:
        yield _waiting(waiting)
    yield from _more(page, "requests", (band.more_requests for band in page.bands))
    if page.parked:
        yield _parked(page.parked)
        if page.more_parked:
            yield f"and {page.more_parked} more parked requests"
    if page.plugins:
        yield _plugins(page.plugins)


def _bands(page: SessionPage) -> Table:
    table = titled_table("Bands", "priority", "waiting", "bytes", "ceiling", "why blocked")
    for band in page.bands:
        table.add_row(
            str(band.priority),
            f"{band.waiting} of {band.max_requests}",
            f"{decimal(band.size_bytes)} of {decimal(band.max_bytes)}",
            "" if band.ceiling is None else f"{band.ceiling:.3g}",
            _reasons([band.blocked], page.blocked),
        )
    return table


def _flows(flows: Iterable[tuple[BandLine, FlowLine]], blocked: str) -> Table:
    table = titled_table(
        "Flows", "priority", "flow", "waiting", "head waits", "used", "deserved", "share",
        "why the head waits",
    )  # fmt: skip
    for band, flow in flows:
        table.add_row(
            str(band.priority),
            plain(flow.flow),
            str(flow.waiting),
            _seconds(flow.head_waited_seconds),
            _lines(_amount(each.used, each.resource) for each in flow.shares),
            _lines(_amount(each.deserved, each.resource) for each in flow.shares),
            _lines(_amount(each.share, each.resource) for each in flow.shares),
            _reasons(flow.reasons or [band.blocked] * bool(flow.waiting), blocked),
        )
    return table


def _waiting(lines: Iterable[RequestLine]) -> Table:
    table = titled_table(
        "Waiting", "priority", "flow", "place", "request", "model", "bytes", "waited", "left"
    )
    for line in lines:
        table.add_row(
            str(line.priority),
            plain(line.flow),
            str(line.place),
            plain(line.request_id),
            plain(line.model),
            decimal(line.size_bytes),
            _seconds(line.waited_seconds),
            _seconds(line.remaining_seconds),
        )
    return table


def _parked(lines: Iterable[RequestLine]) -> Table:
    table = titled_table("Parked", "priority", "flow", "request", "waited", "left", "tries", "why")
    for line in lines:
        table.add_row(
            str(line.priority),
            plain(line.flow),
            plain(line.request_id),
            _seconds(line.waited_seconds),
            _seconds(line.remaining_seconds),
            str(line.tries),
            _lines(map(plain, line.reasons)),
        )
    return table


def _plugins(lines: Iterable[SessionPluginLine]) -> Table:
    table = titled_table("Session plugins", "name", "pages")
    for line in lines:
        table.add_row(
            plain(line.name), _lines(f"/debug/session/{plain(page)}" for page in line.pages)
        )
    return table


def _reasons(texts: Iterable[str], blocked: str) -> str:
    """Return why a request waits; ``blocked``, which applies to all, is shown above the tables."""
    return _lines("as above" if text and text == blocked else plain(text) for text in texts)


def _more(page: SessionPage, what: str, counts: Iterable[int]) -> Iterator[str]:
    for band, count in zip(page.bands, counts, strict=True):
        if count:
            yield f"and {count} more {what} of priority {band.priority}"


def titled_table(title: str, *columns: str) -> Table:
    """Return a table without borders whose cells wrap."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _amount(value: float | None, resource: str) -> str:
    return "" if value is None else f"{value:.6g} {plain(resource)}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(texts).strip("\n")

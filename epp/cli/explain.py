"""``epp explain``: show why a running endpoint picker makes its decisions."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from epp.cli.debug_pages import DebugClient, NoSuchPageError, PageError
from epp.cli.options import finite
from epp.cli.queue_tables import shown
from epp.cli.running import fail
from epp.flow_control.views.debug_page import PATH
from epp.flow_control.views.session_page import SessionPage
from epp.outlier_detection.endpoints_page import PATH as ENDPOINTS_PATH
from epp.outlier_detection.endpoints_page import EndpointLine, EndpointsPage

T = TypeVar("T")

PIPED_WIDTH = 200
"""Width of tables if the output is not a terminal."""

explain = typer.Typer(
    help="Explain the decisions of a running endpoint picker.", no_args_is_help=True
)


Admin = Annotated[str, typer.Option(help="URL of the port with /metrics and the debug pages.")]


@explain.command("endpoint")
def endpoint(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Only this one: HOST:PORT or a name.")
    ] = "",
    admin: Admin = "http://127.0.0.1:9090",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which endpoints get requests, and why the others do not.

    The exit status is 1 if there is no such endpoint, and 2 if the page could not be read.
    """
    try:
        client = DebugClient(admin)
        page = _endpoints(client)
    except PageError as error:
        fail(str(error))
    shown_ones = [
        each
        for each in page.endpoints
        if address in {"", each.address, each.name, each.name.rpartition("/")[2]}
    ]
    if not shown_ones:
        fail(f"there is no endpoint {address!r} in the pool", status=1)
    if as_json:
        typer.echo(msgspec.json.encode(shown_ones))
        return
    console = _console()
    if page.panic:
        console.print("Too many endpoints are ejected: all of them get requests.")
    console.print(_endpoint_table(shown_ones))


def _endpoints(client: DebugClient) -> EndpointsPage:
    why_missing = (
        "outlier detection is off in that endpoint picker (--outlier-detection=false or"
        " --compat=reference)"
    )
    return _fetched(client, ENDPOINTS_PATH, EndpointsPage, why_missing)


def _fetched(client: DebugClient, path: str, page: type[T], why_missing: str) -> T:
    """Return the page at ``path`` below /debug/.

    Raises:
        PageError: It could not be fetched, or is another page.
    """
    try:
        text = client.get(path)
    except NoSuchPageError as error:
        raise PageError(f"{error}: {why_missing}") from None
    try:
        return msgspec.json.decode(text, type=page)
    except msgspec.MsgspecError:
        raise PageError(
            f"{client.shown}: the response for /debug/{path} is not that page; is this the"
            " --metrics-port of an endpoint picker of this version?"
        ) from None


def _endpoint_table(endpoints: Sequence[EndpointLine]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("endpoint", "address", "state", "for", "share", "in flight", "ejections"):
        table.add_column(heading, no_wrap=True)
    table.add_column("why, and until when")
    for each in endpoints:
        until = each.returns_in_seconds
        why = each.reason if until is None else f"{each.reason}; returns in {until:.1f} s"
        table.add_row(
            each.name,
            each.address,
            f"{each.state}, draining" if each.is_draining else each.state,
            f"{each.since_seconds:.0f} s",
            f"{each.share:.0%}",
            str(each.in_flight),
            str(sum(each.ejections.values())),
            why,
        )
    return table


@explain.command("queue")
def queue(
    admin: Admin = "http://127.0.0.1:9090",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one line per update.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Update until Ctrl-C.")] = False,
    interval: Annotated[
        float,
        typer.Option(help="Seconds between two updates of --watch.", min=0.1, callback=finite),
    ] = 2.0,
) -> None:
    """Show the queued requests in order, why the first ones wait, and the share of each flow.

    Flows are listed in the order in which they would be served now; the order is recomputed after
    every dispatch. The exit status is 2 if the page could not be read.
    """
    try:
        client = DebugClient(admin)
        page = _page(client)
    except PageError as error:
        fail(str(error))
    with suppress(KeyboardInterrupt):
        while True:
            _print(page, as_json=as_json, clear=watch)
            if not watch:
                return
            page = _next_page(client, interval)


def _next_page(client: DebugClient, interval: float) -> SessionPage:
    """Return the page after ``interval``; retry on errors and print them."""
    while True:
        time.sleep(interval)
        try:
            return _page(client)
        except PageError as error:
            typer.echo(f"epp: {error}", err=True)


def _page(client: DebugClient) -> SessionPage:
    why_missing = (
        "flow control is off in that endpoint picker, so no request waits;"
        " `featureGates: [flowControl]` in its configuration turns it on"
    )
    return _fetched(client, PATH, SessionPage, why_missing)


def _print(page: SessionPage, *, as_json: bool, clear: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(page))
        return
    console = _console()
    if clear and console.is_terminal:
        console.clear()
    for each in shown(page):
        console.print(each)


def _console() -> Console:
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console

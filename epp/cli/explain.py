"""``epp explain``: show why a running endpoint picker makes its decisions."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from epp.cli.admin_options import Connect, with_client
from epp.cli.debug_pages import DebugClient, DebugPageError, decoded
from epp.cli.explain_console import explain_console
from epp.cli.explain_decisions import AsJson, decisions, request
from epp.cli.options import finite
from epp.cli.queue_tables import shown
from epp.cli.running import fail
from epp.cli.what_if import what_if_command
from epp.data_layer.endpoints_page import PATH as ENDPOINTS_PATH
from epp.data_layer.endpoints_page import EndpointLine, EndpointsPage
from epp.flow_control.views.debug_page import PATH
from epp.flow_control.views.session_page import SessionPage

explain = typer.Typer(
    help="Explain the decisions of a running endpoint picker.", no_args_is_help=True
)


@explain.command("endpoint")
@with_client()
def endpoint(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Only this one: HOST:PORT or a name.")
    ] = "",
    *,
    connect: Connect,
    as_json: AsJson = False,
) -> None:
    """Show which endpoints get requests, and why the others do not.

    The exit status is 1 if there is no such endpoint, and 2 if the page could not be read.
    """
    try:
        client = connect()
        page = endpoints_of(client)
    except DebugPageError as error:
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
    console = explain_console()
    if page.panic:
        console.print("Too many endpoints are ejected: all of them get requests.")
    console.print(_endpoint_table(shown_ones))


def endpoints_of(client: DebugClient) -> EndpointsPage:
    """Return the page of endpoints.

    Raises:
        PageError: The page could not be fetched, or has another format.
    """
    return decoded(client, ENDPOINTS_PATH, EndpointsPage)


def _endpoint_table(endpoints: Sequence[EndpointLine]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("endpoint", "address", "state", "for", "share", "in flight", "ejections"):
        table.add_column(heading, no_wrap=True)
    table.add_column("why, and until when")
    has_draining = any(each.draining for each in endpoints)
    if has_draining:
        table.add_column("draining")
    for each in endpoints:
        until, since = each.returns_in_seconds, each.since_seconds
        table.add_row(
            each.name,
            each.address,
            each.state,
            "" if since is None else f"{since:.0f} s",
            f"{each.share:.0%}",
            str(each.in_flight),
            str(sum(each.ejections.values())),
            each.reason if until is None else f"{each.reason}; returns in {until:.1f} s",
            *([_draining(each)] if has_draining else []),
        )
    return table


def _draining(endpoint: EndpointLine) -> str:
    ends = endpoint.drain_ends_in_seconds
    return endpoint.draining if ends is None else f"{endpoint.draining}, ends in {ends:.0f} s"


@explain.command("queue")
@with_client()
def queue(
    *,
    connect: Connect,
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
        client = connect()
        page = _page(client)
    except DebugPageError as error:
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
        except DebugPageError as error:
            typer.echo(f"epp: {error}", err=True)


def _page(client: DebugClient) -> SessionPage:
    why_missing = (
        "flow control is off in that endpoint picker, so no request waits;"
        " `featureGates: [flowControl]` in its configuration turns it on"
    )
    return decoded(client, PATH, SessionPage, why_missing)


def _print(page: SessionPage, *, as_json: bool, clear: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(page))
        return
    console = explain_console()
    if clear and console.is_terminal:
        console.clear()
    for each in shown(page):
        console.print(each)


explain.command("request")(request)
explain.command("decisions")(decisions)
explain.command("what-if")(what_if_command)

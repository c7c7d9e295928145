"""``epp explain request`` and ``epp explain decisions``: why requests got their endpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from epp.admin import DecisionRecord, DecisionsPage
from epp.admin.decision_pages import MAX_LINES, PATH
from epp.admin.decision_search import DecisionSearchError, find_decision
from epp.cli.admin_options import Connect, with_client
from epp.cli.debug_pages import DebugClient, DebugPageError, decoded
from epp.cli.decision_tables import explained, line_table
from epp.cli.explain_console import explain_console
from epp.cli.running import fail

RequestId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Id of the request (x-request-id), or the beginning of it if unique."
    ),
]
DecisionsFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="Read the decision from the file of --explain-file and those that were renamed,"
        " instead of from a running endpoint picker.",
        metavar="PATH",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@with_client()
def request(
    request_id: RequestId,
    file: DecisionsFile = None,
    *,
    connect: Connect,
    as_json: AsJson = False,
) -> None:
    """Explain one decision: filters, scores, inputs, and what came of it.

    The exit status is 2 if the decision could not be read.
    """
    try:
        record = recorded_decision(
            request_id,
            file,
            connect,
        )
    except (DebugPageError, DecisionSearchError) as error:
        fail(str(error))
    if as_json:
        typer.echo(msgspec.json.encode(record))
        return
    console = explain_console()
    for each in explained(record):
        console.print(each)


def recorded_decision(
    request_id: str, file: Path | None, connect: Callable[[], DebugClient]
) -> DecisionRecord:
    """Return the decision of a request.

    Args:
        request_id: Its id, or the beginning of its id.
        file: The file of decisions; None to query a running endpoint picker.
        connect: Returns a client of that endpoint picker.

    Raises:
        PageError: The decision could not be fetched.
        DecisionSearchError: The decision is not in the file.
    """
    if file is not None:
        return find_decision(file, request_id)
    return decoded(connect(), f"{PATH}/{quote(request_id, safe='')}", DecisionRecord)


@with_client()
def decisions(
    last: Annotated[
        int, typer.Option(help="Number of decisions.", metavar="N", min=1, max=MAX_LINES)
    ] = 20,
    endpoint: Annotated[
        str,
        typer.Option(help="Only decisions for this endpoint: a name or HOST:PORT.", metavar="NAME"),
    ] = "",
    slowest: Annotated[
        bool, typer.Option("--slowest", help="The requests that took longest first.")
    ] = False,
    *,
    connect: Connect,
    as_json: AsJson = False,
) -> None:
    """List the newest decisions in memory, one a line.

    The exit status is 2 if the page could not be read.
    """
    query = {"limit": str(last)}
    if endpoint:
        query["endpoint"] = endpoint
    if slowest:
        query["slowest"] = "true"
    try:
        client = connect()
        page = decoded(client, PATH, DecisionsPage, query=query)
    except DebugPageError as error:
        fail(str(error))
    if as_json:
        typer.echo(msgspec.json.encode(page))
        return
    console = explain_console()
    console.print(line_table(page.decisions))
    share = "" if page.sampled == 1.0 else f", a sample of {page.sampled:.0%}"
    console.print(f"{len(page.decisions)} of {page.kept} decisions in memory{share}")

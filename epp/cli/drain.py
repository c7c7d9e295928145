"""``epp drain``: keeps new requests away from one endpoint of a running endpoint picker."""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from epp.cli.admin_options import Connect, admin_token, with_client
from epp.cli.debug_pages import DebugClient, DebugPageError
from epp.cli.explain import endpoints_of
from epp.cli.running import fail, from_flag
from epp.cli.units import duration
from epp.data_layer.drain_calls import PATH, Drained
from epp.data_layer.endpoints_page import EndpointLine

_POLL_SECONDS = 1.0
_NOT_FOUND, _NO_SUCH_CALL = 404, 405


@with_client()
def drain(
    endpoint: Annotated[str, typer.Argument(help="Name or address of the endpoint.")],
    token_file: Annotated[
        Path,
        typer.Option(help="The --admin-token-file of epp serve, or a copy.", metavar="FILE"),
    ],
    undo: Annotated[bool, typer.Option("--undo", help="Give it new requests again.")] = False,
    time_limit: Annotated[
        str, typer.Option("--for", help="Undo it after this time.", metavar="DURATION")
    ] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until its requests have ended.")
    ] = False,
    *,
    connect: Connect,
) -> None:
    """Give an endpoint no new requests; those in progress continue.

    It lasts until --undo, or until the endpoint leaves the pool or the endpoint picker restarts.
    For a lasting drain set the label of --drain-label. Needs --enable-admin-writes of epp serve.

    The exit status is 1 if there is no such endpoint, if its label drains it after --undo, or if
    it ceases to drain while --wait waits, and 2 if the call failed.
    """
    if undo and (wait or time_limit):
        fail("--undo excludes --for and --wait")
    token = admin_token(token_file)
    parameters = {"endpoint": endpoint, "undo": "true" if undo else "false"}
    try:
        if time_limit:
            parameters["seconds"] = str(from_flag("--for", _positive, time_limit))
        client = connect()
        done = _called(client, parameters, token)
    except DebugPageError as error:
        fail(str(error), status=1 if error.status == _NOT_FOUND else 2)
    except ValueError as error:
        fail(str(error))
    line = done.endpoint
    state = f"drains ({line.draining})" if line.draining else "takes new requests"
    typer.echo(
        f"{line.name} {state}: {line.in_flight} requests in flight there,"
        f" {done.serving} endpoints take new requests"
    )
    if undo and line.draining:
        raise typer.Exit(1)
    if wait:
        _wait(client, line)


def _called(client: DebugClient, parameters: dict[str, str], token: str) -> Drained:
    try:
        return msgspec.json.decode(client.post(PATH, parameters, token), type=Drained)
    except DebugPageError as error:
        if error.status == _NO_SUCH_CALL:
            endpoints_of(client)  # its error explains what is wrong with --pool
        raise
    except msgspec.MsgspecError:
        raise DebugPageError(f"{client.shown}: the response to the call cannot be read") from None


def _wait(client: DebugClient, line: EndpointLine) -> None:
    """Wait until no request is in flight, and print each change of their number."""
    name, in_flight = line.name, line.in_flight
    while in_flight:
        time.sleep(_POLL_SECONDS)
        try:
            page = endpoints_of(client)
        except DebugPageError as error:  # possibly temporary
            typer.echo(f"epp: {error}", err=True)
            continue
        now = next((each for each in page.endpoints if each.name == name), None)
        if now is None:
            fail(f"{name} has left the pool with {in_flight} requests in flight", status=1)
        if not now.draining:
            fail(f"{name} takes new requests again: {now.in_flight} in flight", status=1)
        if now.in_flight != in_flight:
            in_flight = now.in_flight
            typer.echo(f"{name}: {in_flight} requests in flight")


def _positive(text: str) -> float:
    seconds = duration(text)
    if not seconds:
        raise ValueError(f"{text!r} must be positive")
    return seconds

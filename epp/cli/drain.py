"""``epp drain``: keeps new requests away from one endpoint of a running endpoint picker."""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from epp.cli.debug_pages import DebugClient, PageError
from epp.cli.running import fail
from epp.data_layer.draining import PATH

_POLL_SECONDS = 1.0


class _Drained(msgspec.Struct):
    """The answer to a call."""

    name: str
    is_draining: bool
    in_flight: int
    serving: int


def drain(
    endpoint: Annotated[str, typer.Argument(help="Name or address of the endpoint.")],
    token_file: Annotated[
        Path,
        typer.Option(help="The --admin-token-file of epp serve, or a copy.", metavar="FILE"),
    ],
    undo: Annotated[bool, typer.Option("--undo", help="Give it new requests again.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until its requests have ended.")
    ] = False,
    admin: Annotated[
        str, typer.Option(help="URL of the port with /metrics and the debug pages.")
    ] = "http://127.0.0.1:9090",
) -> None:
    """Give an endpoint no new requests; those in progress continue.

    It lasts until --undo, or until the endpoint leaves the pool or the endpoint picker restarts.
    For a lasting drain set the label of --drain-label. Needs --enable-admin-writes of epp serve.
    """
    try:
        token = token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--token-file: {error}")
    if not token:
        fail(f"--token-file: {token_file} is empty")
    parameters = {"endpoint": endpoint, "undo": "true" if undo else "false"}
    try:
        client = DebugClient(admin)
        done = _called(client, parameters, token)
        while wait and not undo and done.in_flight:
            typer.echo(f"{done.name}: {done.in_flight} requests in flight")
            time.sleep(_POLL_SECONDS)
            done = _called(client, parameters, token)
    except PageError as error:
        fail(str(error))
    state = "drains" if done.is_draining else "takes new requests"
    typer.echo(
        f"{done.name} {state}: {done.in_flight} requests in flight there,"
        f" {done.serving} endpoints take new requests"
    )


def _called(client: DebugClient, parameters: dict[str, str], token: str) -> _Drained:
    try:
        return msgspec.json.decode(client.post(PATH, parameters, token), type=_Drained)
    except msgspec.MsgspecError:
        raise PageError(f"{client.shown}: the response to the call cannot be read") from None

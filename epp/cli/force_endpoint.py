"""``epp force-endpoint``: signs the header that sends one request to a given endpoint."""

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from epp.cli.running import fail, from_flag
from epp.cli.units import duration
from epp.inputs import why_unreadable
from epp.request_control.force_header import FORCE_HEADER, MAX_LIFETIME_SECONDS, signed
from epp.request_control.force_keys import ForceKeyError, keys_of


def force_endpoint(
    endpoint: Annotated[
        str, typer.Argument(help="Name or address of the endpoint, as in /debug/endpoints.")
    ],
    key_file: Annotated[
        Path,
        typer.Option(
            help="The --force-endpoint-key-file of epp serve, or a copy; its first key signs.",
            metavar="FILE",
        ),
    ],
    time_limit: Annotated[
        str,
        typer.Option(
            "--for", help="How long the header is valid, at most 10m.", metavar="DURATION"
        ),
    ] = "1m",
    curl: Annotated[
        str,
        typer.Option(
            help="Print a curl command for this URL of the gateway instead of the header.",
            metavar="URL",
        ),
    ] = "",
) -> None:
    """Print the header that sends a request to this endpoint, also if it drains or is ejected.

    The gateway must let the header through, and epp serve must have --force-endpoint-key-file.
    Whoever has the header can use it until it expires.
    """
    try:
        lifetime = from_flag("--for", _lifetime, time_limit)
        keys = keys_of(key_file.read_bytes())
        value = signed(endpoint, int(time.time()) + lifetime, keys[0])
    except OSError as error:
        fail(f"--key-file {key_file}: cannot be read: {why_unreadable(error)}")
    except ForceKeyError as error:
        fail(f"--key-file {key_file}: {error}")
    except ValueError as error:
        fail(str(error))
    line = f"{FORCE_HEADER}: {value}"
    typer.echo(f"curl -H {shlex.quote(line)} {shlex.quote(curl)}" if curl else line)


def _lifetime(text: str) -> int:
    seconds = duration(text)
    if not 1 <= seconds <= MAX_LIFETIME_SECONDS:
        raise ValueError(f"{text!r} must be from 1s to 10m")
    return int(seconds)

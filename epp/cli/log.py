"""``epp log level``: shows or changes the log level of a running endpoint picker."""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from epp.cli.admin_options import Connect, admin_token, with_client
from epp.cli.debug_pages import DebugPageError
from epp.cli.running import fail, from_flag
from epp.cli.units import duration
from epp.observability.log_level_calls import MAX_SECONDS, PATH, LevelChange, LogLevelPage
from epp.observability.log_levels import LogLevel

log = typer.Typer(help="Show or change what a running endpoint picker logs.", no_args_is_help=True)


@log.callback()
def _log() -> None:
    """Make ``level`` a subcommand, although it is the only one."""


@log.command("level")
@with_client(has_pool=False)
def log_level(
    level: Annotated[
        LogLevel | None,
        typer.Argument(metavar="[LEVEL]", help="debug, info, warning or error; shown without it."),
    ] = None,
    time_limit: Annotated[
        str,
        typer.Option(
            "--for",
            help="Return to the former level after this time, at most 1h.",
            metavar="DURATION",
        ),
    ] = "5m",
    package: Annotated[
        str,
        typer.Option(help="Only its loggers, for example epp.data_layer.", metavar="NAME"),
    ] = "",
    undo: Annotated[
        bool,
        typer.Option(
            "--undo",
            help="Return to the former level now; without --package also that of packages.",
        ),
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="The --admin-token-file of epp serve, or a copy; needed for a change.",
            metavar="FILE",
        ),
    ] = None,
    *,
    connect: Connect,
) -> None:
    """Show the log level of one process, or change it for a limited time.

    Other replicas keep their level: --admin names the process. A change needs
    --enable-admin-writes of epp serve.

    The exit status is 2 if the call failed.
    """
    if undo and level is not None:
        fail("--undo excludes LEVEL")
    if package and level is None and not undo:
        fail("--package needs LEVEL or --undo")
    try:
        client = connect()
        if level is None and not undo:
            response = client.get(PATH)
        else:
            parameters = {"package": package} if package else {}
            if level is None:
                parameters["undo"] = "true"
            else:
                parameters["level"] = level
                parameters["seconds"] = str(from_flag("--for", _limited, time_limit))
            if token_file is None:
                fail("a change needs --token-file with the --admin-token-file of epp serve")
            response = client.post(PATH, parameters, admin_token(token_file))
    except (DebugPageError, ValueError) as error:
        fail(str(error))
    try:
        page = msgspec.json.decode(response, type=LogLevelPage)
    except msgspec.MsgspecError:
        fail(f"{client.shown}: the response cannot be read")
    _print(page)


def _limited(text: str) -> float:
    seconds = duration(text)
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"{text!r} must be positive and at most 1h")
    return seconds


def _print(page: LogLevelPage) -> None:
    typer.echo(f"{page.level}{_until(page.change, page.usual_level)}")
    for package, change in page.packages.items():
        typer.echo(f"{package}: {change.level}{_until(change, page.level)}")
    typer.echo(
        f"process {page.process_id} on {page.host} only; other replicas keep their level", err=True
    )


def _until(change: LevelChange | None, then: LogLevel) -> str:
    if change is None:
        return ""
    at = time.strftime("%H:%M:%S", time.localtime(change.returns_at))
    return f" until {at} ({change.returns_in_seconds:.0f} s), then {then}"

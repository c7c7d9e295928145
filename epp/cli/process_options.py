"""Process options of ``epp serve``: shutdown and logging."""

from typing import Annotated, Final, Literal

import typer

from epp.cli.options import finite
from epp.cli.running import from_flag
from epp.cli.units import count, duration

LogLevel = Literal["debug", "info", "warning", "error"]

OPEN_STREAMS_SECONDS: Final = 30.0
"""Default drain timeout of open streams."""

DrainDelaySeconds = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        callback=lambda value: None if value is None else finite(value),
        help="How long new requests are still served after SIGTERM, while readiness is off; beside"
        " it --drain-timeout is for open streams alone. 0: refuse new ones at once.",
        show_default=False,
    ),
]
DrainTimeout = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="How long new requests are still served after SIGTERM, as in the reference; open"
        " streams then get 30s. Not given: new ones are refused at once.",
        show_default=False,
    ),
]
Verbosity = Annotated[
    int | None,
    typer.Option(
        "-v", "--v", metavar="N", help="The reference's log level: up to 3 info, from 4 on debug."
    ),
]
ZapLogLevel = Annotated[
    str,
    typer.Option(
        metavar="LEVEL",
        help="The same by name (debug, info, error, panic) or number; goes before -v.",
    ),
]
LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        help="Lowest level written, info by default; goes before -v and --zap-log-level.",
        show_default=False,
    ),
]

_ZAP_LEVELS: Final[dict[str, LogLevel]] = {
    "debug": "info",  # zap's debug is -v 1
    "info": "info",
    "warn": "warning",
    "error": "error",
    "panic": "error",
}
_DEBUG_FROM: Final = 4


def drain_times(delay_seconds: float | None, timeout: str | None) -> tuple[float, float]:
    """Return the drain delay and the drain timeout, in seconds.

    The Go EPP's flag alone sets the delay, as there; together with this EPP's own flag for the
    delay, it sets the timeout.

    Raises:
        ValueError: ``timeout`` is not a duration; the message names the flag.
    """
    given = None if timeout is None else from_flag("--drain-timeout", duration, timeout)
    if delay_seconds is None:
        return given or 0.0, OPEN_STREAMS_SECONDS
    return delay_seconds, OPEN_STREAMS_SECONDS if given is None else given


def log_level(own: LogLevel | None, verbosity: int | None, zap: str) -> LogLevel:
    """Return the log level of the flags.

    Raises:
        ValueError: ``zap`` is not a level; the message names the flag.
    """
    if own is not None:
        return own
    if zap in _ZAP_LEVELS:
        return _ZAP_LEVELS[zap]
    if zap:
        try:
            verbosity = count(zap)
        except ValueError:
            names = ", ".join(_ZAP_LEVELS)
            raise ValueError(f"--zap-log-level: give {names} or a number, not {zap!r}") from None
    return "info" if verbosity is None or verbosity < _DEBUG_FROM else "debug"

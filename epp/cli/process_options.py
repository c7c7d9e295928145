"""Process options of ``epp serve``: shutdown and logging."""

from pathlib import Path
from typing import Annotated, Final, Literal

from epp.cli import option_groups as groups
from epp.cli.options import finite
from epp.cli.running import from_flag
from epp.cli.units import count, duration
from epp.observability import LogLevel

OPEN_STREAMS_SECONDS: Final = 30.0
"""Default drain timeout of open streams."""

DrainDelaySeconds = Annotated[
    float | None,
    groups.process(
        min=0.0,
        callback=lambda value: None if value is None else finite(value),
        help="Time after SIGTERM in which new requests are still served, while readiness is off;"
        " --drain-timeout then applies to open streams only. 0 refuses new requests at once.",
        show_default=False,
        metavar="SECONDS",
    ),
]
DrainTimeout = Annotated[
    str | None,
    groups.process(
        metavar="DURATION",
        help="Time after SIGTERM in which new requests are still served, as in the Go EPP; open"
        " streams then get 30s. Without it new requests are refused at once.",
        show_default=False,
    ),
]
Verbosity = Annotated[
    int | None,
    groups.logs(
        "-v", "--v", metavar="N", help="Log level of the Go EPP: up to 3 info, from 4 on debug."
    ),
]
ZapLogLevel = Annotated[
    str,
    groups.logs(
        metavar="LEVEL",
        help="Log level of the Go EPP by name (debug, info, error, panic) or number; overrides -v.",
    ),
]
LogLevelOption = Annotated[
    LogLevel | None,
    groups.logs(
        "--log-level",
        help="Lowest level that is logged, info by default; overrides -v and --zap-log-level.",
        show_default=False,
    ),
]

LogFormat = Annotated[
    Literal["json", "console"], groups.logs(help="`json` for machines, `console` for people.")
]
LogQueueBytes = Annotated[
    str,
    groups.logs(
        help="Memory for log lines that are not written yet; further lines are dropped and"
        " counted.",
        metavar="SIZE",
    ),
]
ReadyFile = Annotated[
    Path | None,
    groups.process(
        help="Write the port numbers to this file, as JSON, when all ports listen.",
        metavar="FILE",
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

    The Go EPP's flag alone sets the delay, as in the Go EPP. Together with this EPP's own flag for
    the delay, it sets the timeout.

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

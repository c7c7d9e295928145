"""Structured logging: one call at start-up, one event name per fact.

Lines go through structlog, but for the canonical line that each request writes: its fields are
known beforehand, so they are encoded as they are (:class:`CanonicalLine`).
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO, Any, AnyStr, BinaryIO, Generic, Literal, TextIO, cast

import msgspec
import structlog

LogFormat = Literal["json", "console"]

_direct: "_Lossy[bytes] | None" = None
"""Where whole JSON lines go; None while lines are not JSON, or not configured."""


class _Lossy(Generic[AnyStr]):
    """Standard output that loses lines: a full disk behind it must not end requests, or the EPP."""

    def __init__(self, output: IO[AnyStr]) -> None:
        self._output: IO[AnyStr] = output

    # Not suppress(): it costs 0.5 us, and each line does this twice.
    def write(self, data: AnyStr) -> int:
        try:  # noqa: SIM105
            self._output.write(data)
        except OSError:
            pass  # nobody to tell: this is where it would be told
        return len(data)

    def flush(self) -> None:
        try:  # noqa: SIM105
            self._output.flush()
        except OSError:
            pass


def configure(*, level: str = "info", log_format: LogFormat = "json") -> None:
    """Configure structlog for the process; lines go to standard output.

    A line that cannot be written is lost, and nothing else.

    Args:
        level: Lowest level written (``debug``, ``info``, …); calls below cost a ``return None``.
        log_format: One JSON object per line for production, coloured lines for a terminal.
    """
    global _direct  # noqa: PLW0603 - set with structlog's configuration, global like it
    shared: list[structlog.typing.Processor] = [
        # No contextvars: all requests share one context on the straight path, so ids are passed.
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        _direct = _Lossy(sys.stdout.buffer)
        structlog.configure(
            cache_logger_on_first_use=True,
            wrapper_class=structlog.make_filtering_bound_logger(level),
            logger_factory=structlog.BytesLoggerFactory(cast("BinaryIO", _direct)),
            processors=[
                *shared,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(serializer=_encode),
            ],
        )
    else:
        _direct = None
        structlog.configure(
            cache_logger_on_first_use=True,
            wrapper_class=structlog.make_filtering_bound_logger(level),
            logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Lossy(sys.stdout))),
            processors=[
                *shared,
                structlog.dev.ConsoleRenderer(
                    colors=sys.stdout.isatty(),
                    # The default prints local variables: prompts and credentials among them.
                    exception_formatter=structlog.dev.plain_traceback,
                ),
            ],
        )


class CanonicalLine:
    """Writes one event at level info with the fields of a Struct, the same line as structlog's.

    The configuration is that of the time it is made, as for a logger's first line.
    """

    # 2 us a line with 15 fields; through structlog's processors it takes 8.
    __slots__ = ("_direct", "_event", "_log", "_tail", "enabled")

    def __init__(self, event: str) -> None:
        self._event = event
        self._log = structlog.get_logger()
        self._direct = _direct
        self._tail = b',"event":' + _ENCODER.encode(event) + b',"level":"info","timestamp":'
        self.enabled: bool = self._log.is_enabled_for(logging.INFO)
        """False if lines would not be written: then make no fields either."""

    def write(self, fields: msgspec.Struct) -> None:
        """Write a line; ``fields`` has at least one."""
        if self._direct is not None:
            try:
                line = _ENCODER.encode(fields)
            except UnicodeEncodeError:
                pass  # structlog's way knows what to do
            else:
                stamp = _ENCODER.encode(datetime.now(UTC))
                # In one call, so that no other thread's line can come between.
                self._direct.write(b"".join((line[:-1], self._tail, stamp, b"}\n")))
                self._direct.flush()
                return
        self._log.info(self._event, **msgspec.to_builtins(fields))


def _encode(event: dict[str, Any], **_: object) -> bytes:
    try:
        return _ENCODER.encode(event)
    except UnicodeEncodeError:
        # A lone surrogate, as in a file name that is not UTF-8: the line is written, escaped.
        return json.dumps(event, default=repr).encode()


# 3 us a line where the standard library's json takes 12 (20 fields).
_ENCODER = msgspec.json.Encoder(enc_hook=repr)

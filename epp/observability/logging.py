"""Structured logging: one call at start-up, one event name per fact.

Lines go through structlog, but for the canonical line that each request writes: its fields are
known beforehand, so they are encoded as they are (:class:`CanonicalLine`). Whatever the fields of a
line hold, it is bounded: each text is cut (:mod:`.bounded_text`), and so is the line. It is written
by a thread (:mod:`.log_queue`).
"""

import atexit
import logging
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

import msgspec
import structlog
from structlog.typing import EventDict

from epp.observability.bounded_text import (
    MOST_CHARS,
    bounded,
    cut,
    cut_middle,
    escaped,
    escaped_json,
    is_safe,
    json_line,
    traceback_text,
)
from epp.observability.log_queue import MOST_BYTES, LogQueue
from epp.observability.standard_streams import (
    descriptor_of,
    flush_standard_streams,
    is_same_file,
    queue_standard_streams,
    restore_standard_streams,
)

LogFormat = Literal["json", "console"]

MOST_REQUEST_LINE_BYTES: Final = 4096
"""Most bytes of a line that names a request, without a traceback."""
MOST_LINE_BYTES: Final = 16 << 10
FLUSH_SECONDS: Final = 2.0
"""How long the process waits at its end for lines that are not written yet."""

_OWN_FIELDS = frozenset({"event", "level", "timestamp"})
_OWN_TEXT_CHARS: Final = 2048
_OWN_TEXTS = frozenset({"problem", "problems", "error", "message"})
"""Fields that tell an operator what is wrong, with a file mostly, where no request is named."""
_NARROW_CHARS = (64, 16)
"""Characters of each field of a line that would be too long, tried in this order."""
_NARROW_VALUES: Final = 8
_NARROW_TRACEBACK_CHARS: Final = 1024

_SHORT_TYPES = frozenset({float, bool, type(None)})
_MANY: Final = 1 << 63
_QUOTED = frozenset(" =\"'")
"""What has structlog's console put quotes around a field."""
_UNQUOTED = frozenset({"event", "exception", "stack"})
"""What it writes as it is."""

_STDOUT, _STDERR = 1, 2


class _Outputs(NamedTuple):
    """The queues behind the standard streams; one and the same if both lead to one place."""

    output: LogQueue
    errors: LogQueue


_outputs: _Outputs | None = None
_direct: LogQueue | None = None
"""Takes complete JSON lines; None while lines are not JSON, or not configured."""


def configure(
    *,
    level: str = "info",
    log_format: LogFormat = "json",
    queue_bytes: int = MOST_BYTES,
    standard_streams: bool = False,
) -> None:
    """Configure structlog for the process; lines go to standard output.

    A line that cannot be written is dropped and counted; the caller notices nothing.

    Args:
        level: Lowest level written (``debug``, ``info``, …); calls below cost a ``return None``.
        log_format: One JSON object per line for production, coloured lines for a terminal.
        queue_bytes: Bytes that may wait to be written before lines are dropped.
        standard_streams: Whether everything else that the process writes uses the queues, too.
    """
    global _direct, _outputs  # noqa: PLW0603 - set with structlog's configuration, global like it
    render = _json if log_format == "json" else _console()
    _outputs = outputs = _new_outputs(render, queue_bytes)
    _direct = outputs.output if log_format == "json" else None
    structlog.configure(
        cache_logger_on_first_use=True,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _QueueLogger(outputs.output),
        processors=[
            # No contextvars: all requests share one context on the straight path. Ids are passed.
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            bound_event,
            _BoundedRenderer(render),
        ],
    )
    if standard_streams:
        queue_standard_streams(*outputs)


def log_queues() -> Sequence[LogQueue]:
    """Return the queues in use, each once; none before logging is configured."""
    return list(dict.fromkeys(_outputs or ()))


def _new_outputs(render: Callable[[EventDict], bytes], queue_bytes: int) -> _Outputs:
    def notice(count: int) -> bytes:
        stamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        facts = {"count": count, "event": "log lines dropped", "level": "warning"}
        return render({**facts, "timestamp": stamp})

    output, errors = descriptor_of(sys.stdout, _STDOUT), descriptor_of(sys.stderr, _STDERR)
    first = LogQueue(output, notice, most_bytes=queue_bytes)
    if is_same_file(output, errors):
        return _Outputs(first, first)
    return _Outputs(first, LogQueue(errors, notice, most_bytes=queue_bytes))


@atexit.register
def _end() -> None:
    """Write what waits, unless nobody reads it; later lines are written directly."""
    flush_standard_streams()
    deadline = time.monotonic() + FLUSH_SECONDS
    is_written = [each.flush(max(0.0, deadline - time.monotonic())) for each in log_queues()]
    if all(is_written):
        restore_standard_streams()


class _QueueLogger:
    """The logger to which structlog hands its lines."""

    def __init__(self, queue: LogQueue) -> None:
        self._put = queue.put

    def msg(self, line: bytes) -> None:
        self._put(line)

    debug = info = warning = error = critical = msg


def bound_event(_: object, __: str, event: EventDict) -> EventDict:
    """Cut the fields of an event, its traceback included; a processor of structlog."""
    error = _exception(event.pop("exc_info")) if "exc_info" in event else None
    names_request = "request_id" in event
    for key, value in event.items():
        kind = type(value)
        if kind is str:
            if len(value) > MOST_CHARS:
                event[key] = cut(value, _most_chars(key, names_request=names_request))
        elif kind not in _SHORT_TYPES and not (kind is int and -_MANY < value < _MANY):
            event[key] = bounded(value, _most_chars(key, names_request=names_request))
    if error is not None:
        event["exception"] = traceback_text(error)
    return event


def _most_chars(key: str, *, names_request: bool) -> int:
    return _OWN_TEXT_CHARS if key in _OWN_TEXTS and not names_request else MOST_CHARS


def _exception(given: object) -> BaseException | None:
    """Return the exception that an event names as structlog lets it: itself, a triple, True."""
    if isinstance(given, tuple):
        given = given[1]
    elif given and not isinstance(given, BaseException):
        given = sys.exc_info()[1]
    return given if isinstance(given, BaseException) else None


class _BoundedRenderer:
    """Makes an event a line, or a shorter one if it would be too long."""

    def __init__(self, render: Callable[[EventDict], bytes]) -> None:
        self._render = render

    def __call__(self, _: object, __: str, event: EventDict) -> bytes:
        line, most_bytes = self._render(event), _most_bytes(event)
        for chars in _NARROW_CHARS:
            if len(line) <= most_bytes:
                break
            line = self._render(_narrowed(event, chars))
        return line


def _most_bytes(event: EventDict) -> int:
    is_short = "request_id" in event and "exception" not in event
    return MOST_REQUEST_LINE_BYTES if is_short else MOST_LINE_BYTES


def _narrowed(event: EventDict, chars: int) -> EventDict:
    made = {
        key: value if key in _OWN_FIELDS else bounded(value, chars, _NARROW_VALUES)
        for key, value in event.items()
    }
    if "exception" in event:
        made["exception"] = cut_middle(event["exception"], _NARROW_TRACEBACK_CHARS)
    return made


def _json(event: EventDict) -> bytes:
    return json_line(event) + b"\n"


def _console() -> Callable[[EventDict], bytes]:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    renderer = structlog.dev.ConsoleRenderer(
        colors=is_terminal, exception_formatter=structlog.dev.plain_traceback
    )
    default = renderer.columns[0].formatter
    assert isinstance(default, structlog.dev.KeyValueColumnFormatter)  # noqa: S101 - structlog's
    default.value_repr = _console_value

    def render(event: EventDict) -> bytes:
        shown = dict(event)  # the renderer empties it
        for key in _UNQUOTED & shown.keys():
            lines = str(shown[key]).split("\n")
            shown[key] = "\n".join(escaped(line) for line in lines)
        return renderer(None, "", shown).encode(errors="backslashreplace") + b"\n"

    return render


def _console_value(value: object) -> str:
    """Return a field as structlog's console does, and quoted where it would act on the terminal."""
    if isinstance(value, str) and value.isprintable() and not _QUOTED.intersection(value):
        return value
    return repr(value)


class CanonicalLine:
    """Writes one event at level info with the fields of a Struct, the same line as structlog's.

    The configuration is that of the time it is made, as for a logger's first line. Fields that a
    client chooses are the caller's to cut, each by itself; the line is bounded here.
    """

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
                if not is_safe(line):
                    line = escaped_json(line.decode())
                if len(line) <= _MOST_FIELDS_BYTES:
                    stamp = _ENCODER.encode(datetime.now(UTC))
                    self._direct.put(b"".join((line[:-1], self._tail, stamp, b"}\n")))
                    return
        self._log.info(self._event, **msgspec.to_builtins(fields))


# 3 us a line where the standard library's json takes 12 (20 fields).
_ENCODER = msgspec.json.Encoder(enc_hook=repr)
_MOST_FIELDS_BYTES = MOST_REQUEST_LINE_BYTES - 200
"""The rest is for event, level and time."""

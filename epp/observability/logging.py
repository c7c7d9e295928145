"""Structured logging, configured once at start-up.

Lines go through structlog, except the canonical line of each request: its fields are fixed, so they
are encoded directly (:class:`CanonicalLine`). The length of each string (:mod:`.bounded_text`) and
of each line is limited. A thread writes the lines (:mod:`.log_queue`).
"""

import atexit
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, cast

import msgspec
import structlog
from structlog.typing import BindableLogger, EventDict, Processor

from epp.observability.bounded_text import (
    MAX_CHARS,
    bounded,
    cut,
    cut_middle,
    escaped_json,
    frames_text,
    is_safe,
    json_line,
    traceback_text,
)
from epp.observability.console import console_renderer
from epp.observability.fault_limit import FaultLimit
from epp.observability.log_levels import ALL, LEVELS, LevelSwitch, LogLevel, switched
from epp.observability.log_queue import MAX_BYTES, FileLock, LogQueue
from epp.observability.standard_streams import (
    descriptor_of,
    flush_standard_streams,
    is_same_file,
    queue_standard_streams,
    restore_standard_streams,
)

LogFormat = Literal["json", "console"]

MAX_REQUEST_LINE_BYTES: Final = 4096
"""Maximum length of a line about a request, without a traceback."""
MAX_LINE_BYTES: Final = 16 << 10
FLUSH_SECONDS: Final = 2.0
"""How long the process waits for queued lines at exit."""

_OF_REQUESTS: Final = (
    "epp.config.plugin_states.",
    "epp.ext_proc.",
    "epp.flow_control.",
    "epp.observability.plugin_watch.",
    "epp.parsing.",
    "epp.request_control.",
    "epp.transport.",
    "epp_plugins.",
)
"""Packages whose exceptions may quote a request: their texts are not logged."""
_OWN_FIELDS = frozenset({"event", "level", "timestamp"})
_OWN_TEXT_CHARS: Final = 2048
_OWN_TEXTS = frozenset({"problem", "problems", "error", "message"})
"""Fields with messages for the operator; they may be long in lines that are not about a request."""
_NARROW_CHARS = (64, 16)
"""Field lengths to try, in this order, if a line is too long."""
_NARROW_VALUES: Final = 8
_NARROW_TRACEBACK_CHARS: Final = 1024

_SHORT_TYPES = frozenset({float, bool, type(None)})
_MANY: Final = 1 << 63

_STDOUT, _STDERR = 1, 2


class _Outputs(NamedTuple):
    """The queues behind the standard streams; the same one if both go to the same file."""

    output: LogQueue
    errors: LogQueue


_outputs: _Outputs | None = None
_faults: FaultLimit | None = None
_direct: LogQueue | None = None
"""Takes complete JSON lines; None while lines are not JSON, or not configured."""


def configure(
    *,
    level: LogLevel = "info",
    log_format: LogFormat = "json",
    queue_bytes: int = MAX_BYTES,
    standard_streams: bool = False,
    shared_lock: int | None = None,
) -> None:
    """Configure structlog for the process; lines go to standard output.

    Lines that cannot be written are dropped and counted; logging never raises.

    Args:
        level: Lowest level written, until :data:`~.log_levels.LEVELS` changes it.
        log_format: One JSON object per line for production, coloured lines for a terminal.
        queue_bytes: Limit on queued bytes; lines beyond it are dropped.
        standard_streams: Whether to write standard output and error through the queues, too.
        shared_lock: Descriptor of a file that all processes lock which write to the same output,
            so that their lines stay whole; None for a process of its own.
    """
    global _direct, _faults, _outputs  # noqa: PLW0603 - set with structlog's configuration, global like it
    render = _json if log_format == "json" else console_renderer()
    _outputs = outputs = _new_outputs(render, queue_bytes, shared_lock)
    _direct = outputs.output if log_format == "json" else None
    if _faults is not None:
        _faults.close()
    # No contextvars: all requests share one context on the straight path. Ids are passed.
    rest: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        bound_event,
        _BoundedRenderer(render),
    ]
    _faults = FaultLimit(rest)
    structlog.configure(
        cache_logger_on_first_use=True,
        wrapper_class=cast("type[BindableLogger]", switched),
        logger_factory=lambda name="": _QueueLogger(outputs.output, name),
        processors=[_faults, *rest],
    )
    LEVELS.start(level)
    if standard_streams:
        queue_standard_streams(*outputs)


def log_queues() -> Sequence[LogQueue]:
    """Return the queues in use, each once; none before logging is configured."""
    return list(dict.fromkeys(_outputs or ()))


def _new_outputs(
    render: Callable[[EventDict], bytes], queue_bytes: int, shared_lock: int | None
) -> _Outputs:
    def notice(count: int) -> bytes:
        stamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        facts = {"count": count, "event": "log lines dropped", "level": "warning"}
        return render({**facts, "timestamp": stamp})

    output, errors = descriptor_of(sys.stdout, _STDOUT), descriptor_of(sys.stderr, _STDERR)
    lock = None if shared_lock is None else FileLock(shared_lock)
    first = LogQueue(output, notice, max_bytes=queue_bytes, lock=lock)
    if is_same_file(output, errors):
        return _Outputs(first, first)
    return _Outputs(first, LogQueue(errors, notice, max_bytes=queue_bytes, lock=lock))


@atexit.register
def _end() -> None:
    """Flush the queues, with a time limit; later lines are written directly."""
    flush_standard_streams()
    if _faults is not None:
        _faults.close()
    deadline = time.monotonic() + FLUSH_SECONDS
    is_written = [each.flush(max(0.0, deadline - time.monotonic())) for each in log_queues()]
    if all(is_written):
        restore_standard_streams()


class _QueueLogger:
    """The logger to which structlog hands its lines."""

    def __init__(self, queue: LogQueue, name: str) -> None:
        self.name = name
        self._put = queue.put

    def msg(self, line: bytes) -> None:
        self._put(line)

    debug = info = warning = error = critical = msg


def bound_event(logger: object, __: str, event: EventDict) -> EventDict:
    """Cut the fields of an event, its traceback included; a processor of structlog."""
    error = _exception(event.pop("exc_info")) if "exc_info" in event else None
    names_request = "request_id" in event
    holds_request = names_request or f"{getattr(logger, 'name', '')}.".startswith(_OF_REQUESTS)
    for key, value in event.items():
        kind = type(value)
        if kind is str:
            if len(value) > MAX_CHARS:
                event[key] = cut(value, _max_chars(key, names_request=names_request))
        elif kind not in _SHORT_TYPES and not (kind is int and -_MANY < value < _MANY):
            event[key] = bounded(value, _max_chars(key, names_request=names_request))
    if error is not None:
        event["exception"] = frames_text(error) if holds_request else traceback_text(error)
    return event


def _max_chars(key: str, *, names_request: bool) -> int:
    return _OWN_TEXT_CHARS if key in _OWN_TEXTS and not names_request else MAX_CHARS


def _exception(given: object) -> BaseException | None:
    """Return the exception of an event, in any of structlog's forms: itself, a triple, True."""
    if isinstance(given, tuple):
        given = given[1]
    elif given and not isinstance(given, BaseException):
        given = sys.exc_info()[1]
    return given if isinstance(given, BaseException) else None


class _BoundedRenderer:
    """Renders an event as a line of limited length."""

    def __init__(self, render: Callable[[EventDict], bytes]) -> None:
        self._render = render

    def __call__(self, _: object, __: str, event: EventDict) -> bytes:
        line, max_bytes = self._render(event), _max_bytes(event)
        for chars in _NARROW_CHARS:
            if len(line) <= max_bytes:
                break
            line = self._render(_narrowed(event, chars))
        return line


def _max_bytes(event: EventDict) -> int:
    is_short = "request_id" in event and "exception" not in event
    return MAX_REQUEST_LINE_BYTES if is_short else MAX_LINE_BYTES


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


class CanonicalLine(LevelSwitch):
    """Writes one event at level info with the fields of a Struct, in the same format as structlog.

    It uses the log format at its construction. The caller must truncate fields from clients; the
    length of the line is limited here.

    Args:
        event: The event.
        logger: Name of the logger.
        constants: Fields of all its lines.
    """

    __slots__ = ("_constants", "_direct", "_event", "_tail")

    def __init__(self, event: str, *, logger: str = ALL, **constants: str) -> None:
        super().__init__(logger, "info")
        self._event = event
        self._constants = constants
        self._direct = _direct
        after = {**constants, "event": event, "level": "info"}
        self._tail = b"," + _ENCODER.encode(after)[1:-1] + b',"timestamp":'

    def write(self, fields: msgspec.Struct) -> None:
        """Write a line; ``fields`` has at least one."""
        if self._direct is not None:
            try:
                line = _ENCODER.encode(fields)
            except UnicodeEncodeError:
                pass  # structlog handles it
            else:
                if not is_safe(line):
                    line = escaped_json(line.decode())
                if len(line) <= _MAX_FIELDS_BYTES:
                    stamp = _ENCODER.encode(datetime.now(UTC))
                    self._direct.put(b"".join((line[:-1], self._tail, stamp, b"}\n")))
                    return
        self.log.info(self._event, **msgspec.to_builtins(fields), **self._constants)


# 3 us a line where the standard library's json takes 12 (20 fields).
_ENCODER = msgspec.json.Encoder(enc_hook=repr)
_MAX_FIELDS_BYTES = MAX_REQUEST_LINE_BYTES - 200
"""The rest is for event, level and time."""

"""Compact log lines for a terminal; the JSON format has every field.

The canonical line of a request shows only the most important fields. Other lines omit only the
date.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
from structlog.typing import EventDict

from epp.observability.bounded_text import escaped

_QUOTED = frozenset(" =\"'")
"""Characters that make structlog's console quote a field."""
_UNQUOTED = frozenset({"event", "exception", "stack"})
"""What it writes as it is."""
_OWN = ("timestamp", "level", "event", "exception", "stack")
_TIME_OF_DAY = slice(11, 23)
"""Of an ISO timestamp: to the millisecond."""

_CANONICAL = frozenset({"request finished", "request refused"})
"""Events of the lines that are shortened."""

_DEFAULT_NAMESPACE: Final = "default/"
_MAX_ID_CHARS: Final = 16
_SHORT_ID_CHARS: Final = 8
"""Of an id that is longer: enough to find the request in the log of another process."""
_FRESH_SECONDS: Final = 0.2
"""Age of an endpoint's metrics up to which it is not shown."""
_FEW_SECONDS: Final = 0.01
"""Times below have two digits, times above whole milliseconds."""
_USUAL_OUTCOMES = frozenset({"ended", "completed"})
"""Their status says it."""


def console_renderer() -> Callable[[EventDict], bytes]:
    """Return the structlog renderer for a terminal.

    It uses colours if standard output is a terminal and the environment does not set ``NO_COLOR``.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    renderer = structlog.dev.ConsoleRenderer(
        colors=is_terminal and not os.environ.get("NO_COLOR"),
        sort_keys=False,
        pad_event_to=0,
        pad_level=False,
        exception_formatter=structlog.dev.plain_traceback,
    )
    default = renderer.columns[0].formatter
    assert isinstance(default, structlog.dev.KeyValueColumnFormatter)  # noqa: S101 - structlog's
    default.value_repr = _quoted

    def render(event: EventDict) -> bytes:
        is_canonical = event.get("event") in _CANONICAL and "exception" not in event
        shown = _of_request(event) if is_canonical else dict(event)
        if isinstance(stamp := shown.get("timestamp"), str):
            shown["timestamp"] = stamp[_TIME_OF_DAY]
        for key in _UNQUOTED & shown.keys():
            lines = str(shown[key]).split("\n")
            shown[key] = "\n".join(escaped(line) for line in lines)
        return renderer(None, "", shown).encode(errors="backslashreplace") + b"\n"

    return render


def _of_request(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request's line with short names, its id last."""
    rest = {key: value for key, value in event.items() if value is not None}
    shown = {key: rest.pop(key) for key in _OWN if key in rest}
    request_id = _short_id(rest.pop("request_id", None))
    if "endpoint" in rest:
        rest.pop("address", None)
    if rest.get("target_model") == rest.get("model"):
        rest.pop("target_model", None)
    if rest.get("outcome") in _USUAL_OUTCOMES:
        del rest["outcome"]
    if not rest.get("stream"):
        rest.pop("stream", None)
    if rest.get("metrics_age_seconds", 0.0) < _FRESH_SECONDS:
        rest.pop("metrics_age_seconds", None)
    rest.pop("body_bytes", None)
    shown.pop("level", None)  # always info
    shown |= {key: rest.pop(key) for key in ("status", "endpoint", "model") if key in rest}
    if isinstance(endpoint := shown.get("endpoint"), str):
        shown["endpoint"] = endpoint.removeprefix(_DEFAULT_NAMESPACE)
    for key, value in rest.items():
        name, text = _short(key, value)
        shown[name] = text
    return shown if request_id is None else shown | {"id": request_id}


def _short(key: str, value: object) -> tuple[str, object]:
    if not isinstance(value, int | float):
        return key, value
    match key:
        case "waiting_requests" | "running_requests":
            return key.removesuffix("_requests"), f"{value:.0f}"
        case "kv_cache_usage":
            return "kv", f"{value:.0%}"
        case "metrics_age_seconds":
            return "age", _time(value)
    if key.endswith("_seconds"):
        return key.removesuffix("_seconds"), _time(value)
    return key, value


def _time(seconds: float) -> str:
    if abs(seconds) < _FEW_SECONDS:
        return f"{seconds * 1000:.2g}ms"
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s"


def _short_id(request_id: object) -> object:
    if not isinstance(request_id, str) or len(request_id) <= _MAX_ID_CHARS:
        return request_id
    return request_id[:_SHORT_ID_CHARS]


def _quoted(value: object) -> str:
    """Return a field as structlog's console does, and quoted where it would act on the terminal."""
    if isinstance(value, str) and value.isprintable() and not _QUOTED.intersection(value):
        return value
    return repr(value)

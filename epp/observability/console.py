"""Compact log lines for a terminal; the JSON format has every field.

The canonical line of a request shows the most important fields (:mod:`.console_request`). Other
lines omit only the date.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from structlog.typing import EventDict

from epp.observability.bounded_text import escaped
from epp.observability.console_request import short_fields

_QUOTED = frozenset(" =\"'")
"""Characters that make structlog's console quote a field."""
_UNQUOTED = frozenset({"event", "exception", "stack"})
"""Fields that it never quotes."""
_OWN = ("timestamp", "level", "event", "exception", "stack")
_TIME_OF_DAY = slice(11, 23)
"""The part of an ISO timestamp that is shown, from the hour to the millisecond."""

_CANONICAL = frozenset({"request finished", "request refused"})
"""Events of the lines that are shortened."""


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
    """Return an event with the short fields of its request; its level is always info."""
    own = {key: event[key] for key in _OWN if key in event and key != "level"}
    fields = {key: value for key, value in event.items() if key not in _OWN}
    return {**own, **short_fields(fields)}


def _quoted(value: object) -> str:
    """Format a field like structlog's console, but quote text that would control the terminal."""
    if isinstance(value, str) and value.isprintable() and not _QUOTED.intersection(value):
        return value
    return repr(value)

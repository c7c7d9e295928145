"""The debug page with the states of plugins, at the path and in the form of the Go EPP."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog

from epp.observability import bounded
from epp.scheduling import PLUGIN_FAULTS, Plugin, without_request

PATH: Final = "plugins/state"
"""Path below ``/debug/``."""
SESSION_PLUGIN: Final = "session-plugin"
"""Type of session plugins, and the beginning of their keys."""
MAX_VALUES: Final = 1000
"""Values of one plugin's state; more are left out."""
_MAX_CHARS: Final = 256
_NO_STATE: Final = "plugin does not support state collection"

_log = structlog.get_logger(__name__)


class SessionPluginView(Protocol):
    """The part of a session plugin that the page uses."""

    name: str

    def dump_state(self) -> Mapping[str, object] | None:
        """Return the plugin's state; None if it has none."""


def plugin_states(
    plugins: Mapping[str, Plugin], sessions: Iterable[SessionPluginView] = ()
) -> dict[str, object]:
    """Return the page.

    Args:
        plugins: The plugins by name.
        sessions: The session plugins; they may have the names of plugins.
    """
    lines = {name: _line(plugin, plugin.type) for name, plugin in sorted(plugins.items())}
    for each in sessions:
        lines[f"{SESSION_PLUGIN}/{each.name}"] = _line(each, SESSION_PLUGIN)
    return {
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "plugins": lines,
    }


def _line(plugin: Plugin | SessionPluginView, type_name: str) -> dict[str, object]:
    line: dict[str, object] = {"name": plugin.name, "type": type_name}
    try:
        state = plugin.dump_state()
    except PLUGIN_FAULTS as error:
        _log.exception("plugin failed to dump its state", plugin=plugin.name)
        return line | {"message": f"the plugin failed to dump its state: {without_request(error)}"}
    if state is None:
        return line | {"message": _NO_STATE}
    return line | {"state": bounded(state, _MAX_CHARS, MAX_VALUES)}

"""The debug page of what plugins remember, at the Go EPP's path and in its form."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import structlog

from epp.observability import bounded
from epp.scheduling import PLUGIN_FAULTS, Plugin, without_request

PATH: Final = "plugins/state"
"""Path below ``/debug/``."""
MAX_VALUES: Final = 1000
"""Values of one plugin's state; more are left out."""
_MAX_CHARS: Final = 256
_NO_STATE: Final = "plugin does not support state collection"

_log = structlog.get_logger(__name__)


def plugin_states(plugins: Mapping[str, Plugin]) -> dict[str, object]:
    """Return the page of these plugins, by name."""
    return {
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "plugins": {name: _line(plugin) for name, plugin in sorted(plugins.items())},
    }


def _line(plugin: Plugin) -> dict[str, object]:
    line: dict[str, object] = {"name": plugin.name, "type": plugin.type}
    try:
        state = plugin.dump_state()
    except PLUGIN_FAULTS as error:
        _log.exception("plugin failed to dump its state", plugin=plugin.name)
        return line | {"message": f"the plugin failed to dump its state: {without_request(error)}"}
    if state is None:
        return line | {"message": _NO_STATE}
    return line | {"state": bounded(state, _MAX_CHARS, MAX_VALUES)}

"""What session plugins raise: counted, and told once for each kind."""

from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from epp.observability.hot_metrics import Maker
from epp.observability.metrics import OTHER
from epp.scheduling import described

MAX_PLACES: Final = 1000
"""Names of plugins and of what they provide are theirs; further pairs count as ``other``."""

_log = structlog.get_logger(__name__)


class SessionFaults:
    """Counts and logs what session plugins raise; :meth:`failed` is a dispatcher's ``fault``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures = Maker(registry).counter(
            "session_plugin_failures_total",
            "Exceptions of session plugins; extension_point is on_session_open, predicate, …",
            ("plugin", "extension_point"),
        )
        self._kinds: dict[tuple[str, str], set[str]] = {}

    def failed(self, plugin: str, extension_point: str, error: Exception) -> None:
        """Count a failure; the first of its kind in its place is logged with its traceback."""
        place = (plugin, extension_point)
        if place not in self._kinds and len(self._kinds) >= MAX_PLACES:
            place = (OTHER, OTHER)
        self._failures.labels(*place).inc()
        kinds = self._kinds.setdefault(place, set())
        kind = type(error).__name__
        if kind not in kinds:
            kinds.add(kind)
            _log.error(
                "session plugin failed, the session goes on",
                plugin=plugin,
                extension_point=extension_point,
                error=described(error),
                exc_info=error,
            )

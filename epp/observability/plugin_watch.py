"""Counts and times plugin calls, and logs their failures."""

from collections.abc import Callable
from math import inf

import structlog

from epp.observability.metrics import Metrics
from epp.scheduling import Plugin, without_request

_log = structlog.get_logger(__name__)

WrapTimer = Callable[[str, Plugin, Callable[[float], None]], Callable[[float], None]]
"""Takes an extension point, a plugin and its timer; returns the timer to use instead."""


class PluginWatch:
    """Counts and times plugin calls (a ``PluginObserver``).

    The gauge of disabled plugins covers only the current graph, without shadow profiles.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        slow_call_seconds: float = 0.05,
        recorded: WrapTimer | None = None,
    ) -> None:
        """Create a watch.

        Args:
            metrics: Receives durations and failures.
            slow_call_seconds: Calls that take longer are counted.
            recorded: Creates timers that also record the calls of traced requests; None without
                tracing.
        """
        self._metrics = metrics
        self._recorded = recorded
        self._slow_call_seconds = slow_call_seconds
        self._logged: set[tuple[str, ...]] = set()
        self._decides = True

    def apart(self) -> "PluginWatch":
        """Return the watch for shadow profiles, which records no call and keeps the gauge."""
        watch = PluginWatch(self._metrics, slow_call_seconds=self._slow_call_seconds)
        watch._logged = self._logged  # a fault of both is logged once
        watch.retire()
        return watch

    def retire(self) -> None:
        """Stop changing the gauge: another graph is in use."""
        self._decides = False

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        """Return a function that observes the seconds of a call."""
        labels = (extension_point, plugin.type, plugin.name)
        overran = self._metrics.plugin_overruns.labels(*labels).inc
        # An awaited call blocks no other request, and has its own time limit.
        limit = inf if extension_point == "AsyncDataProducer" else self._slow_call_seconds
        observe = self._metrics.plugin_duration.labels(*labels).observer(limit, overran)
        return (
            observe if self._recorded is None else self._recorded(extension_point, plugin, observe)
        )

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        """Count a failure; the first of its kind is logged with its traceback."""
        labels = (extension_point, plugin.type, plugin.name)
        self._metrics.plugin_failures.labels(*labels).inc()
        if self._is_first(plugin.name, type(error).__name__, extension_point):
            _log.error(
                "plugin failed, the request goes on without its result",
                plugin=plugin.name,
                plugin_type=plugin.type,
                extension_point=extension_point,
                error=without_request(error),
                exc_info=error,
            )

    def plugin_disabled(self, plugin: Plugin, failures: int) -> None:
        """Log that a plugin was disabled, as an error if that changes decisions."""
        facts = {
            "plugin": plugin.name,
            "plugin_type": plugin.type,
            "failures_in_a_row": failures,
        }
        if not self._decides:
            _log.warning("plugin disabled in a shadow profile or a replaced configuration", **facts)
            return
        self._metrics.plugins_disabled.labels(plugin.type, plugin.name).set(1)
        _log.critical("plugin disabled until the next reload of the configuration", **facts)

    def scores_corrected(self, plugin: Plugin, outside: int, not_numbers: int) -> None:
        """Count scores that had to be corrected; the first time is logged."""
        for kind, count in (("outside", outside), ("nan", not_numbers)):
            if count:
                self._metrics.scores_corrected.labels(plugin.type, plugin.name, kind).add(count)
                if self._is_first(plugin.name, kind, "Scorer"):
                    _log.warning(
                        "scores corrected", plugin=plugin.name, plugin_type=plugin.type, kind=kind
                    )

    def _is_first(self, *fact: str) -> bool:
        if fact in self._logged:
            return False
        self._logged.add(fact)
        return True

"""The page ``/debug/plugins``: the cost and the failures of each plugin's calls."""

from collections.abc import Callable
from typing import Final

import msgspec

from epp.admin.live.traffic import quantile
from epp.config import PluginGraph
from epp.observability import Metrics

PATH: Final = "plugins"

_P99: Final = 0.99


class PluginLine(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin at one extension point."""

    name: str
    type: str
    extension_point: str
    calls: int
    seconds: float
    """Total time of all calls."""
    mean_seconds: float | None
    """Mean time of a call; None without calls."""
    p99_seconds: float | None
    """99th percentile, interpolated within a bucket of the metric; None without calls."""
    is_above_p99: bool
    """Whether the 99th percentile exceeds the last bucket, and so exceeds ``p99_seconds``."""
    overruns: int
    """Calls that took longer than ``extensions.guardRails.slowCallMs``."""
    failures: int
    disabled: bool
    """Whether it failed too often in a row and is not called until the next reload."""


class PluginsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Plugins of the configuration in use, the most expensive first."""

    plugins: list[PluginLine]


class PluginsView:
    """Shows the plugins to operators.

    Args:
        metrics: Metrics of the pool.
        graph: Returns the plugin graph in use.
    """

    def __init__(self, metrics: Metrics, graph: Callable[[], PluginGraph]) -> None:
        self._metrics = metrics
        self._graph = graph

    def page(self) -> PluginsPage:
        """Return the current page."""
        metrics, used = self._metrics, self._graph().plugins
        failures = {labels: child.value for labels, child in metrics.plugin_failures.children}
        overruns = {labels: child.value for labels, child in metrics.plugin_overruns.children}
        disabled = {labels[1] for labels, child in metrics.plugins_disabled.children if child.value}
        lines = []
        for labels, child in metrics.plugin_duration.children:
            point, kind, name = labels
            if name not in used:
                continue  # the plugin is not in the current configuration
            counts, calls = child.counts(), child.total
            p99 = quantile(child.bounds, counts, _P99)
            lines.append(
                PluginLine(
                    name=name,
                    type=kind,
                    extension_point=point,
                    calls=calls,
                    seconds=round(child.sum, 6),
                    mean_seconds=child.sum / calls if calls else None,
                    p99_seconds=p99,
                    is_above_p99=counts[-1] > calls * (1 - _P99),
                    overruns=int(overruns.get(labels, 0)),
                    failures=int(failures.get(labels, 0)),
                    disabled=name in disabled,
                )
            )
        lines.sort(key=lambda line: (-line.seconds, line.name, line.extension_point))
        return PluginsPage(plugins=lines)

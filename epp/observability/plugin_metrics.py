"""Metrics that plugins declare: counters, histograms, and gauges read through callbacks.

Counters and histograms outlive the plugin instance, as Prometheus expects; gauges end with it.
Instances of one type, even before and after a reload, share a metric and differ in ``plugin_name``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any
from weakref import WeakMethod

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.observability.deprecated_metrics import Mirror, former_name, mirror_of, mirrored
from epp.observability.known_names import OTHER, Standing
from epp.observability.metric_children import Counter, Histogram
from epp.observability.metric_families import Family
from epp.observability.page_budget import PageBudget
from epp.observability.plugins import PluginCounter, PluginHistogram, PluginLabels
from epp.scheduling import Plugin

MAX_COUNTED_SETS = 1000
"""Label sets per counter; values may come from clients, so further ones count as ``other``."""
MAX_OWN_SETS = 20
"""Label sets of a counter that are exempt from the budget: most labels have few values."""
MAX_READ_SETS = 1000
"""Values per gauge and plugin; further ones are left out."""
MAX_VALUE_CHARS = 256

_PREFIX = "llm_d_epp_"
_PLUGIN_LABELS = ("plugin_type", "plugin_name")

_log = structlog.get_logger(__name__)

_Values = Mapping[tuple[str, ...], float]
_Read = WeakMethod[Callable[[], _Values]]


@dataclass(slots=True)
class _Gauge:
    documentation: str
    labels: tuple[str, ...]
    plugin_labels: PluginLabels
    reads: dict[tuple[str, str], _Read] = field(default_factory=dict)
    """By type and name of the plugin."""

    @property
    def names_plugins(self) -> bool:
        """Whether type and name of the plugin are among the labels."""
        return self.plugin_labels == "always" or (
            self.plugin_labels == "several" and len(self.reads) > 1
        )


class PluginMetricsCollector(Collector):
    """Every metric of plugins; implements ``PluginMetrics``.

    Args:
        budget: The budget of the page; by default one of its own.
        has_former_names: Whether to export metrics under their former names, too.
    """

    def __init__(self, budget: PageBudget | None = None, *, has_former_names: bool = False) -> None:
        self._has_former_names = has_former_names
        self._budget = budget or PageBudget(lambda: self.page_bytes)
        self._counters: dict[str, tuple[tuple[str, ...], Family[Counter]]] = {}
        self._histograms: dict[str, tuple[tuple[float, ...], Family[Histogram]]] = {}
        """With their buckets."""
        self._families: tuple[Family[Any], ...] = ()
        """All counters and histograms, in the order of their declaration."""
        self._mirrors: dict[Family[Any], Mirror] = {}
        self._of_plugins: dict[tuple[str, str, str], _PluginCounter] = {}
        """By name of the metric, type and name of the plugin: after a reload, the new instance
        continues with the label sets, and the space on the page, of the old one."""
        self._gauges: dict[str, _Gauge] = {}
        self._failed: set[tuple[str, str]] = set()

    def counter(
        self, plugin: Plugin, name: str, documentation: str, labels: Sequence[str] = ()
    ) -> PluginCounter:
        """Return a counter of ``plugin``; see ``PluginMetrics``.

        Raises:
            ValueError: Another metric has that name.
        """
        wanted = tuple(labels)
        known = self._counters.get(name)
        self._check_name(name, self._counters, is_same=known is None or known[0] == wanted)
        if known is None:
            family = Family(
                "counter", _PREFIX + name, documentation, (*wanted, *_PLUGIN_LABELS), Counter
            )
            known = self._counters[name] = (wanted, family)
            self._add(family)
        key = (name, plugin.type, plugin.name)
        found = self._of_plugins.get(key)
        if found is None:
            found = _PluginCounter(known[1], len(wanted), key[1:], self._budget)
            self._of_plugins[key] = found
        return found

    def histogram(
        self, plugin: Plugin, name: str, documentation: str, bounds: Sequence[float]
    ) -> PluginHistogram:
        """Return a histogram of ``plugin``; see ``PluginMetrics``.

        Raises:
            ValueError: Another metric has that name.
        """
        wanted = tuple(bounds)
        known = self._histograms.get(name)
        self._check_name(name, self._histograms, is_same=known is None or known[0] == wanted)
        if known is None:
            family = Family(
                "histogram",
                _PREFIX + name,
                documentation,
                _PLUGIN_LABELS,
                partial(Histogram, wanted),
            )
            known = self._histograms[name] = (wanted, family)
            self._add(family)
        return known[1].labels(plugin.type, plugin.name)

    def gauge(
        self,
        plugin: Plugin,
        name: str,
        documentation: str,
        read: Callable[[], _Values],
        labels: Sequence[str] = (),
        *,
        plugin_labels: PluginLabels = "always",
    ) -> None:
        """Register a gauge that is read from ``plugin``; see ``PluginMetrics``.

        Raises:
            ValueError: Another metric has that name.
        """
        wanted = tuple(labels)
        known = self._gauges.get(name)
        self._check_name(name, self._gauges, is_same=known is None or known.labels == wanted)
        if known is None:
            known = self._gauges[name] = _Gauge(documentation, wanted, plugin_labels)
        known.reads[plugin.type, plugin.name] = WeakMethod(read)

    def _check_name(self, name: str, own: Mapping[str, Any], *, is_same: bool) -> None:
        """Refuse a name that another metric has.

        Args:
            name: The metric's name.
            own: The metrics of its kind.
            is_same: Whether the metric of that kind and name, if there is one, is declared alike.

        Raises:
            ValueError: A metric of another kind has the name, or it was declared differently.
        """
        kinds: tuple[Mapping[str, Any], ...] = (self._counters, self._histograms, self._gauges)
        if not is_same or any(name in each for each in kinds if each is not own):
            raise ValueError(
                f"metric {name!r} is declared already, of another kind or with other labels; give"
                " it another name"
            )

    @property
    def page_bytes(self) -> int:
        """Approximate length of the lines of all counters and histograms."""
        return sum([family.page_bytes for family in self._families])

    def collect(self) -> Iterable[Metric]:
        """Read everything; called in the thread of the metrics server."""
        for part in self.parts():
            yield from part.collect() if isinstance(part, Family | Mirror) else (part,)

    def parts(self) -> Iterable[Family[Any] | Mirror | Metric]:
        """Return all counters and histograms, then the values of all gauges; thread-safe."""
        for family in self._families:
            yield family
            if family in self._mirrors:
                yield self._mirrors[family]
        for name, gauge in list(self._gauges.items()):
            metric = self._read(name, gauge)
            if not metric.samples:
                continue
            yield metric
            if self._has_former_names and (former := former_name(metric.name, metric.type)):
                yield mirrored(metric, former)

    def _add(self, family: Family[Any]) -> None:
        if self._has_former_names and (mirror := mirror_of(family)):
            self._mirrors[family] = mirror
        self._families = (*self._families, family)

    def _read(self, name: str, gauge: _Gauge) -> Metric:
        names_plugins = gauge.names_plugins
        labels = [*gauge.labels, *_PLUGIN_LABELS] if names_plugins else gauge.labels
        family = GaugeMetricFamily(_PREFIX + name, gauge.documentation, labels=labels)
        for plugin, read in list(gauge.reads.items()):
            for values, value in self._values(name, plugin, read).items():
                family.add_metric([*values, *plugin] if names_plugins else values, value)
        return family

    def _values(self, name: str, plugin: tuple[str, str], read: _Read) -> _Values:
        method = read()
        if method is None:
            self._forget(name, plugin, read)
            return {}
        try:
            return _limited(method())
        except Exception:
            if plugin not in self._failed:
                self._failed.add(plugin)
                _log.exception("plugin failed to read its metric", metric=name, plugin=plugin[1])
            return {}

    def _forget(self, name: str, plugin: tuple[str, str], read: _Read) -> None:
        """Drop the gauge of a deleted plugin, unless another of that name has replaced it."""
        reads = self._gauges[name].reads
        if reads.get(plugin) is read:
            del reads[plugin]


class _PluginCounter:
    __slots__ = ("_bound", "_budget", "_claim", "_family", "_labels", "_plugin")

    def __init__(
        self,
        family: Family[Counter],
        labels: int,
        plugin: tuple[str, str],
        budget: PageBudget,
    ) -> None:
        self._family = family
        self._labels = labels
        self._plugin = plugin
        self._claim = budget.open(Standing.PROVEN)
        self._budget = budget
        self._bound: dict[tuple[str, ...], Counter] = {}

    def inc(self, *labels: str) -> None:
        """Count one; see ``PluginCounter``."""
        counter = self._bound.get(labels)
        if counter is None:
            counter = self._bind(labels)
        counter.inc()

    def add(self, count: int, *labels: str) -> None:
        """Count ``count``; see ``PluginCounter``."""
        counter = self._bound.get(labels)
        if counter is None:
            counter = self._bind(labels)
        counter.add(count)

    def _bind(self, labels: tuple[str, ...]) -> Counter:
        if len(labels) != self._labels:
            raise ValueError(f"the counter has {self._labels} labels, not {len(labels)}")
        if not self._has_room(labels):
            return self._family.labels(*(OTHER,) * self._labels, *self._plugin)
        counter = self._bound[labels] = self._family.labels(*labels, *self._plugin)
        return counter

    def _has_room(self, labels: tuple[str, ...]) -> bool:
        if len(self._bound) >= MAX_COUNTED_SETS or _is_too_long(labels):
            return False
        if len(self._bound) < MAX_OWN_SETS:
            return True
        if self._budget.is_full(self._claim.standing, is_detail=False):
            return False
        return self._budget.take(self._claim, self._family.cost(*labels, *self._plugin))


def _limited(values: _Values) -> _Values:
    """Return the values of a gauge, limited in number and label length."""
    copied = dict(values)
    if len(copied) <= MAX_READ_SETS and not any(map(_is_too_long, copied)):
        return copied
    short = ((labels, value) for labels, value in copied.items() if not _is_too_long(labels))
    return dict(islice(short, MAX_READ_SETS))


def _is_too_long(labels: tuple[str, ...]) -> bool:
    return any(len(str(value)) > MAX_VALUE_CHARS for value in labels)

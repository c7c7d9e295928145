"""Every metric that the code declares, without running an endpoint picker.

Collectors that read values at each scrape get empty state: a metric without samples still has its
name, type and labels. Plugins declare their metrics when they are built, with the parameters of the
example in their documentation.
"""

import inspect
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from prometheus_client.core import Metric

from epp.admin.decision_file import DecisionFileCollector
from epp.cli.plugin_docs import doc_and_example
from epp.config.registry import read_parameters
from epp.kubernetes.status import KubernetesStatus
from epp.observability import (
    CertificateCollector,
    ConfigMetrics,
    FlowCollector,
    FlowMetrics,
    LogCollector,
    LoopLag,
    Metrics,
    PluginCounter,
    PluginHistogram,
    PortCollector,
    RevocationMetrics,
    StreamMetrics,
    TransportCollector,
    register_process,
)
from epp.observability.metric_children import Histogram
from epp.observability.metric_families import Family
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginLabels
from epp.outlier_detection import OutlierDetector, OutlierSettings
from epp.replication import Replica, ReplicaCollector
from epp.scheduling import Plugin
from epp.timetable import Timetable
from epp.tracing.exporter import TracingCollector
from epp.workers import LinksCollector, SupervisorMetrics
from epp_plugins import PLUGINS

PREFIX: Final = "llm_d_epp_"
_PLUGIN_LABELS: Final = ("plugin_type", "plugin_name")
_PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "token-producer": {"vllm": {"url": "http://renderer:8000"}}
}
"""Parameters of plugins whose example declares no metric."""
_SERVICES: Final[Mapping[str, object]] = {
    "clock": time.monotonic,
    "rng": random.Random(0),
    "refer": lambda *_: None,
    "open_caller": lambda *_, **__: None,
    "open_grpc_caller": lambda *_, **__: None,
}
"""Services that plugins take besides their metrics; not used before a request arrives."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric."""

    name: str
    """Name on the page: that of a counter ends in ``_total``."""
    kind: str
    labels: tuple[str, ...]
    text: str
    """Its help."""
    bounds: tuple[float, ...] = ()
    """Upper bounds of the buckets of a histogram, without infinity."""
    plugins: tuple[str, ...] = ()
    """Types of the plugins that declare it."""


def declared_metrics() -> dict[str, Declared]:
    """Return all metrics by name."""
    found = {each.name: each for each in _own()}
    for plugin in PLUGINS:
        for each in _of_plugin(plugin):
            known = found.get(each.name)
            plugins = (*(known.plugins if known else ()), plugin.type)
            found[each.name] = Declared(
                each.name, each.kind, each.labels, each.text, each.bounds, plugins
            )
    return found


class _Nothing:
    """Empty state: every number is 0, every collection is empty."""

    bands: tuple[()] = ()
    max_requests = max_bytes = 1

    def __init__(self) -> None:
        self.refused = self.ended = self.held_back = self.broken_off = dict[str, int]()

    def saturation(self) -> Mapping[str, float]:
        return {}

    def stale_endpoints(self) -> Mapping[str, int]:
        return {}

    def __getattr__(self, name: str) -> int:
        return 0


def _own() -> Iterator[Declared]:
    metrics = Metrics()
    nothing: Any = _Nothing()
    registry = metrics.registry
    register_process(registry)
    LoopLag(registry, Timetable(time.monotonic))
    StreamMetrics(registry)
    RevocationMetrics(registry, "")
    FlowMetrics(metrics, "")
    ConfigMetrics(registry)
    metrics.watch_held_bytes(lambda: 0.0)
    metrics.watch_scrapes(dict)
    outliers = OutlierDetector(
        list,
        settings=OutlierSettings(),
        clock=time.monotonic,
        rng=random.Random(0),
        waiting=list,
    )
    metrics.watch_pool("", list, outliers=outliers)
    for read in (
        LogCollector(list),
        DecisionFileCollector(nothing),
        TracingCollector(nothing),
        ReplicaCollector(Replica("", nothing, lease_seconds=1.0)),
        PortCollector(dict),
        FlowCollector("", lambda: nothing),
        TransportCollector(lambda: nothing),
        CertificateCollector(lambda: 0.0, dict),
        KubernetesStatus("", list, time.monotonic, lease="lease"),
        LinksCollector(lambda: 0),
        SupervisorMetrics([]),
    ):
        registry.register(read)
    for collector in registry.collectors:
        if isinstance(collector, Family):
            yield _of_family(collector)
        else:
            yield from map(_of_metric, collector.collect())


def _of_family(family: Family[Any]) -> Declared:
    (metric,) = family.describe()
    child = family.like(family.name, "", ()).labels()
    bounds = [
        float(own[0][1])
        for suffix, own, _ in (child.samples() if isinstance(child, Histogram) else ())
        if suffix == "_bucket"
    ]
    return Declared(
        _shown(family.name, family.kind),
        family.kind,
        family.label_names,
        metric.documentation,
        tuple(bounds[:-1]),
    )


def _of_metric(metric: Metric) -> Declared:
    labels = tuple(getattr(metric, "_labelnames", ()))  # it has no public name for them
    return Declared(_shown(metric.name, metric.type), metric.type, labels, metric.documentation)


def _shown(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


@dataclass(slots=True)
class _Recorder:
    """Records the metrics that plugins declare; a ``PluginMetrics``."""

    declared: list[Declared] = field(default_factory=list)

    def counter(
        self, plugin: Plugin, name: str, documentation: str, labels: Sequence[str] = ()
    ) -> PluginCounter:
        self._add("counter", name, documentation, (*labels, *_PLUGIN_LABELS))
        return NO_PLUGIN_METRICS.counter(plugin, name, documentation, labels)

    def histogram(
        self, plugin: Plugin, name: str, documentation: str, bounds: Sequence[float]
    ) -> PluginHistogram:
        self._add("histogram", name, documentation, _PLUGIN_LABELS, bounds)
        return NO_PLUGIN_METRICS.histogram(plugin, name, documentation, bounds)

    def gauge(
        self,
        plugin: Plugin,
        name: str,
        documentation: str,
        read: Callable[[], Mapping[tuple[str, ...], float]],
        labels: Sequence[str] = (),
        *,
        plugin_labels: PluginLabels = "always",
    ) -> None:
        more = _PLUGIN_LABELS if plugin_labels == "always" else ()
        self._add("gauge", name, documentation, (*labels, *more))

    def _add(
        self, kind: str, name: str, text: str, labels: Iterable[str], bounds: Iterable[float] = ()
    ) -> None:
        self.declared.append(Declared(PREFIX + name, kind, tuple(labels), text, tuple(bounds)))


def _of_plugin(plugin: type[Plugin]) -> Sequence[Declared]:
    takes = inspect.signature(plugin).parameters
    recorder = _Recorder()
    if "metrics" in takes:
        _, example = doc_and_example(plugin.type, plugin)
        used = [each for each in yaml.safe_load(example)["plugins"] if each["type"] == plugin.type]
        parameters = _PARAMETERS.get(plugin.type) or used[0].get("parameters", {})
        params = read_parameters(plugin, parameters, "parameters").value
        services = {name: each for name, each in _SERVICES.items() if name in takes}
        make: Callable[..., object] = plugin
        make(plugin.type, params, metrics=recorder, **services)
    return recorder.declared

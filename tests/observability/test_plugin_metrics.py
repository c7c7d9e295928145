"""Metrics that plugins declare: names, labels, limits, and their removal."""

import gc
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from epp.observability import PluginMetricsCollector
from epp.observability.known_names import Standing
from epp.observability.page_budget import PageBudget
from epp.observability.plugin_metrics import MAX_COUNTED_SETS, MAX_VALUE_CHARS
from epp.observability.plugins import PluginLabels
from epp.scheduling import Plugin


class Gauging(Plugin):
    """Has a gauge and a counter."""

    type: ClassVar[str] = "gauging"

    def __init__(self, name: str, metrics: PluginMetricsCollector) -> None:
        self.name = name
        self.values: dict[tuple[str, ...], float] = {("a",): 1.0}
        metrics.gauge(self, "things_bytes", "Bytes of things.", self.read, ["kind"])
        self.counter = metrics.counter(self, "things_total", "Things.", ["kind"])

    def read(self) -> Mapping[tuple[str, ...], float]:
        return self.values


@pytest.fixture
def metrics() -> PluginMetricsCollector:
    return PluginMetricsCollector()


@pytest.fixture
def registry(metrics: PluginMetricsCollector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry


def lines(registry: CollectorRegistry) -> list[str]:
    text = generate_latest(registry).decode().splitlines()
    return [line for line in text if not line.startswith("#")]


def test_instances_share_a_metric_and_differ_by_name(
    metrics: PluginMetricsCollector, registry: CollectorRegistry
) -> None:
    first, second = Gauging("first", metrics), Gauging("second", metrics)
    first.counter.inc("x")
    first.counter.inc("x")
    second.counter.inc("y")
    second.values = {("b",): 2.5}
    labels = {name: f'plugin_name="{name}",plugin_type="gauging"' for name in ("first", "second")}
    assert lines(registry) == [
        f'llm_d_epp_things_total{{kind="x",{labels["first"]}}} 2.0',
        f'llm_d_epp_things_total{{kind="y",{labels["second"]}}} 1.0',
        f'llm_d_epp_things_bytes{{kind="a",{labels["first"]}}} 1.0',
        f'llm_d_epp_things_bytes{{kind="b",{labels["second"]}}} 2.5',
    ]


def test_gauge_ends_with_its_plugin_and_the_counter_goes_on(
    metrics: PluginMetricsCollector, registry: CollectorRegistry
) -> None:
    plugin = Gauging("first", metrics)
    plugin.counter.inc("x")
    del plugin
    gc.collect()
    (line,) = lines(registry)
    assert line.startswith('llm_d_epp_things_total{kind="x"')
    again = Gauging("first", metrics)
    again.counter.inc("x")
    assert [line.rpartition(" ")[2] for line in lines(registry)] == ["2.0", "1.0"]


def test_instance_of_after_a_reload_takes_the_place_of_the_one_before(
    metrics: PluginMetricsCollector, registry: CollectorRegistry
) -> None:
    before = Gauging("first", metrics)
    after = Gauging("first", metrics)
    after.values = {("a",): 7.0}
    assert [line.rpartition(" ")[2] for line in lines(registry)] == ["7.0"]
    del before
    gc.collect()
    assert [line.rpartition(" ")[2] for line in lines(registry)] == ["7.0"]


def test_values_from_clients_are_bounded(
    metrics: PluginMetricsCollector, registry: CollectorRegistry
) -> None:
    plugin = Gauging("first", metrics)
    plugin.values = {}
    plugin.counter.inc("x" * (MAX_VALUE_CHARS + 1))
    for number in range(MAX_COUNTED_SETS + 5):
        plugin.counter.inc(f"model-{number}")
    counted = lines(registry)
    assert len(counted) == MAX_COUNTED_SETS + 1
    (other,) = (line for line in counted if 'kind="other"' in line)
    assert other.endswith(" 6.0")


def test_values_from_clients_are_bounded_over_reloads() -> None:
    budget = PageBudget(lambda: 0)
    metrics = PluginMetricsCollector(budget)
    claimed = []
    for reload in range(3):
        plugin = Gauging("first", metrics)
        for value in range(MAX_COUNTED_SETS):
            plugin.counter.inc(f"{reload}-{value}")
        claimed.append(budget.claimed_bytes(Standing.PROVEN))
    registry = CollectorRegistry()
    registry.register(metrics)
    things = [line for line in lines(registry) if "things_total" in line]
    assert len(things) == MAX_COUNTED_SETS + 1
    assert claimed == claimed[:1] * 3


def test_a_histogram_goes_on_after_a_reload_and_differs_by_plugin(
    metrics: PluginMetricsCollector, registry: CollectorRegistry
) -> None:
    plugin = Gauging("first", metrics)
    for each in (plugin, Gauging("second", metrics), Gauging("first", metrics)):  # after a reload
        metrics.histogram(each, "part_ratio", "Parts.", (0.5, 1.0)).observe(0.75)
    labels = 'plugin_name="{}",plugin_type="gauging"'.format
    assert [line for line in lines(registry) if "_count" in line] == [
        f"llm_d_epp_part_ratio_count{{{labels('first')}}} 2.0",
        f"llm_d_epp_part_ratio_count{{{labels('second')}}} 1.0",
    ]
    assert f'llm_d_epp_part_ratio_bucket{{le="0.5",{labels("first")}}} 0.0' in lines(registry)
    for other in ((0.5,), (0.5, 2.0)):
        with pytest.raises(ValueError, match="'part_ratio' is declared already"):
            metrics.histogram(plugin, "part_ratio", "Others.", other)
    with pytest.raises(ValueError, match="'things_total' is declared already"):
        metrics.histogram(plugin, "things_total", "Others.", (1.0,))
    with pytest.raises(ValueError, match="'part_ratio' is declared already"):
        metrics.counter(plugin, "part_ratio", "Others.")
    with pytest.raises(ValueError, match="'part_ratio' is declared already"):
        metrics.gauge(plugin, "part_ratio", "Others.", plugin.read)


@pytest.mark.parametrize(
    ("plugin_labels", "alone", "together"),
    [("always", True, True), ("several", False, True), ("never", False, False)],
)
def test_labels_of_the_plugin_are_added_where_they_are_wanted(
    registry: CollectorRegistry,
    metrics: PluginMetricsCollector,
    plugin_labels: PluginLabels,
    *,
    alone: bool,
    together: bool,
) -> None:
    def has_plugin_labels() -> bool:
        (first, *_) = [line for line in lines(registry) if "more_things" in line]
        return "plugin_name" in first

    one, two = Gauging("one", metrics), Gauging("two", metrics)
    one.values, two.values = {("a",): 1.0}, {("b",): 1.0}
    gauge = partial(metrics.gauge, plugin_labels=plugin_labels)
    gauge(one, "more_things", "Things.", one.read, ["kind"])
    assert has_plugin_labels() == alone
    gauge(two, "more_things", "Things.", two.read, ["kind"])
    assert has_plugin_labels() == together


@pytest.mark.parametrize("labels", [[], ["kind", "more"], ["other"]])
def test_a_name_that_is_taken_is_refused(
    metrics: PluginMetricsCollector, labels: list[str]
) -> None:
    plugin = Gauging("first", metrics)
    with pytest.raises(ValueError, match="'things_total' is declared already"):
        metrics.counter(plugin, "things_total", "Others.", labels)
    with pytest.raises(ValueError, match="'things_bytes' is declared already"):
        metrics.gauge(plugin, "things_bytes", "Others.", plugin.read, labels)
    with pytest.raises(ValueError, match="'things_total' is declared already"):
        metrics.gauge(plugin, "things_total", "Others.", plugin.read, labels)
    with pytest.raises(ValueError, match="'things_bytes' is declared already"):
        metrics.counter(plugin, "things_bytes", "Others.", labels)


def test_refused_name_leaves_no_trace(
    metrics: PluginMetricsCollector, registry: CollectorRegistry
) -> None:
    plugin = Gauging("first", metrics)
    with pytest.raises(ValueError, match="is declared already"):
        metrics.gauge(plugin, "things_total", "Others.", plugin.read, ["kind"])
    assert len(lines(registry)) == 1


def test_reading_that_fails_costs_its_own_metric_and_is_reported_once(
    metrics: PluginMetricsCollector, registry: CollectorRegistry
) -> None:
    class Failing(Gauging):
        def read(self) -> Mapping[tuple[str, ...], float]:
            raise ZeroDivisionError("bug")

    failing, sound = Failing("failing", metrics), Gauging("sound", metrics)
    with capture_logs() as logged:
        pages = [lines(registry), lines(registry)]
    assert pages[0] == pages[1]
    assert [line for line in pages[0] if "failing" in line] == []
    assert len(pages[0]) == 1
    (line,) = logged
    assert (line["metric"], line["plugin"]) == ("things_bytes", "failing")
    assert (failing.name, sound.name) == ("failing", "sound")


def test_counter_wants_all_its_labels(metrics: PluginMetricsCollector) -> None:
    plugin = Gauging("first", metrics)
    with pytest.raises(ValueError, match="has 1 labels, not 2"):
        plugin.counter.inc("a", "b")

"""The sample autoscalers query existing metrics."""

import re
from typing import Any

import pytest
import yaml
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from epp.observability import FlowCollector, Metrics
from epp.testing import make_endpoint

from .harness import DEPLOY

POOL = "llama"


def documents(name: str) -> dict[str, Any]:
    """The objects of a file by their kind."""
    text = (DEPLOY / "autoscaling" / name).read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def keda() -> dict[str, Any]:
    (trigger,) = documents("keda.yaml")["ScaledObject"]["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    metadata: dict[str, Any] = trigger["metadata"]
    return metadata


def adapter_rule() -> dict[str, Any]:
    config = documents("hpa.yaml")["ConfigMap"]["data"]["config.yaml"]
    (rule,) = yaml.safe_load(config)["externalRules"]
    found: dict[str, Any] = rule
    return found


def queries() -> list[str]:
    rule = adapter_rule()
    return [keda()["query"], rule["metricsQuery"], rule["seriesQuery"]]


def series(*, endpoints: int) -> set[tuple[str, str, str]]:
    """Name, label and value of all that a page of a pool of that size says."""
    metrics = Metrics()
    metrics.watch_pool(POOL, lambda: [make_endpoint(str(n)) for n in range(endpoints)])
    metrics.registry.register(FlowCollector(POOL, lambda: None))
    return {
        (sample.name, label, value)
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for sample in family.samples
        for label, value in sample.labels.items()
    }


def selected(query: str) -> set[tuple[str, str, str]]:
    """Name, label and value of each selector."""
    found = set(re.findall(r'(\w+)\{(\w+)="(\w+)"\}', query))
    assert len(found) == query.count("{")
    return found


@pytest.mark.parametrize("query", queries(), ids=["KEDA", "adapter", "adapter's discovery"])
def test_a_pool_has_the_series_that_are_asked_for(query: str) -> None:
    assert selected(query)
    assert selected(query) <= series(endpoints=2)


@pytest.mark.parametrize("query", queries(), ids=["KEDA", "adapter", "adapter's discovery"])
def test_series_that_an_empty_pool_lacks_count_as_0(query: str) -> None:
    given = re.sub(r"\(sum\([^()]*\) or vector\(0\)\)", "0", query)
    assert selected(given)
    assert selected(given) <= series(endpoints=0)


def test_keda_starts_the_first_server_for_the_first_request() -> None:
    spec = documents("keda.yaml")["ScaledObject"]["spec"]
    assert (spec["minReplicaCount"], keda()["activationThreshold"]) == (0, "0")
    assert keda()["ignoreNullValues"] == "false"


def test_the_autoscaler_goes_by_the_metric_that_the_adapter_makes() -> None:
    (metric,) = documents("hpa.yaml")["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["type"] == "External"
    assert metric["external"]["metric"]["name"] == adapter_rule()["name"]["as"]
    assert adapter_rule()["resources"] == {"namespaced": False}


def test_both_scale_the_same_servers_at_the_same_load() -> None:
    spec = documents("hpa.yaml")["HorizontalPodAutoscaler"]["spec"]
    keda_spec = documents("keda.yaml")["ScaledObject"]["spec"]
    assert spec["scaleTargetRef"]["name"] == keda_spec["scaleTargetRef"]["name"]
    (metric,) = spec["metrics"]
    assert metric["external"]["target"]["averageValue"] == keda()["threshold"]

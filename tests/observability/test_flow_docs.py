"""The table of flow control's metrics in the operator's guide."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from epp.observability import (
    FlowCollector,
    FlowMetrics,
    Metrics,
    RevocationMetrics,
)

from .flow_harness import PREFIX, Queued, State, make_band, make_flow_request

METRICS_PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
GROUPS = {"flow": {"fairness_id", "priority"}, "models": {"model_name", "target_model_name"}}


def documented() -> dict[str, set[str]]:
    """The labels of each metric in the table."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|([^|]*)\|", METRICS_PAGE, re.M)
    return {
        name: {label for cell in re.findall(r"\w+", cells) for label in GROUPS.get(cell, {cell})}
        for names, cells in rows
        for name in re.findall(rf"\b{PREFIX}(\w+)", names)
        if name.startswith(("flow_control_", "session_plugin_"))
    }


def with_samples_of_all() -> CollectorRegistry:
    metrics = Metrics()
    flows = FlowMetrics(metrics, "pool")
    flows.enqueued(Queued(make_flow_request()), 0.0)
    revocations = RevocationMetrics(metrics.registry, "pool")
    revocations.issued(-1)
    revocations.ended("confirmed", 0.1)
    flows.plugin_failed("spot", "predicate")
    state = State({0: make_band()}, 10, 10, full={"effective": 0.0}, stale={"detector": 0})
    metrics.registry.register(FlowCollector("pool", lambda: state))
    return metrics.registry


def exported() -> dict[str, set[str]]:
    """The labels of each metric on the page that is of flow control."""
    general = {family.name for family in Metrics().registry.collect()}
    return {
        family.name.removeprefix(PREFIX) + ("_total" if family.type == "counter" else ""): {
            label for sample in family.samples for label in sample.labels if label != "le"
        }
        for family in with_samples_of_all().collect()
        if family.name not in general
    }


def test_every_metric_is_documented_with_its_labels() -> None:
    assert documented() == exported()

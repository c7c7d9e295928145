"""Metrics of evictions."""

import pytest
from prometheus_client import CollectorRegistry

from epp.observability import RevocationMetrics

from .flow_harness import kinds, samples

POOL = {"inference_pool": "pool"}
CONFIRMATION = "flow_control_revocation_confirmation_seconds"


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    revocations = RevocationMetrics(registry, "pool")
    for priority in (-1, -1, -5):
        revocations.issued(priority)
    revocations.ended("confirmed", 0.25)
    revocations.ended("confirmed", 0.0625)
    revocations.ended("timed_out", 10.0)
    revocations.reclaim(target=0.25, pending=0.125)
    return registry


def test_each_is_counted_when_issued_and_when_it_ends(registry: CollectorRegistry) -> None:
    assert samples(registry, "flow_control_revocations_issued_total") == [
        (POOL | {"priority": "-1"}, 2),
        (POOL | {"priority": "-5"}, 1),
    ]
    assert samples(registry, "flow_control_revocations_total") == [
        (POOL | {"outcome": "confirmed"}, 2),
        (POOL | {"outcome": "timed_out"}, 1),
    ]


def test_only_the_ends_that_were_seen_are_timed(registry: CollectorRegistry) -> None:
    assert samples(registry, f"{CONFIRMATION}_count") == [(POOL, 2)]
    assert samples(registry, f"{CONFIRMATION}_sum") == [(POOL, 0.3125)]
    bounds = [float(labels["le"]) for labels, _ in samples(registry, f"{CONFIRMATION}_bucket")]
    reference = "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10"
    assert bounds == [*map(float, reference.split()), float("inf")]


def test_what_is_to_be_reclaimed_and_on_its_way(registry: CollectorRegistry) -> None:
    assert samples(registry, "flow_control_reclaim_target") == [(POOL, 0.25)]
    assert samples(registry, "flow_control_pending_reclaim") == [(POOL, 0.125)]


def test_types_are_the_references(registry: CollectorRegistry) -> None:
    found = {n: k for n, k in kinds(registry).items() if not n.endswith("_bucket")}
    assert found == {
        "flow_control_revocations_issued_total": "counter",
        "flow_control_revocations_total": "counter",
        f"{CONFIRMATION}_count": "histogram",
        f"{CONFIRMATION}_sum": "histogram",
        "flow_control_reclaim_target": "gauge",
        "flow_control_pending_reclaim": "gauge",
    }

"""Flow control's metrics: the reference's names, labels and buckets, and removed flows."""

import pytest

from epp.flow_control.flows import Outcome
from epp.flow_control.interfaces import FlowObserver
from epp.observability import FlowMetrics, Metrics
from epp.observability.flow_metrics import MAX_PLACES
from epp.observability.known_names import MAX_NAME_CHARS

from .flow_harness import (
    Queued,
    flow_labels,
    kinds,
    make_flow,
    make_flow_request,
    samples,
)

WAITS = "flow_control_request_queue_duration_seconds"
TOTAL = "flow_control_requests_total"
FLOW = {"fairness_id", "priority"}
MODELS = {"model_name", "target_model_name"}
SCHEDULING = "1e-5 2e-5 5e-5 0.0001 0.0002 0.0005 0.001 0.002 0.005 0.01 0.02 0.05 0.1"


def make_metrics(max_page_bytes: int = 8_000_000) -> tuple[Metrics, FlowMetrics]:
    metrics = Metrics(max_page_bytes=max_page_bytes)
    return metrics, FlowMetrics(metrics, "pool")


def filled() -> Metrics:
    metrics, flows = make_metrics()
    queued = Queued(make_flow_request())
    flows.enqueued(queued, 0.001)
    flows.left(queued, Outcome.DISPATCHED, 0.1)
    flows.session_ended(0.001)
    return metrics


def test_it_is_what_flow_control_tells() -> None:
    metrics, flows = make_metrics()
    observer: FlowObserver = flows  # mypy compares the two
    observer.passed(make_flow_request())
    assert samples(metrics.registry, f"{WAITS}_count") == [
        (flow_labels() | {"outcome": "Dispatched"}, 1)
    ]


@pytest.mark.parametrize(
    ("name", "kind", "labels"),
    [
        (TOTAL, "counter", {"outcome", "priority", "inference_pool"}),
        (f"{WAITS}_count", "histogram", FLOW | MODELS | {"outcome", "inference_pool"}),
        (
            "flow_control_request_enqueue_duration_seconds_count",
            "histogram",
            FLOW | {"outcome"},
        ),
        ("flow_control_dispatch_cycle_duration_seconds_count", "histogram", set()),
        ("flow_control_queue_size", "gauge", FLOW | MODELS | {"inference_pool"}),
        ("flow_control_queue_bytes", "gauge", FLOW | MODELS | {"inference_pool"}),
    ],
)
def test_names_types_and_labels_are_the_references(name: str, kind: str, labels: set[str]) -> None:
    registry = filled().registry
    assert kinds(registry)[name] == kind
    assert [set(found) for found, _ in samples(registry, name)] == [labels]


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        (WAITS, ".0001 .0005 .001 .005 .01 .025 .05 .1 .25 .5 1 2.5 5 10 30 60"),
        ("flow_control_request_enqueue_duration_seconds", SCHEDULING),
        ("flow_control_dispatch_cycle_duration_seconds", SCHEDULING),
    ],
)
def test_buckets_include_those_of_the_reference(name: str, bounds: str) -> None:
    found = [float(labels["le"]) for labels, _ in samples(filled().registry, f"{name}_bucket")]
    assert found == [*map(float, bounds.split()), float("inf")]


def test_a_request_that_passes_has_waited_for_no_time() -> None:
    metrics, flows = make_metrics()
    for _ in range(3):
        flows.passed(make_flow_request(priority=-1))
    labels = flow_labels(priority="-1")
    dispatched = {"outcome": "Dispatched", "priority": "-1", "inference_pool": "pool"}
    assert samples(metrics.registry, TOTAL) == [(dispatched, 3)]
    assert samples(metrics.registry, f"{WAITS}_sum") == [(labels | {"outcome": "Dispatched"}, 0)]
    least = labels | {"outcome": "Dispatched", "le": "0.0001"}
    assert (least, 3) in samples(metrics.registry, f"{WAITS}_bucket")
    assert samples(metrics.registry, "flow_control_queue_size") == [(labels, 0)]


@pytest.mark.parametrize("outcome", [each for each in Outcome if each != Outcome.DISPATCHED])
def test_a_request_that_is_turned_away_counts_under_its_outcome(outcome: Outcome) -> None:
    metrics, flows = make_metrics()
    flows.rejected(make_flow_request(), outcome)
    totals = {
        labels["outcome"]: value for labels, value in samples(metrics.registry, TOTAL) if value
    }
    assert totals == {outcome.value: 1}
    waits = samples(metrics.registry, f"{WAITS}_count")
    assert [labels["outcome"] for labels, count in waits if count] == [outcome.value]


def test_what_waits_is_counted_until_it_has_left() -> None:
    metrics, flows = make_metrics()
    first = Queued(make_flow_request(body_bytes=300))
    second = Queued(make_flow_request(body_bytes=50))

    def gauges() -> list[float]:
        return [
            value
            for name in ("flow_control_queue_size", "flow_control_queue_bytes")
            for _, value in samples(metrics.registry, name)
        ]

    flows.enqueued(first, 0.125)
    flows.enqueued(second, 0.25)
    assert gauges() == [2, 350]
    flows.left(first, Outcome.EVICTED_TTL, 60.0)
    assert gauges() == [1, 50]
    flows.left(second, Outcome.DISPATCHED, 2.5)
    assert gauges() == [0, 0]
    sums = {labels["outcome"]: value for labels, value in samples(metrics.registry, f"{WAITS}_sum")}
    assert sums == {"EvictedTTL": 60, "Dispatched": 2.5}
    name = "flow_control_request_enqueue_duration_seconds"
    enqueued = {"fairness_id": "tenant", "priority": "0", "outcome": "NotYetFinalized"}
    assert samples(metrics.registry, f"{name}_count") == [(enqueued, 2)]
    assert samples(metrics.registry, f"{name}_sum") == [(enqueued, 0.375)]


def test_a_request_whose_model_changes_is_taken_off_where_it_was_added() -> None:
    metrics, flows = make_metrics()
    queued = Queued(make_flow_request())
    flows.enqueued(queued, 0.0)
    queued.request.target_model = "llama-lora"
    flows.left(queued, Outcome.DISPATCHED, 1.0)
    assert samples(metrics.registry, "flow_control_queue_size") == [(flow_labels(), 0)]


def test_a_flow_that_is_forgotten_leaves_the_totals_only() -> None:
    metrics, flows = make_metrics()
    flow = make_flow()
    for model in ("chat", "code"):
        queued = Queued(make_flow_request(model=model))
        flows.enqueued(queued, 0.0)
        flows.left(queued, Outcome.EVICTED_TTL, 1.0)
    flows.flow_removed(flow)
    names = [name for name in kinds(metrics.registry) if name.startswith("flow_control_")]
    assert [name for name in names if "dispatch_cycle" not in name] == [TOTAL]
    evicted = {"outcome": "EvictedTTL", "priority": "0", "inference_pool": "pool"}
    assert (evicted, 2) in samples(metrics.registry, TOTAL)


def test_a_flow_that_comes_back_counts_from_0() -> None:
    metrics, flows = make_metrics()
    flows.passed(make_flow_request())
    flows.flow_removed(make_flow())
    flows.passed(make_flow_request())
    labels = flow_labels() | {"outcome": "Dispatched"}
    assert samples(metrics.registry, f"{WAITS}_count") == [(labels, 1)]
    dispatched = {"outcome": "Dispatched", "priority": "0", "inference_pool": "pool"}
    assert samples(metrics.registry, TOTAL) == [(dispatched, 2)]


@pytest.mark.parametrize(
    ("fairness_id", "priority"),
    [("tenant", -1), ("neighbour", 0), ("never seen", 0)],
    ids=["its flow in another band", "another tenant", "a flow that was not reported"],
)
def test_other_flows_keep_their_series(fairness_id: str, priority: int) -> None:
    metrics, flows = make_metrics()
    for each in (("tenant", 0), ("tenant", -1), ("neighbour", 0)):
        flows.passed(make_flow_request(*each))
    flows.flow_removed(make_flow(fairness_id, priority))
    flows.passed(make_flow_request())
    assert (flow_labels() | {"outcome": "Dispatched"}, 2) in samples(
        metrics.registry, f"{WAITS}_count"
    )


def test_flows_without_room_are_other_until_one_is_forgotten() -> None:
    metrics, flows = make_metrics(max_page_bytes=200_000)
    metrics.names.prove("chat")
    metrics.names.prove("llama")
    for n in range(200):
        flows.passed(make_flow_request(f"flow-{n}"))
    kept = {
        labels["fairness_id"] for labels, _ in samples(metrics.registry, "flow_control_queue_size")
    }
    assert len(kept) < 150
    assert kept > {"flow-0", "flow-1", "other"}
    late = Queued(make_flow_request("late"))
    flows.enqueued(late, 0.0)
    for n in range(20):
        flows.flow_removed(make_flow(f"flow-{n}"))
    flows.passed(make_flow_request("late"))
    sizes = {
        labels["fairness_id"]: value
        for labels, value in samples(metrics.registry, "flow_control_queue_size")
    }
    assert sizes["other"] == 1, "it waits as what it was when it came"
    assert sizes["late"] == 0
    assert "flow-0" not in sizes
    flows.left(late, Outcome.DISPATCHED, 1.0)
    assert {value for _, value in samples(metrics.registry, "flow_control_queue_size")} == {0}


def test_every_request_is_counted_once_when_names_fold() -> None:
    metrics, flows = make_metrics(max_page_bytes=200_000)
    for n in range(20 * 20):
        flows.passed(make_flow_request(f"flow-{n // 20}", model=f"m{n % 20}"))
    counts = samples(metrics.registry, f"{WAITS}_count")
    assert len(counts) < 300
    assert sum(value for _, value in counts) == 400
    (total,) = samples(metrics.registry, TOTAL)
    assert total[1] == 400


@pytest.mark.parametrize("fairness_id", ["other", "f" * (MAX_NAME_CHARS + 1)])
def test_a_client_cannot_have_what_many_share_removed(fairness_id: str) -> None:
    metrics, flows = make_metrics()
    flows.passed(make_flow_request(fairness_id))
    flows.flow_removed(make_flow(fairness_id))
    flows.passed(make_flow_request(fairness_id))
    labels = flow_labels("other") | {"outcome": "Dispatched"}
    assert samples(metrics.registry, f"{WAITS}_count") == [(labels, 2)]


def test_failures_of_session_plugins_count_where_they_happened() -> None:
    metrics, flows = make_metrics()
    for point in ("predicate", "predicate", "on_session_open"):
        flows.plugin_failed("spot", point)
    assert samples(metrics.registry, "session_plugin_failures_total") == [
        ({"plugin": "spot", "extension_point": "predicate"}, 2),
        ({"plugin": "spot", "extension_point": "on_session_open"}, 1),
    ]


def test_session_plugins_are_timed_and_counted_like_all_plugins() -> None:
    metrics, flows = make_metrics()
    observe = flows.plugin_timer("spot", "predicate", 0.05)
    assert flows.plugin_timer("spot", "predicate", 0.05) is observe
    observe(0.000003)
    observe(0.06)
    flows.plugin_failed("spot", "predicate")
    labels = {"extension_point": "predicate", "plugin_type": "spot", "plugin_name": "spot"}
    for name, value in (
        ("plugin_duration_seconds_count", 2),
        ("plugin_failures_total", 1),
        ("plugin_overruns_total", 1),
    ):
        assert samples(metrics.registry, name) == [(labels, value)]


def test_places_of_failures_beyond_the_cap_are_other() -> None:
    metrics, flows = make_metrics()
    for n in range(MAX_PLACES + 5):
        flows.plugin_failed("amounts", f"amount-{n}")
    flows.plugin_failed("amounts", "amount-0")
    found = samples(metrics.registry, "session_plugin_failures_total")
    counts = {labels["extension_point"]: value for labels, value in found}
    assert len(counts) == MAX_PLACES + 1
    assert (counts["other"], counts["amount-0"]) == (5, 2)

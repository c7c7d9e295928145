"""Former names repeat the current values, cost nothing per request and share the page's budget."""

from typing import ClassVar

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_format

from epp.observability import Exposition, FlowMetrics, Metrics, PluginMetricsCollector
from epp.observability.deprecated_metrics import FORMER_NAMES
from epp.scheduling import Plugin
from epp.testing import make_endpoint, make_request

from .test_page_budget import send


class Indexing(Plugin):
    """Has metrics with former names."""

    type: ClassVar[str] = "indexing"

    def __init__(self, name: str) -> None:
        self.name = name

    def size(self) -> dict[tuple[str, ...], float]:
        """Return how much it holds."""
        return {(): 5.0}


INDEXING = (Indexing("one"), Indexing("two"))


def filled() -> Metrics:
    metrics = Metrics(has_former_names=True, clock=lambda: 5.0)
    FlowMetrics(metrics, "pool").passed(make_request(model="llama"))
    for fairness_id, priority in (("one", 0), ("two", 0), ("two", 1)):
        request = metrics.for_request("llama", "llama", fairness_id, priority)
        request.total.inc()
        request.running.inc()
        request.duration.observe(0.1)
        request.error("BadRequest")
    metrics.for_request("code", "code", "one", 0).duration.observe(2.0)
    metrics.attempts.succeeded("llama", make_endpoint("ns/pod", address="10.0.0.1:8000"))
    metrics.watch_pool(
        "pool", lambda: [make_endpoint("ns/pod", waiting_requests=3, requested_at=1.0)]
    )
    plugins = PluginMetricsCollector(metrics.budget, has_former_names=True)
    metrics.registry.register(plugins)
    for plugin in INDEXING:
        plugins.gauge(plugin, "prefix_indexer_size", "Size.", plugin.size)
        plugins.histogram(plugin, "prefix_indexer_hit_ratio", "Hits.", (0.0, 1.0)).observe(0.5)
        labels = ["decision_type", "model_name"]
        decisions = plugins.counter(plugin, "disagg_decision_total", "Decisions.", labels)
        decisions.inc("decode-only", "llama")
    return metrics


def page(metrics: Metrics, *names: str, openmetrics: bool = False) -> bytes:
    return b"".join(Exposition(metrics.registry).render(openmetrics=openmetrics, names=names))


LLAMA = 'model_name="llama",target_model_name="llama"'
CODE = 'model_name="code",target_model_name="code"'
CHOSEN = 'namespace="ns",pod_name="pod",port="8000",status="success",target_model_name="llama"'
WAITED = (
    'fairness_id="",inference_pool="pool",model_name="llama",outcome="Dispatched",priority="0",'
    'target_model_name="llama"'
)
DECIDED = 'decision_type="decode-only",model_name="llama"'
PRIORITY = 'model_name="llama",priority="{}",target_model_name="llama"'


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("inference_objective_request_total", PRIORITY.format(0), 2),
        ("inference_objective_request_total", PRIORITY.format(1), 1),
        ("inference_objective_request_error_total", f'error_code="BadRequest",{LLAMA}', 3),
        ("inference_objective_running_requests", 'model_name="llama"', 3),
        ("inference_objective_request_duration_seconds_count", LLAMA, 3),
        ("inference_objective_request_duration_seconds_bucket", f'le="0.1",{LLAMA}', 3),
        ("inference_objective_request_duration_seconds_sum", CODE, 2),
        ("inference_extension_scheduler_attempts_total", CHOSEN, 1),
        ("inference_pool_average_queue_size", 'name="pool"', 3),
        ("inference_pool_ready_pods", 'name="pool"', 1),
        ("inference_pool_per_pod_queue_size", 'model_server_pod="pod",name="pool"', 3),
        ("inference_extension_flow_control_request_queue_duration_seconds_count", WAITED, 1),
        ("inference_extension_prefix_indexer_hit_ratio_sum", "", 1),
        ("inference_extension_prefix_indexer_size", "", 10),
        ("llm_d_inference_scheduler_disagg_decision_total", DECIDED, 2),
    ],
)
def test_a_former_name_has_the_sum_of_the_present_numbers(
    name: str, labels: str, value: int
) -> None:
    series = f"{name}{{{labels}}}" if labels else name
    assert f"{series} {value}.0" in page(filled()).decode().splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "# TYPE inference_extension_flow_control_queue_size gauge",
        "# TYPE llm_d_inference_scheduler_datalayer_poll_errors_total counter",
    ],
)
def test_a_former_name_is_there_before_its_first_number(line: str) -> None:
    assert line in page(filled()).decode().splitlines()


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "OpenMetrics"])
def test_the_page_is_that_of_prometheus_client(*, openmetrics: bool) -> None:
    metrics = filled()
    page(metrics, openmetrics=openmetrics)  # its length is on the next one
    write = openmetrics_format.generate_latest if openmetrics else generate_latest
    assert page(metrics, openmetrics=openmetrics) == write(metrics.registry)


def test_one_former_name_alone_can_be_asked_for() -> None:
    name = "inference_objective_running_requests"
    assert page(filled(), name).decode().splitlines()[2:] == [
        f'{name}{{model_name="llama"}} 3.0',
        f'{name}{{model_name="code"}} 0.0',
    ]


def test_without_being_asked_for_there_are_none() -> None:
    metrics = Metrics()
    metrics.for_request("llama", "llama", "one", 0).total.inc()
    former = [each.name.encode() for each in FORMER_NAMES.values()]
    assert not [name for name in former if name in page(metrics)]


def test_a_full_page_with_former_names_is_not_longer() -> None:
    metrics = Metrics(has_former_names=True)
    for number in range(20_000):
        send(metrics, f"model-{number}", fairness_id=f"tenant-{number % 1000}")
    text = page(metrics)
    assert b"inference_objective_request_total" in text
    assert 1_000_000 < len(text) < 10_000_000
    assert len(text) <= metrics.registry.page_bytes * 1.1


def test_sums_are_made_in_short_steps() -> None:
    metrics = Metrics(has_former_names=True, max_page_bytes=10**9)
    for number in range(2000):
        metrics.for_request(f"model-{number}", "m", "f", 0).total.inc()
    pieces = Exposition(metrics.registry).render(openmetrics=False, names=())
    # Totals, running requests and two histograms, 200 label sets at a time.
    assert sum(piece == b"" for piece in pieces) >= 2000 / 200 * 4

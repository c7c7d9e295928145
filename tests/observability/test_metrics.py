"""Metrics: the reference's names, labels and buckets, the cap on names, the pool's gauges."""

from math import sqrt

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from epp.observability import Metrics, PluginWatch, PoolCollector
from epp.observability.known_names import MAX_NAME_CHARS
from epp.scheduling import Endpoint
from epp.testing import make_endpoint
from epp_plugins.scorers import queue_depth

REQUEST = {"model_name", "target_model_name", "fairness_id", "priority"}
PLUGIN = {"extension_point", "plugin_type", "plugin_name"}
LATENCY = (
    "0.005 0.025 0.05 0.1 0.2 0.4 0.6 0.8 1 1.25 1.5 2 3 4 5 6 8 10 15 20 30 45 60 120 180 240"
    " 300 360 480 600 900 1200 1800 2700 3600"
)
SCHEDULING = "1e-5 2e-5 5e-5 0.0001 0.0002 0.0005 0.001 0.002 0.005 0.01 0.02 0.05 0.1"
RESPONSE_SIZES = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 32778 65536"
SIZES = " ".join(str(64 * 2**n) for n in range(25))


def page(metrics: Metrics) -> dict[str, tuple[str, list[dict[str, str]]]]:
    """Return type and label sets of each sample name, as Prometheus reads the page."""
    found: dict[str, tuple[str, list[dict[str, str]]]] = {}
    text = generate_latest(metrics.registry).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, (family.type, []))[1].append(dict(sample.labels))
    return found


def filled() -> Metrics:
    metrics = Metrics()
    request = metrics.for_request("llama", "llama-lora", "default-flow", 0)
    request.total.inc()
    request.running.inc()
    request.size.observe(100)
    request.duration.observe(1)
    request.error("BadRequest")
    response = request.response
    for child in (response.size, response.prompt_tokens, response.tokens, response.cached_tokens):
        child.observe(100)
    for child in (response.per_token, response.per_token_streamed, response.first_byte[True]):
        child.observe(0.1)
    metrics.limits_exceeded.labels("body-bytes").inc()
    metrics.scheduler_e2e.observe(0.001)
    metrics.attempts.succeeded("llama", make_endpoint("default/pod"))
    scorer = queue_depth.QueueScorer("queue", queue_depth.Params())
    metrics.scrapes.poll_failed(scorer, make_endpoint(), "timeout")
    metrics.scrapes.extract_failed(scorer, scorer, make_endpoint(), "page")
    metrics.scrapes.page_scraped(scorer, make_endpoint(), 0.1)
    for _ in range(2):
        PluginWatch(metrics).timer("Scorer", scorer)(0.001)
    PluginWatch(metrics, slow_call_seconds=0.1).timer("Scorer", scorer)(0.2)
    PluginWatch(metrics).plugin_failed("Scorer", scorer, ValueError("no"))
    PluginWatch(metrics).plugin_disabled(scorer, 10)
    PluginWatch(metrics).scores_corrected(scorer, 2, 3)
    metrics.shadow_runs.labels("shadow").inc()
    metrics.shadow_disagreements.labels("shadow").inc()
    metrics.model_rewritten("chat", "chat", "llama")
    metrics.watch_pool("pool", lambda: [make_endpoint()])
    return metrics


@pytest.mark.parametrize(
    ("name", "kind", "labels"),
    [
        ("request_total", "counter", REQUEST),
        ("request_error_total", "counter", REQUEST | {"error_code"}),
        ("request_duration_seconds_count", "histogram", REQUEST),
        ("request_size_bytes_count", "histogram", REQUEST),
        ("request_running", "gauge", REQUEST),
        ("response_size_bytes_count", "histogram", REQUEST),
        ("request_input_tokens_count", "histogram", REQUEST),
        ("request_output_tokens_count", "histogram", REQUEST),
        ("request_cached_tokens_count", "histogram", REQUEST),
        ("request_ntpot_seconds_count", "histogram", REQUEST),
        ("request_streaming_tpot_seconds_count", "histogram", REQUEST),
        ("request_streaming_itl_seconds_count", "histogram", REQUEST),
        ("request_limit_exceeded_total", "counter", {"limit"}),
        ("scheduler_e2e_duration_seconds_count", "histogram", set()),
        (
            "scheduler_attempts_total",
            "counter",
            {"status", "target_model_name", "endpoint_name", "namespace", "port"},
        ),
        (
            "plugin_duration_seconds_count",
            "histogram",
            PLUGIN,
        ),
        ("plugin_failures_total", "counter", PLUGIN),
        ("plugin_overruns_total", "counter", PLUGIN),
        ("plugin_disabled", "gauge", {"plugin_type", "plugin_name"}),
        ("shadow_runs_total", "counter", {"profile"}),
        ("shadow_disagreements_total", "counter", {"profile"}),
        (
            "model_rewrite_decisions_total",
            "counter",
            {"model_rewrite_name", "model_name", "target_model"},
        ),
        ("datalayer_poll_errors_total", "counter", {"source_type"}),
        ("datalayer_extract_errors_total", "counter", {"source_type", "extractor_type"}),
        ("internal_faults_total", "counter", set()),
        ("ready_endpoints", "gauge", {"name"}),
        ("average_queue_size", "gauge", {"name"}),
        ("average_running_requests", "gauge", {"name"}),
        ("average_kv_cache_utilization", "gauge", {"name"}),
        ("std_dev_queue_size", "gauge", {"name"}),
        ("std_dev_running_requests", "gauge", {"name"}),
        ("std_dev_kv_cache_utilization", "gauge", {"name"}),
        ("per_endpoint_queue_size", "gauge", {"name", "model_server_endpoint"}),
    ],
)
def test_names_types_and_labels_are_the_references(name: str, kind: str, labels: set[str]) -> None:
    found = page(filled())
    assert f"llm_d_epp_{name}" in found
    found_kind, label_sets = found[f"llm_d_epp_{name}"]
    assert found_kind == kind
    assert [set(found_labels) for found_labels in label_sets] == [labels]


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("request_duration_seconds", LATENCY),
        ("request_size_bytes", SIZES),
        ("response_size_bytes", RESPONSE_SIZES),
        ("request_input_tokens", f"{RESPONSE_SIZES} 131072 262144 524288 1048576"),
        ("request_output_tokens", RESPONSE_SIZES.removesuffix(" 16384 32778 65536")),
        ("request_cached_tokens", f"{RESPONSE_SIZES} 131072 262144 524288 1048576"),
        ("request_ntpot_seconds", "0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10"),
        (
            "request_streaming_tpot_seconds",
            "5e-4 0.00205 5e-3 .01 .02 .04 .06 .08 .1 .125 .15 .2 .3 .4 .5 .6 .8 1 2",
        ),
        (
            "request_streaming_itl_seconds",
            ".001 .005 .01 .02 .04 .06 .08 .1 .15 .2 .3 .5 .75 1 2",
        ),
        ("scheduler_e2e_duration_seconds", SCHEDULING),
        ("plugin_duration_seconds", f"1e-6 2e-6 5e-6 {SCHEDULING}"),
    ],
)
def test_buckets_include_those_of_the_reference(name: str, bounds: str) -> None:
    _, label_sets = page(filled())[f"llm_d_epp_{name}_bucket"]
    found = [float(labels["le"]) for labels in label_sets]
    assert found == [*map(float, bounds.split()), float("inf")]


def test_first_bytes_are_told_apart_by_streaming() -> None:
    _, label_sets = page(filled())["llm_d_epp_request_ttft_seconds_bucket"]
    for streaming in ("true", "false"):
        bounds = [float(each["le"]) for each in label_sets if each["streaming"] == streaming]
        assert bounds == [*map(float, LATENCY.partition(" 180")[0].split()), float("inf")]


def test_responses_that_nobody_sees_have_no_samples() -> None:
    metrics = Metrics()
    metrics.for_request("m", "m", "f", 0).total.inc()
    assert not [name for name in page(metrics) if "tokens" in name or "response_size" in name]


def test_plugin_calls_are_observed_under_their_plugin() -> None:
    labels = {
        "extension_point": "Scorer",
        "plugin_type": "queue-scorer",
        "plugin_name": "queue",
    }
    name = "llm_d_epp_plugin_duration_seconds"
    registry = filled().registry
    assert registry.get_sample_value(f"{name}_count", labels) == 3
    assert registry.get_sample_value(f"{name}_sum", labels) == pytest.approx(0.202)


@pytest.mark.parametrize(("point", "overruns"), [("Scorer", 1), ("AsyncDataProducer", 0)])
def test_only_calls_that_hold_up_the_loop_can_overrun(point: str, overruns: int) -> None:
    metrics = Metrics()
    plugin = queue_depth.QueueScorer("queue", queue_depth.Params())
    timed = PluginWatch(metrics, slow_call_seconds=0.05).timer(point, plugin)
    timed(0.05)
    timed(0.051)
    labels = {"extension_point": point, "plugin_type": plugin.type, "plugin_name": plugin.name}
    value = metrics.registry.get_sample_value
    assert value("llm_d_epp_plugin_overruns_total", labels) == overruns
    assert value("llm_d_epp_plugin_duration_seconds_count", labels) == 2


def test_the_children_of_a_label_set_are_bound_once() -> None:
    metrics = Metrics()
    assert metrics.for_request("m", "m", "f", 0) is metrics.for_request("m", "m", "f", 0)
    assert metrics.for_request("m", "m", "f", 0) is not metrics.for_request("m", "m", "f", -1)


@pytest.mark.parametrize(
    ("chars", "is_kept"), [(MAX_NAME_CHARS, True), (MAX_NAME_CHARS + 1, False)]
)
def test_a_name_that_is_too_long_is_other(chars: int, *, is_kept: bool) -> None:
    metrics = Metrics()
    name = "m" * chars
    metrics.for_request(name, name, name, 0).total.inc()
    (family,) = metrics.requests.families.total.collect()
    kept = name if is_kept else "other"
    assert family.samples[0].labels == {
        "model_name": kept,
        "target_model_name": kept,
        "fairness_id": kept,
        "priority": "0",
    }


@pytest.mark.parametrize("step", ["poll", "extract"])
def test_pages_that_are_too_large_are_counted_besides(step: str) -> None:
    metrics = Metrics()
    source = queue_depth.QueueScorer("queue", queue_depth.Params())
    for kind in ("too-large", "timeout"):
        if step == "poll":
            metrics.scrapes.poll_failed(source, make_endpoint(), kind)
        else:
            metrics.scrapes.extract_failed(source, source, make_endpoint(), kind)
    value = metrics.registry.get_sample_value
    labels = {"source_type": "queue-scorer"}
    assert value("llm_d_epp_datalayer_pages_too_large_total", labels) == 1


def test_scrapes_are_timed_by_their_source() -> None:
    metrics = Metrics()
    source = queue_depth.QueueScorer("queue", queue_depth.Params())
    metrics.scrapes.scrape_started(source, 0.0)
    metrics.scrapes.scrape_started(source, 0.03)
    metrics.scrapes.page_scraped(source, make_endpoint(), 0.004)
    value = metrics.registry.get_sample_value
    labels = {"source_type": "queue-scorer"}
    lag, duration = (f"llm_d_epp_datalayer_scrape_{each}_seconds" for each in ("lag", "duration"))
    assert value(f"{lag}_bucket", {**labels, "le": "0.02"}) == 1
    assert value(f"{lag}_sum", labels) == 0.03
    assert value(f"{duration}_bucket", {**labels, "le": "0.005"}) == 1


def test_the_age_of_an_endpoints_metrics_is_shown_once_it_is_scraped() -> None:
    registry = CollectorRegistry()
    endpoints = [make_endpoint("ns/a", requested_at=98.5), make_endpoint("ns/b")]
    registry.register(PoolCollector("pool", lambda: endpoints, clock=lambda: 100.0))

    def ages() -> dict[str, float]:
        (family,) = [each for each in registry.collect() if each.name.endswith("_age_seconds")]
        return {each.labels["model_server_endpoint"]: each.value for each in family.samples}

    assert ages() == {"a": 1.5}
    endpoints.clear()
    assert ages() == {}


def test_one_endpoint_has_no_deviation() -> None:
    metrics = Metrics()
    metrics.watch_pool("pool", lambda: [make_endpoint("a", waiting_requests=2)])
    name = "llm_d_epp_std_dev_queue_size"
    assert metrics.registry.get_sample_value(name, {"name": "pool"}) == 0


def test_endpoints_are_named_without_namespace_unless_two_have_the_name() -> None:
    metrics = Metrics()
    names = ["one/a", "one/b", "two/b", "c"]
    metrics.watch_pool("pool", lambda: [make_endpoint(name) for name in names])
    metrics.watch_scrapes(lambda: {(name, "source"): 0.05 for name in names})
    shown = {
        family.name.removeprefix("llm_d_epp_"): [
            sample.labels["model_server_endpoint"] for sample in family.samples
        ]
        for family in metrics.registry.collect()
        if any("model_server_endpoint" in sample.labels for sample in family.samples)
    }
    own = ["a", "one/b", "two/b", "c"]
    assert shown == dict.fromkeys(
        [
            "per_endpoint_queue_size",
            "endpoint_inflight_requests",
            "effective_queue_size",
            "endpoint_draining",
            "endpoint_retries",
            "datalayer_scrape_interval_seconds",
        ],
        own,
    )


def test_pool_gauges_are_read_off_the_endpoints_at_each_scrape() -> None:
    metrics = Metrics()
    pool: list[Endpoint] = []
    metrics.watch_pool("pool", lambda: pool)

    def value(name: str, endpoint: str = "") -> float | None:
        labels = {"name": "pool"} | ({"model_server_endpoint": endpoint} if endpoint else {})
        return metrics.registry.get_sample_value(f"llm_d_epp_{name}", labels)

    assert value("ready_endpoints") == 0
    assert value("average_queue_size") == value("std_dev_queue_size") == 0
    pool.append(
        make_endpoint("a", waiting_requests=2, running_requests=10, kv_cache_usage=0.25,
                      requested_at=1.0)
    )  # fmt: skip
    pool.append(
        make_endpoint("b", waiting_requests=6, running_requests=10, kv_cache_usage=0.75,
                      in_flight=3, requested_at=1.0)
    )  # fmt: skip
    assert value("ready_endpoints") == 2
    assert value("average_queue_size") == 4  # (2 + 6) / 2
    assert value("std_dev_queue_size") == sqrt(8)  # both are 2 off: 8 / (2 - 1)
    assert value("average_running_requests") == 10
    assert value("std_dev_running_requests") == 0
    assert value("average_kv_cache_utilization") == 0.5
    assert value("std_dev_kv_cache_utilization") == sqrt(0.125)
    assert value("per_endpoint_queue_size", "a") == 2
    assert value("per_endpoint_queue_size", "b") == 6
    assert value("endpoint_inflight_requests", "b") == 3
    assert value("effective_queue_size", "b") == 9  # 6 on the page, 3 of ours sent since
    pool.clear()
    assert value("per_endpoint_queue_size", "a") is None


def test_pool_gauges_leave_out_endpoints_whose_page_is_old() -> None:
    fresh = make_endpoint("a", waiting_requests=2, requested_at=8.5)
    old = make_endpoint("b", waiting_requests=6, requested_at=8.0)
    never = make_endpoint("c", waiting_requests=9)
    collector = PoolCollector(
        "pool", lambda: [fresh, old, never], staleness_seconds=2.0, clock=lambda: 10.0
    )
    values = {
        family.name: family.samples[0].value
        for family in collector.collect()
        if family.name.endswith(("ready_endpoints", "average_queue_size"))
    }
    assert values == {"llm_d_epp_ready_endpoints": 1, "llm_d_epp_average_queue_size": 2}

"""``core-metrics-extractor`` reads the pages of four engines, and of configured ones."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.data_layer.plugins import Page, PageError
from epp.scheduling import AttributeKey, Endpoint, EndpointMetrics
from epp_plugins.data_sources.core_metrics import CoreMetricsExtractor, Params

DATA = Path(__file__).parent / "data"
LABEL = "llm-d.ai/engine-type"
LEGACY_LABEL = "inference.networking.k8s.io/engine-type"

VLLM = (DATA / "metrics_load_a.prom").read_bytes()
SGLANG = b"""# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 5.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 12.0
sglang:num_queue_reqs_total{engine_type="unified"} 900.0
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.28
# TYPE sglang:cache_config_info gauge
sglang:cache_config_info{model_name="m",num_pages="2048",page_size="64"} 1.0
"""
TRTLLM = b"""# TYPE trtllm_kv_cache_utilization gauge
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.625
trtllm_kv_cache_hit_rate{engine_type="trtllm",model_name="m"} 0.9
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 8.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 3.0
trtllm_num_requests_completed_total{engine_type="trtllm",model_name="m"} 100.0
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 4096.0
trtllm_kv_cache_free_blocks{engine_type="trtllm",model_name="m"} 1536.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
"""
TRITON = b"""# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 7
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 11
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm"} 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm"} 3119
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm"} 6239
"""
MINE = {
    "name": "mine",
    "queuedRequestsSpec": "mine_requests{state=queued}",
    "runningRequestsSpec": 'mine_requests{state="running"}',
    "kvUsageSpec": "mine_cache_usage",
    "loraSpec": "mine_lora",
    "cacheInfoSpec": "mine_cache_info",
    "cacheBlockSizeLabelName": "tokens",
    "cacheNumBlocksLabelName": "blocks",
    "customMetrics": [
        {"attributeKey": "gpu-heat", "metricSpec": "mine_celsius{gpu=0}"},
        {"attributeKey": "power", "metricSpec": "mine_watts"},
    ],
}
MINE_PAGE = b"""mine_requests{state="queued"} 2
mine_requests{state="running"} 1
mine_cache_usage 0.5
mine_lora{max_lora="3",running_lora_adapters="a",waiting_lora_adapters="b"} 17
mine_cache_info{tokens="8",blocks="100"} 1
mine_celsius{gpu="0"} 61.5
mine_celsius{gpu="1"} 70
mine_watts{gpu="0"} 300
mine_watts{gpu="1"} 250
"""
HEAT = AttributeKey[float]("gpu-heat/core-metrics-extractor")
POWER = AttributeKey[float]("power/core-metrics-extractor")


def make_extractor(
    parameters: dict[str, Any] | None = None, name: str = "core-metrics-extractor"
) -> CoreMetricsExtractor:
    return CoreMetricsExtractor(name, msgspec.convert(parameters or {}, Params))


def make_endpoint(**labels: str) -> Endpoint:
    return Endpoint("ns/a", "10.0.0.1:8000", labels)


@pytest.mark.parametrize(
    ("engine", "page", "expected"),
    [
        pytest.param(
            "vllm",
            VLLM,
            EndpointMetrics(
                waiting_requests=32,
                running_requests=7,
                kv_cache_usage=0.5819397993311037,
                active_adapters=frozenset({"ad1", "ad2"}),
                max_adapters=2,
                cache_block_size=32,
                cache_blocks=300,
                requested_at=1.5,
                prompt_tokens=33621,
                prompts=53,
            ),
            id="vllm",
        ),
        pytest.param(
            "sglang",
            SGLANG,
            EndpointMetrics(12, 5, 0.28, cache_block_size=64, cache_blocks=2048, requested_at=1.5),
            id="sglang",
        ),
        pytest.param(
            "trtllm-serve",
            TRTLLM,
            EndpointMetrics(3, 8, 0.625, cache_block_size=32, cache_blocks=4096, requested_at=1.5),
            id="trtllm-serve",
        ),
        pytest.param(
            "triton-tensorrt-llm",
            TRITON,
            EndpointMetrics(7, 4, 0.5, cache_block_size=64, cache_blocks=6239, requested_at=1.5),
            id="triton-tensorrt-llm",
        ),
    ],
)
def test_the_pages_of_known_engines(engine: str, page: bytes, expected: EndpointMetrics) -> None:
    endpoint = make_endpoint(**{LABEL: engine})
    make_extractor().extract(endpoint, Page(page, 1.5))
    assert endpoint.metrics == expected
    assert endpoint.attributes == {}


@pytest.mark.parametrize(
    ("labels", "parameters", "page"),
    [
        pytest.param({}, {}, VLLM, id="no label: vllm"),
        pytest.param({LABEL: ""}, {}, VLLM, id="an empty label: vllm"),
        pytest.param({LABEL: "never-heard-of"}, {}, VLLM, id="an unknown engine: the default"),
        pytest.param({}, {"defaultEngine": "sglang"}, SGLANG, id="another default"),
        pytest.param({LEGACY_LABEL: "sglang"}, {}, SGLANG, id="the older label"),
        pytest.param(
            {LABEL: "sglang", LEGACY_LABEL: "vllm"}, {}, SGLANG, id="the newer label wins"
        ),
        pytest.param(
            {"engine": "sglang", LABEL: "vllm"},
            {"engineLabelKey": "engine"},
            SGLANG,
            id="a label of one's own",
        ),
        pytest.param({LABEL: "mine"}, {"engineConfigs": [MINE]}, MINE_PAGE, id="one's own engine"),
        pytest.param(
            {}, {"engineConfigs": [MINE], "defaultEngine": "mine"}, MINE_PAGE, id="as the default"
        ),
        pytest.param(
            {LABEL: "vllm"},
            {"engineConfigs": [MINE | {"name": "vllm"}]},
            MINE_PAGE,
            id="a built-in engine replaced",
        ),
    ],
)
def test_the_engine_is_chosen_by_label(
    labels: dict[str, str], parameters: dict[str, Any], page: bytes
) -> None:
    endpoint = make_endpoint(**labels)
    make_extractor(parameters).extract(endpoint, Page(page, 1.5))
    assert endpoint.metrics.waiting_requests == {VLLM: 32, SGLANG: 12, MINE_PAGE: 2}[page]


def test_an_engine_of_ones_own_with_custom_metrics() -> None:
    extractor = make_extractor({"engineConfigs": [MINE], "defaultEngine": "mine"})
    endpoint = make_endpoint()
    extractor.extract(endpoint, Page(MINE_PAGE, 1.5))
    assert endpoint.metrics == EndpointMetrics(
        2, 1, 0.5, frozenset({"a"}), frozenset({"b"}), 3, 8, 100, 1.5
    )
    assert endpoint.attribute(HEAT) == 61.5
    assert endpoint.attribute(POWER) == 550.0
    assert extractor.writes == (HEAT, POWER)


def test_custom_metrics_of_another_name_bear_the_types_name_too() -> None:
    extractor = make_extractor({"engineConfigs": [MINE], "defaultEngine": "mine"}, name="second")
    heat, power = AttributeKey[float]("gpu-heat/second"), AttributeKey[float]("power/second")
    assert extractor.writes == (HEAT, heat, POWER, power)
    endpoint = make_endpoint()
    extractor.extract(endpoint, Page(MINE_PAGE, 1.5))
    assert endpoint.attributes == {HEAT: 61.5, heat: 61.5, POWER: 550.0, power: 550.0}
    with pytest.raises(PageError, match=r"no number for gpu-heat/core-metrics-extractor$"):
        extractor.extract(endpoint, Page(MINE_PAGE.replace(b"celsius", b"kelvin"), 2.5))
    assert endpoint.attributes == {POWER: 550.0, power: 550.0}


def test_an_empty_label_and_engine_are_the_defaults() -> None:
    extractor = make_extractor({"engineLabelKey": "", "defaultEngine": ""})
    unlabelled, labelled = make_endpoint(), make_endpoint(**{"llm-d.ai/engine-type": "sglang"})
    extractor.extract(unlabelled, Page(VLLM, 1.5))
    extractor.extract(labelled, Page(SGLANG, 1.5))
    assert (unlabelled.metrics.waiting_requests, labelled.metrics.waiting_requests) == (32, 12)


def test_a_missing_custom_metric_is_taken_off_and_costs_nothing_else() -> None:
    extractor = make_extractor({"engineConfigs": [MINE], "defaultEngine": "mine"})
    endpoint = make_endpoint()
    extractor.extract(endpoint, Page(MINE_PAGE, 1.5))
    page = MINE_PAGE.replace(b"mine_celsius", b"mine_kelvin").replace(b"2\n", b"9\n", 1)
    with pytest.raises(PageError, match="has no number for gpu-heat/core-metrics-extractor"):
        extractor.extract(endpoint, Page(page, 2.5))
    assert endpoint.attribute(HEAT) is None
    assert endpoint.attribute(POWER) == 550.0
    assert (endpoint.metrics.waiting_requests, endpoint.metrics.requested_at) == (9, 2.5)


def test_a_missing_family_is_named_and_costs_nothing_else() -> None:
    extractor = make_extractor({"engineConfigs": [MINE], "defaultEngine": "mine"})
    endpoint = make_endpoint()
    extractor.extract(endpoint, Page(MINE_PAGE, 1.5))
    before = endpoint.metrics
    page = MINE_PAGE.replace(b"mine_cache_usage", b"mine_other").replace(b"250", b"300")
    with pytest.raises(PageError, match="has no mine_cache_usage; the other values are used"):
        extractor.extract(endpoint, Page(page, 2.5))
    assert endpoint.attribute(POWER) == 600.0
    assert endpoint.metrics.requested_at == 2.5
    assert endpoint.metrics.kv_cache_usage == before.kv_cache_usage


def test_the_page_of_an_idle_server_is_read_once() -> None:
    extractor = make_extractor({"engineConfigs": [MINE], "defaultEngine": "mine"})
    endpoint = make_endpoint()
    extractor.extract(endpoint, Page(b"process_cpu_seconds 1\n" + MINE_PAGE, 1.5))
    first = endpoint.metrics
    endpoint.metrics = replace(first, waiting_requests=9, requested_at=2.0)  # by a load report
    extractor.extract(endpoint, Page(b"process_cpu_seconds 2\n" + MINE_PAGE, 2.5))
    assert endpoint.metrics == replace(first, requested_at=2.5)
    assert endpoint.metrics.active_adapters is first.active_adapters  # not made again
    assert endpoint.attribute(HEAT) == 61.5
    extractor.extract(endpoint, Page(MINE_PAGE.replace(b"2\n", b"9\n", 1), 3.5))
    assert (endpoint.metrics.waiting_requests, endpoint.metrics.requested_at) == (9, 3.5)


def test_the_same_incomplete_page_is_read_with_the_values_before_it() -> None:
    extractor = make_extractor({"engineConfigs": [MINE], "defaultEngine": "mine"})
    endpoint = make_endpoint()
    incomplete = Page(MINE_PAGE.replace(b"mine_cache_usage", b"mine_other"), 1.5)
    for usage in (0.25, 0.75):
        endpoint.metrics = EndpointMetrics(kv_cache_usage=usage, requested_at=1.0)
        with pytest.raises(PageError, match="has no mine_cache_usage"):
            extractor.extract(endpoint, incomplete)
        assert endpoint.metrics.kv_cache_usage == usage


def test_a_built_in_engine_without_specs_keeps_its_metrics() -> None:
    custom = [{"attributeKey": "heat", "metricSpec": "gpu_celsius"}]
    config = {"engineConfigs": [{"name": "vllm", "customMetrics": custom}]}
    extractor, endpoint = make_extractor(config), make_endpoint()
    extractor.extract(endpoint, Page(VLLM + b"gpu_celsius 61\n", 1.5))
    assert endpoint.metrics.waiting_requests == 32
    assert endpoint.attributes == {AttributeKey("heat/core-metrics-extractor"): 61.0}
    assert extractor.warnings == []


def test_an_unknown_engine_without_specs_is_warned_of() -> None:
    extractor = make_extractor({"engineConfigs": [{"name": "mine"}]})
    (warning,) = extractor.warnings
    assert "engineConfigs[0]: engine 'mine' is not built in and names no metric" in warning
    endpoint = make_endpoint(**{"llm-d.ai/engine-type": "mine"})
    extractor.extract(endpoint, Page(VLLM, 1.5))
    assert endpoint.metrics.waiting_requests == 0


def test_a_page_of_another_engine_keeps_what_was_known() -> None:
    endpoint = make_endpoint()
    extractor = make_extractor()
    extractor.extract(endpoint, Page(VLLM, 1.5))
    before = endpoint.metrics
    with pytest.raises(PageError, match="is this the /metrics of a vllm server"):
        extractor.extract(endpoint, Page(SGLANG, 2.5))
    assert endpoint.metrics is before


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param(
            {"defaultEngine": "llama.cpp"},
            "defaultEngine: no engine is called 'llama.cpp'; known: sglang, triton,"
            " triton-tensorrt-llm, trtllm-serve, vllm",
            id="unknown default",
        ),
        pytest.param(
            {"engineConfigs": [MINE, MINE]},
            "engineConfigs[1].name: 'mine' is there twice",
            id="same name twice",
        ),
        pytest.param(
            {"engineConfigs": [MINE | {"kvUsageSpec": "a b"}]},
            "engineConfigs[0].kvUsageSpec: 'a b' is no metric",
            id="wrong metric",
        ),
        pytest.param(
            {
                "engineConfigs": [
                    {"name": "x", "customMetrics": [{"attributeKey": "a", "metricSpec": "{"}]}
                ]
            },
            "engineConfigs[0].customMetrics[0].metricSpec: '{' is no metric",
            id="wrong custom metric",
        ),
        pytest.param(
            {
                "engineConfigs": [
                    {"name": "x", "customMetrics": [{"attributeKey": "a", "metricSpec": "b"}] * 2}
                ]
            },
            "engineConfigs[0].customMetrics[1].attributeKey: 'a' is there twice",
            id="same attribute twice",
        ),
        pytest.param({"engineConfigs": [{"name": ""}]}, "`$.engineConfigs[0].name`", id="no name"),
        pytest.param({"engineConfigs": [{"name": "x", "lora": "y"}]}, "`lora`", id="unknown field"),
    ],
)
def test_wrong_parameters_are_refused_by_field(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make_extractor(parameters)


def test_a_change_of_engine_takes_the_attributes_of_the_engine_before_off() -> None:
    extractor = make_extractor({"engineConfigs": [MINE]})
    endpoint = make_endpoint(**{"llm-d.ai/engine-type": "mine"})
    extractor.extract(endpoint, Page(MINE_PAGE, 1.0))
    assert endpoint.attribute(POWER) == 550
    endpoint.labels = {"llm-d.ai/engine-type": "vllm"}
    extractor.extract(endpoint, Page(VLLM, 2.0))
    assert endpoint.attributes == {}


def test_tritons_count_of_all_requests_so_far_is_no_load() -> None:
    endpoint = make_endpoint(**{"llm-d.ai/engine-type": "triton"})
    page = b'nv_inference_pending_request_count{model="a"} 2\nnv_inference_exec_count 900\n'
    make_extractor().extract(endpoint, Page(page, 1.0))
    assert endpoint.metrics == EndpointMetrics(waiting_requests=2, requested_at=1.0)

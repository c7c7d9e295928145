"""The scan reads recorded and hand-made pages, and says what is wrong with a garbled one."""

from pathlib import Path

import pytest

from epp.data_layer import EngineMetrics, MetricsPageError, MetricsPageScanner
from epp.scheduling import EndpointMetrics

DATA = Path(__file__).parent / "data"
GAUGES = b"""# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 3.0
vllm:num_requests_waiting_by_reason{engine="0"} 99.0
vllm:num_requests_running{engine="0"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        pytest.param(
            "metrics_load_a.prom",
            EndpointMetrics(
                waiting_requests=32,
                running_requests=7,
                kv_cache_usage=0.5819397993311037,
                active_adapters=frozenset({"ad1", "ad2"}),  # the series at 1.7952054420854757e+09
                max_adapters=2,
                cache_block_size=32,
                cache_blocks=300,
                requested_at=7.5,
            ),
            id="under load",
        ),
        pytest.param(
            "metrics_after.prom",
            EndpointMetrics(
                max_adapters=2,
                cache_block_size=32,
                cache_blocks=300,  # the newest series is the one without adapters
                requested_at=7.5,
            ),
            id="after the load",
        ),
        pytest.param(
            "metrics_idle.prom",
            EndpointMetrics(cache_block_size=128, cache_blocks=8192, requested_at=7.5),
            id="idle and without LoRA",
        ),
    ],
)
def test_recorded_pages(page: str, expected: EndpointMetrics) -> None:
    assert MetricsPageScanner().scan((DATA / page).read_bytes(), 7.5) == expected


def test_the_required_families_are_enough() -> None:
    assert MetricsPageScanner().scan(GAUGES) == EndpointMetrics(3, 2, 0.25)


def test_series_of_several_engines_are_one_endpoint() -> None:
    page = (
        b'vllm:num_requests_waiting{engine="0"} 3\nvllm:num_requests_waiting{engine="1"} 4 1700\n'
        b"vllm:num_requests_running 1\nvllm:num_requests_running\t2e0\n"
        b'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"}0.4\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="50"} 1'
    )
    found = MetricsPageScanner().scan(page)
    assert (found.waiting_requests, found.running_requests) == (7, 3)
    assert found.kv_cache_usage == pytest.approx(0.3)  # (0.2 + 0.4) / 2
    assert (found.cache_block_size, found.cache_blocks) == (16, 150)


def test_the_older_name_of_the_cache_usage_counts_only_without_the_newer() -> None:
    older = GAUGES.replace(b"kv_cache", b"gpu_cache")
    assert MetricsPageScanner().scan(older).kv_cache_usage == 0.25
    assert MetricsPageScanner().scan(
        b"vllm:gpu_cache_usage_perc 0.9\n" + GAUGES
    ).kv_cache_usage == (0.25)


def test_escaped_labels_and_separators_inside_values() -> None:
    page = GAUGES + (
        rb'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a\"b,c\\,}",'
        rb'waiting_lora_adapters="max_lora=, w\n1,c\\"} 2e9'
    )
    found = MetricsPageScanner().scan(page)
    assert found.active_adapters == {'a"b', "c\\", "}"}
    assert found.waiting_adapters == {"max_lora=", "w\n1"}  # c\ runs as well
    assert found.max_adapters == 4


def test_unknown_cache_geometry_is_zero() -> None:
    page = GAUGES + b'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1.0\n'
    found = MetricsPageScanner().scan(page)
    assert (found.cache_block_size, found.cache_blocks) == (0, 0)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        pytest.param(b"", "has no vllm:num_requests_waiting", id="empty"),
        pytest.param(b"<html>gateway</html>", "is this the /metrics of a vllm", id="not metrics"),
        pytest.param(GAUGES[:-5] + b"x\n", "vllm:kv_cache_usage_perc: value '", id="no number"),
        pytest.param(GAUGES.replace(b"0.25", b""), "value '' is not a number", id="no value"),
        pytest.param(GAUGES.replace(b"3.0", b"NaN"), "nan is not a finite", id="NaN"),
        pytest.param(GAUGES.replace(b"2.0", b"+Inf"), "inf is not a finite", id="infinite"),
        pytest.param(GAUGES.replace(b"2.0", b"-1"), "-1.0 is not a finite", id="negative"),
        pytest.param(
            GAUGES.replace(b"kv_cache", b"cpu_cache"),
            "no vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc",
            id="no cache usage",
        ),
    ],
)
def test_a_garbled_page_is_refused(page: bytes, message: str) -> None:
    with pytest.raises(MetricsPageError) as caught:
        MetricsPageScanner().scan(page)
    assert message in str(caught.value)


def test_another_engine_is_data() -> None:
    sglang = EngineMetrics(
        engine="sglang",
        waiting=("sglang:num_queue_reqs",),
        running=("sglang:num_running_reqs",),
        kv_cache_usage=("sglang:token_usage",),
        cache_config="sglang:cache_config_info",
        block_size_label="page_size",
        blocks_label="num_pages",
    )
    page = (
        b"sglang:num_queue_reqs 1\nsglang:num_running_reqs 2\nsglang:token_usage 0.5\n"
        b'sglang:cache_config_info{page_size="1",num_pages="900"} 1\n'
    )
    assert MetricsPageScanner(sglang).scan(page) == EndpointMetrics(
        1, 2, 0.5, cache_block_size=1, cache_blocks=900
    )

"""The metrics page, compared with a recorded page of vLLM."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from epp.lab.fleet import Engine, EngineConfig, GenerationRequest, WorkStage
from epp.lab.fleet.metrics_page import MetricsPage

DATA = Path(__file__).parent / "data"
CONFIG = EngineConfig(adapters=("ad1", "ad2"), step_seconds=1.0)


def render(engine: Engine, model: str = "tiny") -> str:
    stages = {WorkStage.PREFILL: 3, WorkStage.DECODE: 0}
    page = MetricsPage([engine], stages, model=model, created=1000.5, wall_offset=1000.0)
    return page.render().decode()


def value(page: str, series: str) -> float:
    lines = [line for line in page.splitlines() if line.startswith(series + " ")]
    assert len(lines) == 1, series
    return float(lines[0].rsplit(" ", 1)[1])


def plain(name: str, extra: str = "") -> str:
    return f'vllm:{name}{{engine="0",model_name="tiny"{extra}}}'


def test_help_and_type_lines_are_those_of_the_recording() -> None:
    lines = render(Engine(CONFIG)).splitlines()
    ours = [line for line in lines if re.match(r"# (HELP|TYPE) vllm:", line)]
    assert ours == (DATA / "metrics_families.prom").read_text().splitlines()


def test_the_series_are_those_of_the_recording_buckets_included() -> None:
    page = render(Engine(replace(CONFIG, max_model_len=8192)))  # the last bounds depend on it
    others = ("vllm:lora_requests_info", "vllm:cache_config_info")
    ours = [series for series in _series(page.splitlines()) if not series[0].startswith(others)]
    recorded = (DATA / "metrics_series.txt").read_text().splitlines()
    assert sorted(ours) == sorted(_series([f"{line} 0" for line in recorded]))


def _series(lines: list[str]) -> list[tuple[str, ...]]:
    """Return name and labels of each series, the labels in the order of the alphabet."""
    series = [line.rsplit(" ", 1)[0] for line in lines if line.startswith("vllm:")]
    named = [each.rstrip("}").partition("{") for each in series]
    return [(name, *sorted(labels.split(","))) for name, _, labels in named]


def test_values_follow_the_engine() -> None:
    engine = Engine(replace(CONFIG, max_num_seqs=1, phantom_waiting=3))
    for adapter in ("ad1", "ad2"):
        request = GenerationRequest(id="r", prompt=b"a" * 80, max_tokens=2, adapter=adapter)
        engine.submit(request, 7.0)
    page = render(engine)
    assert value(page, plain("num_requests_running")) == 1
    assert value(page, plain("num_requests_waiting")) == 1 + 3
    assert value(page, plain("kv_cache_usage_perc")) == 2 / 2000
    assert value(page, plain("prefix_cache_queries_total")) == 20
    newest = max(
        (line for line in page.splitlines() if line.startswith("vllm:lora_requests_info{")),
        key=lambda line: float(line.rsplit(" ", 1)[1]),
    )
    assert newest == (
        'vllm:lora_requests_info{max_lora="2",running_lora_adapters="ad1",'
        'waiting_lora_adapters=""} 1007.0'
    )
    engine.finish_step()
    assert 'running_lora_adapters="ad1",waiting_lora_adapters="ad2"} ' in render(engine)
    engine.run_until(1000.0)
    page = render(engine)
    assert value(page, plain("generation_tokens_total")) == 4
    assert value(page, plain("prompt_tokens_total")) == 40
    success = 'vllm:request_success_total{engine="0",model_name="tiny",finished_reason="length"}'
    assert value(page, success) == 2
    assert value(page, plain("time_to_first_token_seconds_count")) == 2
    bucket = 'vllm:time_to_first_token_seconds_bucket{le="+Inf",engine="0",model_name="tiny"}'
    assert value(page, bucket) == 2
    assert value(page, plain("kv_cache_usage_perc")) == 0


def test_a_prompt_computed_elsewhere_is_no_work_and_no_hit_of_this_server() -> None:
    engine = Engine(CONFIG)
    request = GenerationRequest(id="r", prompt=b"a" * 160, max_tokens=1, prefilled=True)
    engine.submit(request, 0.0)
    engine.run_until(1000.0)
    page = render(engine)
    # 40 tokens, the last of which is computed here; no block of 16 was cached.
    assert value(page, plain("prompt_tokens_by_source_total", ',source="local_compute"')) == 1
    assert value(page, plain("prompt_tokens_by_source_total", ',source="local_cache_hit"')) == 0
    moved = ',source="external_kv_transfer"'
    assert value(page, plain("prompt_tokens_by_source_total", moved)) == 39
    assert value(page, plain("prompt_tokens_cached_by_source_total", ',source="p2p"')) == 39
    assert value(page, plain("external_prefix_cache_queries_total")) == 40
    assert value(page, plain("external_prefix_cache_hits_total")) == 39
    assert value(page, plain("prefix_cache_hits_total")) == 0


def test_stages_are_counted_by_name() -> None:
    page = render(Engine(CONFIG))
    assert value(page, 'fake_stage_requests_total{stage="prefill"}') == 3
    assert value(page, 'fake_stage_requests_total{stage="decode"}') == 0


def test_the_cache_config_is_in_labels() -> None:
    page = render(Engine(replace(CONFIG, num_blocks=600, block_size=32)))
    line = next(line for line in page.splitlines() if line.startswith("vllm:cache_config_info{"))
    assert {'block_size="32"', 'num_gpu_blocks="600"', 'engine="0"'} <= set(re.split("[{},]", line))


def test_a_server_without_adapters_has_no_lora_family() -> None:
    assert "lora_requests_info" not in render(Engine(EngineConfig()))


def test_a_model_name_is_escaped() -> None:
    assert r'model_name="a\"b\\c"' in render(Engine(EngineConfig()), 'a"b\\c')

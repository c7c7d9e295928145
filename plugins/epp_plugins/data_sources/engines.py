"""Metrics of the built-in engines, under the Go EPP's names."""

from typing import Final

from epp_plugins.data_sources.metric_spec import MetricSpec
from epp_plugins.data_sources.metrics_page import EngineMetrics

_spec = MetricSpec.parse

VLLM: Final = EngineMetrics(
    engine="vllm",
    waiting=(_spec("vllm:num_requests_waiting"),),
    running=(_spec("vllm:num_requests_running"),),
    # The second is the name in older versions; a page with both is counted once.
    kv_cache_usage=(_spec("vllm:kv_cache_usage_perc"), _spec("vllm:gpu_cache_usage_perc")),
    adapters=_spec("vllm:lora_requests_info"),
    cache_config=_spec("vllm:cache_config_info"),
    prompt_tokens=_spec("vllm:prompt_tokens_total"),
    # Incremented together with the prompt tokens; finished requests are counted much later.
    prompts=_spec("vllm:time_to_first_token_seconds_count"),
)

SGLANG: Final = EngineMetrics(
    engine="sglang",
    waiting=(_spec("sglang:num_queue_reqs"),),
    running=(_spec("sglang:num_running_reqs"),),
    kv_cache_usage=(_spec("sglang:token_usage"),),
    cache_config=_spec("sglang:cache_config_info"),
    block_size_label="page_size",
    blocks_label="num_pages",
    prompt_tokens=_spec("sglang:prompt_tokens_total"),
    prompts=_spec("sglang:time_to_first_token_seconds_count"),
)

TRTLLM_SERVE: Final = EngineMetrics(
    engine="trtllm-serve",
    waiting=(_spec("trtllm_num_requests_waiting"),),
    running=(_spec("trtllm_num_requests_running"),),
    kv_cache_usage=(_spec("trtllm_kv_cache_utilization"),),
    block_size=_spec("trtllm_kv_cache_tokens_per_block"),
    blocks=_spec("trtllm_kv_cache_max_blocks"),
)

TRITON_TENSORRT_LLM: Final = EngineMetrics(
    engine="triton-tensorrt-llm",
    waiting=(_spec("nv_trt_llm_request_metrics{request_type=waiting}"),),
    running=(_spec("nv_trt_llm_request_metrics{request_type=scheduled}"),),
    kv_cache_usage=(_spec("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}"),),
    block_size=_spec("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}"),
    blocks=_spec("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"),
)

# The Go EPP reads running requests from a counter of all requests so far, which is not a load.
TRITON: Final = EngineMetrics(
    engine="triton",
    waiting=(_spec("nv_inference_pending_request_count"),),
)

BUILT_IN: Final = (VLLM, SGLANG, TRTLLM_SERVE, TRITON_TENSORRT_LLM, TRITON)

"""Recognizes an engine by its metrics, and reads the configuration of its cache."""

import re
from collections.abc import Mapping
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

_PREFIXES: Final = {
    "vllm:": "vllm",
    "sglang:": "sglang",
    "trtllm_": "trtllm-serve",
    "nv_trt_llm_": "triton-tensorrt-llm",
    "nv_inference_": "triton",
}
"""Engines by the prefix of their metrics' names, longer prefixes first; named as in the endpoint
label ``llm-d.ai/engine-type``."""

_CACHE_CONFIG: Final = re.compile(r"^vllm:cache_config_info\{.*$", re.M)
_NAME: Final = r"^{}[a-zA-Z0-9_:]+[ {{]"


def engine_of(page: str) -> str:
    """Return the engine whose metrics are on the page; "" if it is unknown."""
    for prefix, engine in _PREFIXES.items():
        if re.search(_NAME.format(re.escape(prefix)), page, re.M):
            return engine
    return ""


def cache_config_of(page: str) -> Mapping[str, str] | None:
    """Return the labels of vLLM's cache configuration; None without it."""
    line = _CACHE_CONFIG.search(page)
    if line is None:
        return None
    try:
        families = list(text_string_to_metric_families(f"{line[0]}\n"))
    except ValueError:
        return None
    return next((sample.labels for family in families for sample in family.samples), None)

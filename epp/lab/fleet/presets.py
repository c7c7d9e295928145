"""Presets of the engine: known models on known GPUs, with the source of their numbers.

The numbers of a model on a GPU are derived from public facts, see `_served`; docs/fleet.md compares
them with published measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    """Engine settings under a name."""

    fields: Mapping[str, float]
    """Fields of `EngineConfig` that differ from its defaults."""
    source: str
    """Source of the numbers, and how the derived ones were computed."""


@dataclass(frozen=True, slots=True)
class _Model:
    parameters: float
    layers: int
    kv_heads: int
    head_size: int
    max_model_len: int
    card: str

    @property
    def weight_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def kv_bytes_per_token(self) -> float:
        return 2 * 2 * self.layers * self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class _Gpu:
    bytes_per_second: float
    flops: float
    """Dense BF16 operations per second."""
    max_num_seqs: int
    max_num_batched_tokens: int
    data_sheet: str


_LLAMA_8B = _Model(
    8.03e9, 32, 8, 128, 131_072, "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct"
)
_LLAMA_70B = _Model(
    70.6e9, 80, 8, 128, 131_072, "https://huggingface.co/meta-llama/Llama-3.1-70B-Instruct"
)
_QWEN_32B = _Model(32.8e9, 64, 8, 128, 40_960, "https://huggingface.co/Qwen/Qwen3-32B")
# vLLM's defaults for its API server (vllm/engine/arg_utils.py) are larger on an H100.
_A100 = _Gpu(2.039e12, 312e12, 256, 2048, "https://www.nvidia.com/en-us/data-center/a100/")
_H100 = _Gpu(3.35e12, 989e12, 1024, 8192, "https://www.nvidia.com/en-us/data-center/h100/")

_MEMORY_BYTES = 80 * 2**30
_MEMORY_SHARE = 0.9
_RESERVED_BYTES = 4e9
_BANDWIDTH_SHARE = 0.77
_COMPUTE_SHARE = 0.47
_BLOCK_SIZE = 16
_SOURCE = (
    "Derived from {card} and {sheet}. Step: the weights are read at 77 % of the memory bandwidth,"
    " as measured at https://johnmusgrave.com/p/vllm-throughput-latency-sweep-on. Each prompt or"
    " decoded token takes 2 operations per parameter at 47 % of the peak, the share that"
    " https://github.com/inference-sim/inference-sim fitted for Llama-3.3-70B on 4 H100"
    " (defaults.yaml, 76.4 us per prefill token). KV tokens: their bytes at 77 % of the bandwidth."
    " Blocks: 90 % of the memory less weights and 4 GB per GPU, which llm-d reports for Qwen3-32B"
    " (2.46 M tokens on 8 pods of 2 H100). Limits: vLLM's defaults."
)


def _served(model: _Model, gpu: _Gpu, gpus: int = 1) -> Preset:
    """Return a model served with tensor parallelism by some GPUs."""
    bandwidth = gpus * gpu.bytes_per_second * _BANDWIDTH_SHARE
    token_seconds = 2 * model.parameters / (gpus * gpu.flops * _COMPUTE_SHARE)
    kv_bytes = gpus * (_MEMORY_BYTES * _MEMORY_SHARE - _RESERVED_BYTES) - model.weight_bytes
    return Preset(
        fields={
            "step_seconds": _rounded(model.weight_bytes / bandwidth),
            "prefill_tokens_per_second": _rounded(1 / token_seconds),
            "decode_seconds_per_sequence": _rounded(token_seconds),
            "kv_seconds_per_token": _rounded(model.kv_bytes_per_token / bandwidth),
            "num_blocks": int(kv_bytes / model.kv_bytes_per_token / _BLOCK_SIZE),
            "block_size": _BLOCK_SIZE,
            "max_num_seqs": gpu.max_num_seqs,
            "max_num_batched_tokens": gpu.max_num_batched_tokens,
            "max_model_len": model.max_model_len,
        },
        source=_SOURCE.format(card=model.card, sheet=gpu.data_sheet),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


_LLAMA_8B_H100 = _served(_LLAMA_8B, _H100)

PRESETS: Mapping[str, Preset] = {
    "tiny": Preset({}, "The defaults of `EngineConfig`: a small, fast server for tests."),
    "llama-3.1-8b/a100": _served(_LLAMA_8B, _A100),
    "llama-3.1-8b/h100": _LLAMA_8B_H100,
    "qwen3-32b/h100-tp2": _served(_QWEN_32B, _H100, 2),
    "llama-3.1-70b/h100-tp4": _served(_LLAMA_70B, _H100, 4),
    "study-a": Preset(
        {
            # 12 ms between tokens of one sequence, twice as much in a full batch.
            "step_seconds": 0.012,
            "decode_seconds_per_sequence": 0.012 / 64,
            "prefill_tokens_per_second": 4000,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 65_536,
            "max_num_prefills": 1,
            "num_blocks": 27_298,
            "max_model_len": 65_536,
        },
        "Engine A of the policy study: one prefill after the other. Times are those of the profile"
        " of an 8B model on an H100 in https://github.com/llm-d/llm-d-inference-sim (250 us per"
        " prompt token, 12 ms between tokens, factor 2 under full load); of its 30 ms per prefill,"
        " 18 are left out. 64 sequences and the blocks of llama-3.1-8b/h100 are assumed.",
    ),
    "study-b": Preset(
        {**_LLAMA_8B_H100.fields, "max_num_seqs": 256},
        "Engine B of the policy study: chunks of 8192 tokens, 256 sequences, blocks of 16 tokens."
        " The study does not give its times: they are those of llama-3.1-8b/h100.",
    ),
}
"""The presets by name."""

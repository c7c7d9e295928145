"""The decisions of an engine when a request arrives: its output, and when it can be admitted."""

from __future__ import annotations

from math import ceil, log

from epp.lab.fleet.engine_config import EngineConfig
from epp.lab.fleet.kv_cache import KvCache, adapter_root, block_keys
from epp.lab.fleet.sequence import (
    LENGTH_BYTES,
    FinishReason,
    GenerationRequest,
    Sequence,
    drawn_bytes,
)


def new_sequence(
    request: GenerationRequest, now: float, config: EngineConfig, kv: KvCache
) -> Sequence:
    """Return the sequence of a request that arrives now.

    Raises:
        ValueError: Prompt and output together are longer than `max_model_len`, or `max_tokens` is
            below 1.
    """
    prompt_tokens = request.prompt_tokens
    if request.max_tokens < 1 or prompt_tokens + request.max_tokens > config.max_model_len:
        raise ValueError(
            f"{prompt_tokens} prompt and {request.max_tokens} output tokens "
            f"do not fit in max_model_len {config.max_model_len}"
        )
    output_tokens, natural_end = draw_length(
        request, seed=config.seed, eos_probability=config.eos_probability
    )
    keys = request.block_keys
    if keys is None:
        root = adapter_root(request.adapter)
        keys = block_keys(request.prompt, config.block_size, parent=root)
    ready_at = now
    if request.prefilled:
        hits = kv.count_hits(keys, request.adapter) * config.block_size
        ready_at += _transfer_seconds(config, max(0, prompt_tokens - 1 - hits))
    return Sequence(
        request=request,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        natural_end=natural_end,
        keys=keys,
        arrived_at=now,
        ready_at=ready_at,
        seed=config.seed,
    )


def draw_length(
    request: GenerationRequest, *, seed: int, eos_probability: float
) -> tuple[int, FinishReason]:
    """Return the number of tokens that a request generates, and why it ends.

    They depend only on seeds, adapter and prompt.
    """
    if request.ignore_eos or eos_probability == 0:
        return request.max_tokens, FinishReason.LENGTH
    # Inverse of the geometric distribution: which token is the first to be an end of sequence.
    drawn = int.from_bytes(drawn_bytes(request, seed)[:LENGTH_BYTES], "big")
    uniform = min(drawn / 2 ** (8 * LENGTH_BYTES), 1 - 2**-53)
    length = max(1, request.min_tokens, ceil(log(1 - uniform) / log(1 - eos_probability)))
    if length > request.max_tokens:
        return request.max_tokens, FinishReason.LENGTH
    return length, FinishReason.STOP


def _transfer_seconds(config: EngineConfig, tokens: int) -> float:
    rate = config.kv_transfer_tokens_per_second
    seconds = config.kv_transfer_seconds + (tokens / rate if rate else 0.0)
    return seconds * config.time_scale

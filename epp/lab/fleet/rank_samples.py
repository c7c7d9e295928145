"""The counters and gauges of one data-parallel rank on the metrics page of a fake vLLM server."""

from __future__ import annotations

from epp.lab.fleet.engine import Engine
from epp.lab.fleet.metrics_text import escape
from epp.lab.fleet.sequence import FinishReason

_CACHED_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
_LORA_LABELS = 'max_lora="{}",running_lora_adapters="{}",waiting_lora_adapters="{}"'
_OTHER_REASONS = ("error", "repetition")

Sample = tuple[str, float]
"""Labels and value."""


class RankSamples:
    """Reads the samples of one rank from its engine."""

    def __init__(self, engine: Engine, rank: int, *, model: str, wall_offset: float) -> None:
        self._engine = engine
        self._rank = f'engine="{rank}"'
        self._model = f'model_name="{escape(model)}"'
        self._wall_offset = wall_offset
        self.labels = f"{self._rank},{self._model}"
        """Labels of most series."""

    def samples(self) -> dict[str, list[Sample]]:
        """Return labels and value of each sample, by name of the family without the prefix."""
        return {
            key: [(self._labels(key, extra), value) for extra, value in samples]
            for key, samples in self._plain_samples().items()
        }

    def _labels(self, key: str, extra: str) -> str:
        if key == "lora_requests_info":
            return extra
        if key == "admission_rejections_total":
            return f"{self._model},{extra}"
        if key == "cache_config_info":
            return f"{extra},{self._rank}"
        return f"{self.labels},{extra}" if extra else self.labels

    def _plain_samples(self) -> dict[str, list[Sample]]:
        engine, stats = self._engine, self._engine.stats
        deferred = engine.num_deferred if engine.config.adapters else 0
        waiting = engine.num_waiting + engine.config.phantom_waiting
        finished = {reason.value: float(count) for reason, count in stats.finished.items()}
        reasons = (*(reason.value for reason in FinishReason), *_OTHER_REASONS)
        computed = stats.prompt_tokens - stats.prompt_tokens_cached
        local = stats.prompt_tokens_cached - stats.prompt_tokens_transferred
        tiers = {"device": local, "p2p": stats.prompt_tokens_transferred}
        sources = {
            "local_compute": computed,
            "local_cache_hit": local,
            "external_kv_transfer": stats.prompt_tokens_transferred,
        }
        zero: list[Sample] = [("", 0.0)]
        return {
            "estimated_flops_per_gpu_total": zero,
            "estimated_read_bytes_per_gpu_total": zero,
            "estimated_write_bytes_per_gpu_total": zero,
            "num_requests_running": [("", engine.num_running)],
            "num_requests_waiting": [("", waiting)],
            "num_requests_waiting_by_reason": [
                ('reason="capacity"', waiting - deferred),
                ('reason="deferred"', deferred),
            ],
            "engine_sleep_state": [
                ('sleep_state="awake"', 1),
                ('sleep_state="weights_offloaded"', 0),
                ('sleep_state="discard_all"', 0),
            ],
            "kv_cache_usage_perc": [("", engine.kv.usage)],
            "prefix_cache_queries_total": [("", stats.prefix_queries)],
            "prefix_cache_hits_total": [("", stats.prefix_hits)],
            "external_prefix_cache_queries_total": [("", stats.external_queries)],
            "external_prefix_cache_hits_total": [("", stats.external_hits)],
            "mm_cache_queries_total": zero,
            "mm_cache_hits_total": zero,
            "num_preemptions_total": [("", stats.preemptions)],
            "prompt_tokens_total": [("", stats.prompt_tokens)],
            "prompt_tokens_by_source_total": [
                (f'source="{name}"', count) for name, count in sources.items()
            ],
            "prompt_tokens_cached_total": [("", stats.prompt_tokens_cached)],
            "prompt_tokens_cached_by_source_total": [
                (f'source="{name}"', tiers.get(name, 0)) for name in _CACHED_SOURCES
            ],
            "generation_tokens_total": [("", stats.generation_tokens)],
            "request_success_total": [
                (f'finished_reason="{r}"', finished.get(r, 0.0)) for r in reasons
            ],
            "admission_rejections_total": [
                ('reason="max_num_queued_reqs"', 0),
                ('reason="max_num_queued_tokens"', 0),
            ],
            "lora_requests_info": self._lora_samples(),
            "cache_config_info": [(self._cache_config(), 1)],
        }

    def _lora_samples(self) -> list[Sample]:
        slots = self._engine.config.max_loras
        return [
            (
                _LORA_LABELS.format(slots, escape(running), escape(waiting)),
                at + self._wall_offset,
            )
            for running, waiting, at in self._engine.lora_series.items()
        ]

    def _cache_config(self) -> str:
        config = self._engine.config
        tokens = config.num_blocks * config.block_size
        labels = {
            "block_size": config.block_size,
            "cache_dtype": "auto",
            "enable_prefix_caching": True,
            "gpu_memory_utilization": 0.92,
            "kv_cache_max_concurrency": tokens / config.max_model_len,
            "kv_cache_size_tokens": tokens,
            "num_cpu_blocks": None,
            "num_gpu_blocks": config.num_blocks,
            "num_gpu_blocks_override": config.num_blocks,
            "prefix_caching_hash_algo": "sha256_cbor",
        }
        return ",".join(f'{name}="{value}"' for name, value in labels.items())

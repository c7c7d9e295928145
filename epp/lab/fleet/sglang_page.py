"""The `/metrics` page of one fake SGLang server: its names, types, labels and buckets.

Source: SGLang's `srt/metrics/collector.py` and its page on production metrics. Values that are not
simulated (grammars, speculative decoding, queues of prefill and decode servers) are 0.
"""

from __future__ import annotations

from collections.abc import Collection

from epp.lab.fleet.engine import Engine
from epp.lab.fleet.metrics_text import HistogramText, escape
from epp.lab.fleet.sequence import FinishReason

_TTFT_BUCKETS = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0,
)  # fmt: skip
_BUCKETS = {
    "time_to_first_token_seconds": _TTFT_BUCKETS,
    "e2e_request_latency_seconds": (*_TTFT_BUCKETS, 600.0, 1200.0, 1800.0, 2400.0),
    "inter_token_latency_seconds": (
        0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1,
        0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
    ),
    "request_queue_time_seconds": (
        0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0,
        80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0, 1200.0,
        1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0,
    ),
}  # fmt: skip
"""Bounds by vLLM's name of the histogram."""
_HISTOGRAMS = {
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_latency_seconds",
    "e2e_request_latency_seconds": "e2e_request_latency_seconds",
    "queue_time_seconds": "request_queue_time_seconds",
}
"""SGLang's name, and vLLM's in `EngineStats.histograms`."""
_ZERO_GAUGES = (
    "swa_token_usage", "mamba_usage", "num_grammar_queue_reqs", "num_running_reqs_offline_batch",
    "spec_accept_length", "spec_accept_rate", "num_retracted_reqs", "num_paused_reqs",
    "num_prefill_prealloc_queue_reqs", "num_prefill_inflight_queue_reqs",
    "num_decode_prealloc_queue_reqs", "num_decode_transfer_queue_reqs", "is_cuda_graph",
)  # fmt: skip


class SglangPage:
    """Renders the page of one engine."""

    def __init__(self, engine: Engine, *, model: str) -> None:
        """Create the page, for an engine that has not served a request."""
        self._engine = engine
        self._model = f'model_name="{escape(model)}"'
        self._rank = f'engine_type="unified",moe_ep_rank="0",{self._model},pp_rank="0",tp_rank="0"'
        for name, bounds in _BUCKETS.items():
            engine.stats.histograms[name].use_bounds(bounds)
        self._histograms = {
            name: HistogramText(
                f"sglang:{name}",
                self._rank if name == "queue_time_seconds" else self._model,
                engine.stats.histograms[source],
            )
            for name, source in _HISTOGRAMS.items()
        }

    def render(self, *, without: Collection[str] = ()) -> bytes:
        """Return the current page, without the families of these names (without `sglang:`)."""
        lines: list[str] = []
        for kind, values, labels in (
            ("gauge", self._gauges(), self._rank),
            ("counter", self._scheduler_counters(), self._rank),
            ("counter", self._counters(), self._model),
        ):
            for name, value in values.items():
                if name not in without:
                    _head(lines, name, kind)
                    lines.append(f"sglang:{name}{{{labels}}} {float(value)!r}")
        if "cache_config_info" not in without:
            _head(lines, "cache_config_info", "gauge")
            lines.append(f"sglang:cache_config_info{{{self._cache_config()}}} 1.0")
        for name, text in self._histograms.items():
            if name not in without:
                _head(lines, name, "histogram")
                lines.append(text.render())
        lines.append("")
        return "\n".join(lines).encode()

    def _gauges(self) -> dict[str, float]:
        engine, stats = self._engine, self._engine.stats
        config = engine.config
        gauges = {
            "num_running_reqs": engine.num_running,
            "num_used_tokens": engine.kv.in_use * config.block_size,
            "token_usage": engine.kv.usage,
            "num_queue_reqs": engine.num_waiting + config.phantom_waiting,
            "cache_hit_rate": stats.prefix_hits / max(1, stats.prefix_queries),
            "max_total_num_tokens": config.num_blocks * config.block_size,
            "utilization": engine.num_running / config.max_num_seqs,
            **dict.fromkeys(_ZERO_GAUGES, 0),
        }
        if config.adapters:
            used = len({each.request.adapter for each in engine.running} - {None})
            gauges["lora_pool_slots_used"] = used
            gauges["lora_pool_slots_total"] = config.max_loras
            gauges["lora_pool_utilization"] = used / config.max_loras
        return gauges

    def _scheduler_counters(self) -> dict[str, float]:
        return {"num_retracted_requests_total": self._engine.stats.preemptions}

    def _counters(self) -> dict[str, float]:
        stats = self._engine.stats
        aborted = stats.finished[FinishReason.ABORT]
        return {
            "prompt_tokens_total": stats.prompt_tokens,
            "generation_tokens_total": stats.generation_tokens,
            "cached_tokens_total": stats.prompt_tokens_cached,
            "num_requests_total": sum(stats.finished.values()) - aborted,
            "num_so_requests_total": 0,
            "num_aborted_requests_total": aborted,
        }

    def _cache_config(self) -> str:
        config = self._engine.config
        return f'{self._rank},num_pages="{config.num_blocks}",page_size="{config.block_size}"'


def _head(lines: list[str], name: str, kind: str) -> None:
    lines.append(f"# HELP sglang:{name} {name.removesuffix('_total').replace('_', ' ')}")
    lines.append(f"# TYPE sglang:{name} {kind}")

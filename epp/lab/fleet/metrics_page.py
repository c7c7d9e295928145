"""The `/metrics` page of one fake server: the `vllm:` metrics of a recorded page, in its order.

`families.prom` contains the recorded HELP and TYPE lines; this module adds the samples. Values that
are not simulated (FLOPs, multi-modal cache) are 0. As in vLLM, `vllm:lora_requests_info` is missing
without adapters. `fake_stage_requests_total` does not exist in vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files

from epp.lab.fleet.engine import Engine
from epp.lab.fleet.metrics_text import escape, histogram_lines
from epp.lab.fleet.sequence import FinishReason
from epp.lab.fleet.stages import Stage

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
GARBLED_PAGE = (
    b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{e="0\xff\x00 7\n<'
)
"""Body of an invalid metrics page: an unclosed label, bytes that are not UTF-8, no number."""

_PREFIX = "vllm:"
_CACHED_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
_LORA_LABELS = 'max_lora="{}",running_lora_adapters="{}",waiting_lora_adapters="{}"'
_OTHER_REASONS = ("error", "repetition")

Sample = tuple[str, float]
"""Labels, without the common ones, and value."""


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    help: str
    kind: str

    @property
    def created_name(self) -> str:
        """Name of the gauge with the time of creation."""
        return (
            self.name.removesuffix("_total") if self.kind == "counter" else self.name
        ) + "_created"


def _load_families() -> tuple[_Family, ...]:
    lines = files(__package__).joinpath("families.prom").read_text().splitlines()
    families = []
    for help_line, type_line in zip(lines[::2], lines[1::2], strict=True):
        name, text = help_line.removeprefix("# HELP ").split(" ", 1)
        families.append(_Family(name, text, type_line.rsplit(" ", 1)[1]))
    return tuple(families)


_FAMILIES = _load_families()


class MetricsPage:
    """Renders the page of one engine."""

    def __init__(
        self,
        engine: Engine,
        stages: Mapping[Stage, int],
        *,
        model: str,
        created: float,
        wall_offset: float,
    ) -> None:
        """Create the page.

        Args:
            engine: The engine.
            stages: Number of requests by stage.
            model: Name of the base model.
            created: Start of the server, in seconds since the epoch.
            wall_offset: Seconds since the epoch minus the time of the engine's clock.
        """
        self._engine = engine
        self._stages = stages
        self._common = f'engine="0",model_name="{escape(model)}"'
        self._model = f'model_name="{escape(model)}"'
        self._created = repr(created)
        self._wall_offset = wall_offset

    def render(self, *, without: Collection[str] = ()) -> bytes:
        """Return the current page, without the families of these names (without `vllm:`)."""
        plain = self._plain_samples()
        lines: list[str] = [
            "# HELP process_cpu_seconds_total Total user and system CPU time spent in seconds.",
            "# TYPE process_cpu_seconds_total counter",
            f"process_cpu_seconds_total {time.process_time()}",
            "# HELP fake_stage_requests_total Requests by what this server did for them.",
            "# TYPE fake_stage_requests_total counter",
            *(
                f'fake_stage_requests_total{{stage="{stage.value}"}} {count}'
                for stage, count in self._stages.items()
            ),
        ]
        for family in _FAMILIES:
            key = family.name.removeprefix(_PREFIX)
            if key in without or (key == "lora_requests_info" and not self._engine.config.adapters):
                continue
            lines.append(f"# HELP {family.name} {family.help}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            if family.kind == "histogram":
                labels = [self._common]
                histogram = self._engine.stats.histograms[key]
                lines += histogram_lines(family.name, self._common, histogram)
            else:
                labels = [self._labels(key, extra) for extra, _ in plain[key]]
                lines.extend(
                    f"{family.name}{{{label}}} {float(value)!r}"
                    for label, (_, value) in zip(labels, plain[key], strict=True)
                )
            if family.kind != "gauge":
                lines.append(f"# HELP {family.created_name} {family.help}")
                lines.append(f"# TYPE {family.created_name} gauge")
                lines.extend(
                    f"{family.created_name}{{{label}}} {self._created}" for label in labels
                )
        lines.append("")
        return "\n".join(lines).encode()

    def _labels(self, key: str, extra: str) -> str:
        if key == "lora_requests_info":
            return extra
        if key == "admission_rejections_total":
            return f"{self._model},{extra}"
        if key == "cache_config_info":
            return f'{extra},engine="0"'
        return f"{self._common},{extra}" if extra else self._common

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

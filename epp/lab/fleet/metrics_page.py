"""The `/metrics` page of one fake server: the `vllm:` metrics of a recorded page, in its order.

`families.prom` contains the recorded HELP and TYPE lines; this module adds the samples. Values that
are not simulated (FLOPs, multi-modal cache) are 0. As in vLLM, `vllm:lora_requests_info` is missing
without adapters. `fake_stage_requests_total` does not exist in vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from epp.lab.fleet.engine import Engine
from epp.lab.fleet.metrics_text import HistogramText
from epp.lab.fleet.rank_samples import RankSamples, Sample
from epp.lab.fleet.stages import WorkStage

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
GARBLED_PAGE = (
    b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{e="0\xff\x00 7\n<'
)
"""Body of an invalid metrics page: an unclosed label, bytes that are not UTF-8, no number."""

_PREFIX = "vllm:"


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    kind: str
    key: str
    """Name without the prefix."""
    head: str
    """HELP and TYPE lines."""
    created_name: str
    """Name of the gauge with the time of creation."""
    created_head: str
    """Its HELP and TYPE lines."""

    @classmethod
    def of(cls, name: str, text: str, kind: str) -> _Family:
        """Return a family with its lines."""
        created = (name.removesuffix("_total") if kind == "counter" else name) + "_created"
        return cls(
            name=name,
            kind=kind,
            key=name.removeprefix(_PREFIX),
            head=f"# HELP {name} {text}\n# TYPE {name} {kind}",
            created_name=created,
            created_head=f"# HELP {created} {text}\n# TYPE {created} gauge",
        )


def _load_families() -> tuple[_Family, ...]:
    lines = files(__package__).joinpath("families.prom").read_text().splitlines()
    families = []
    for help_line, type_line in zip(lines[::2], lines[1::2], strict=True):
        name, text = help_line.removeprefix("# HELP ").split(" ", 1)
        families.append(_Family.of(name, text, type_line.rsplit(" ", 1)[1]))
    return tuple(families)


_FAMILIES = _load_families()


class MetricsPage:
    """Renders the page of the engines of a server."""

    def __init__(
        self,
        engines: Sequence[Engine],
        stages: Mapping[WorkStage, int],
        *,
        model: str,
        created: float,
        wall_offset: float,
    ) -> None:
        """Create the page.

        Args:
            engines: The engine of each data-parallel rank.
            stages: Number of requests by stage.
            model: Name of the base model.
            created: Start of the server, in seconds since the epoch.
            wall_offset: Seconds since the epoch minus the time of the engines' clock.
        """
        self._engines = tuple(engines)
        self._stages = stages
        self._created = repr(created)
        self._ranks = [
            RankSamples(engine, rank, model=model, wall_offset=wall_offset)
            for rank, engine in enumerate(engines)
        ]
        kept = [family for family in _FAMILIES if family.kind == "histogram"]
        self._histograms = {
            each.key: [
                HistogramText(each.name, rank.labels, engine.stats.histograms[each.key])
                for rank, engine in zip(self._ranks, engines, strict=True)
            ]
            for each in kept
        }
        self._histograms_created = {
            each.key: self._created_lines(each, [rank.labels for rank in self._ranks])
            for each in kept
        }

    def render(self, *, without: Collection[str] = ()) -> bytes:
        """Return the current page, without the families of these names (without `vllm:`)."""
        ranks = [rank.samples() for rank in self._ranks]
        has_adapters = bool(self._engines[0].config.adapters)
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
            key = family.key
            if key in without or (key == "lora_requests_info" and not has_adapters):
                continue
            lines.append(family.head)
            if family.kind == "histogram":
                lines.extend(each.render() for each in self._histograms[key])
                lines.append(self._histograms_created[key])
                continue
            samples = ranks[0][key] if len(ranks) == 1 else _merged(each[key] for each in ranks)
            lines.extend(f"{family.name}{{{label}}} {float(value)!r}" for label, value in samples)
            if family.kind == "counter":
                lines.append(self._created_lines(family, [label for label, _ in samples]))
        lines.append("")
        return "\n".join(lines).encode()

    def _created_lines(self, family: _Family, labels: Iterable[str]) -> str:
        samples = (f"{family.created_name}{{{label}}} {self._created}" for label in labels)
        return "\n".join((family.created_head, *samples))


def _merged(ranks: Iterable[list[Sample]]) -> list[Sample]:
    """Return the samples of all ranks; of those without a label of the rank, the highest."""
    merged: dict[str, float] = {}
    for samples in ranks:
        for label, value in samples:
            merged[label] = max(value, merged.get(label, value))
    return list(merged.items())

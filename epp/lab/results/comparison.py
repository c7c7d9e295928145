"""Compare policies: summaries of the same traffic, several seeds each, against a baseline."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from epp.lab.results.distribution import value_of
from epp.lab.results.ratios import CONFIDENCE, Ratio, RatioVerdict
from epp.lab.results.summary import Summary


class ComparisonError(ValueError):
    """Runs that cannot be compared; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a summary by which policies are compared."""

    name: str
    """Name in tables, such as ``TTFT p90``."""
    unit: str
    """Unit in tables, such as ``ms``; empty for none."""
    value: Callable[[Summary], float | None]
    """The number; None if the summary has none."""
    higher_is_better: bool = False
    """Whether a larger number is better."""


METRICS = (
    Metric("TTFT p50", "ms", lambda run: value_of(run.ttft_ms, "p50")),
    Metric("TTFT p90", "ms", lambda run: value_of(run.ttft_ms, "p90")),
    Metric("TTFT p99", "ms", lambda run: value_of(run.ttft_ms, "p99")),
    Metric("TPOT p90", "ms", lambda run: value_of(run.tpot_ms, "p90")),
    Metric("latency p90", "ms", lambda run: value_of(run.latency_ms, "p90")),
    Metric(
        "goodput",
        "requests/s",
        lambda run: None if run.goodput is None else run.goodput.per_second,
        higher_is_better=True,
    ),
    Metric(
        "throughput",
        "output tokens/s",
        lambda run: run.output_tokens_per_second,
        higher_is_better=True,
    ),
    Metric("hit rate", "", lambda run: run.hit_rate, higher_is_better=True),
    Metric(
        "busiest worker / mean",
        "",
        lambda run: (
            None
            if run.balance is None or run.balance.computed_tokens is None
            else run.balance.computed_tokens.max_to_mean
        ),
    ),
)
"""The metrics of a comparison, the most important first."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One metric of one policy."""

    median: float | None
    """Median of the seeds; None if a run has no value."""
    ratio: Ratio | None
    """Ratio to the baseline; None for the baseline, and if a value is missing or 0."""
    verdict: RatioVerdict | None
    """Conclusion from the ratio's interval; None for the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Policies compared by metrics."""

    baseline: str
    """Policy that the others are compared with."""
    oracles: frozenset[str]
    """Policies that know what no endpoint picker knows: they show what is attainable."""
    seeds: tuple[int, ...]
    """Seeds of every policy."""
    confidence: float
    """Probability that one interval covers the true ratio."""
    metrics: tuple[Metric, ...]
    """Metrics that at least one run has a value for."""
    cells: Mapping[str, tuple[Cell, ...]]
    """A cell for each metric, by policy, the baseline first."""
    summaries: Mapping[str, Mapping[int, Summary]]
    """The summaries by policy and seed."""

    def cell(self, policy: str, metric: str) -> Cell:
        """Return the cell of a policy and a metric by its name."""
        names = [each.name for each in self.metrics]
        return self.cells[policy][names.index(metric)]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "baseline": self.baseline,
            "oracles": sorted(self.oracles),
            "seeds": list(self.seeds),
            "confidence": self.confidence,
            "metrics": [
                {
                    "name": metric.name,
                    "unit": metric.unit,
                    "higher_is_better": metric.higher_is_better,
                    "policies": {
                        policy: asdict(cells[number]) for policy, cells in self.cells.items()
                    },
                }
                for number, metric in enumerate(self.metrics)
            ],
            "runs": [
                {"policy": policy, "seed": seed, "summary": summary.to_dict()}
                for policy, runs in self.summaries.items()
                for seed, summary in runs.items()
            ],
        }


def compare(
    summaries: Mapping[str, Mapping[int, Summary]],
    baseline: str | None = None,
    *,
    oracles: Iterable[str] = (),
    metrics: Sequence[Metric] = METRICS,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compare policies by their runs of the same seeds.

    Args:
        summaries: Summaries by policy and seed.
        baseline: Policy that the others are compared with; by default the first.
        oracles: Policies that know what no endpoint picker knows.
        metrics: Metrics to compare; one without any value is left out.
        confidence: Probability that one interval covers the true ratio. Of twenty comparisons
            without a difference, one is expected to claim one at 0.95.

    Raises:
        ComparisonError: There is no policy, no run, or a policy was run with other seeds.
    """
    if not summaries or not any(summaries.values()):
        raise ComparisonError("nothing to compare: no policy was run")
    first = next(iter(summaries)) if baseline is None else baseline
    if first not in summaries:
        known = ", ".join(summaries)
        raise ComparisonError(f"baseline {first!r} was not run; the policies are: {known}")
    seeds = tuple(summaries[first])
    for policy, runs in summaries.items():
        if set(runs) != set(seeds):
            raise ComparisonError(
                f"policy {policy!r} was run with the seeds {_listed(runs)}, {first!r} with "
                f"{_listed(seeds)}: only runs with equal seeds have the same traffic"
            )
    ordered = {first: summaries[first], **summaries}
    known_metrics = tuple(
        metric
        for metric in metrics
        if any(metric.value(run) is not None for runs in ordered.values() for run in runs.values())
    )
    cells = {
        policy: tuple(
            _cell(metric, runs, None if policy == first else ordered[first], confidence)
            for metric in known_metrics
        )
        for policy, runs in ordered.items()
    }
    return Comparison(
        baseline=first,
        oracles=frozenset(oracles).intersection(summaries),
        seeds=seeds,
        confidence=confidence,
        metrics=known_metrics,
        cells=cells,
        summaries=ordered,
    )


def _cell(
    metric: Metric,
    runs: Mapping[int, Summary],
    baseline: Mapping[int, Summary] | None,
    confidence: float,
) -> Cell:
    values = {seed: metric.value(run) for seed, run in runs.items()}
    present = [value for value in values.values() if value is not None]
    middle = median(present) if len(present) == len(values) else None
    if baseline is None:
        return Cell(middle, None, None)
    pairs = ((value, metric.value(baseline[seed])) for seed, value in values.items())
    ratio = Ratio.of(pairs, confidence)
    if ratio is None:
        return Cell(middle, None, RatioVerdict.NO_VALUE)
    return Cell(middle, ratio, ratio.verdict(higher_is_better=metric.higher_is_better))


def _listed(seeds: Mapping[int, Any] | Sequence[int]) -> str:
    return ", ".join(map(str, sorted(seeds))) or "none"

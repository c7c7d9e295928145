"""Mean and percentiles of a list of durations."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Return a percentile by the nearest-rank method.

    Args:
        ordered: Values in ascending order, at least one.
        fraction: 0.0-1.0.
    """
    # Round first: a product such as 9.000000000000002 must have the rank 9, not 10.
    rank = math.ceil(round(fraction * len(ordered), 9))
    return ordered[max(rank, 1) - 1]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Summary of durations, in milliseconds."""

    count: int
    """Number of values."""
    mean: float
    """Arithmetic mean."""
    p50: float
    """Median by nearest rank."""
    p90: float
    """90th percentile by nearest rank."""
    p95: float
    """95th percentile by nearest rank."""
    p99: float
    """99th percentile by nearest rank."""
    p999: float
    """99.9th percentile by nearest rank; the maximum of fewer than 1000 values."""
    max: float
    """Largest value."""

    @classmethod
    def of_seconds(cls, values: Iterable[float]) -> "Distribution | None":
        """Summarise durations in seconds; return None if there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(
            count=len(ordered),
            mean=math.fsum(ordered) / len(ordered) * 1000,
            p50=percentile(ordered, 0.50) * 1000,
            p90=percentile(ordered, 0.90) * 1000,
            p95=percentile(ordered, 0.95) * 1000,
            p99=percentile(ordered, 0.99) * 1000,
            p999=percentile(ordered, 0.999) * 1000,
            max=ordered[-1] * 1000,
        )


def value_of(distribution: Distribution | None, name: str) -> float | None:
    """Return a field of a distribution in milliseconds; None without a distribution."""
    value: float | None = None if distribution is None else getattr(distribution, name)
    return value

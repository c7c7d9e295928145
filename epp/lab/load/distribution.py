"""Mean and percentiles of a list of durations."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """The smallest value that at least `fraction` of the values do not exceed (nearest rank).

    Args:
        ordered: Values in ascending order, at least one.
        fraction: 0.0-1.0.
    """
    # 0.9 * 10 is 9.000000000000002 in some sums of floats: rounding first keeps that rank 9.
    rank = math.ceil(round(fraction * len(ordered), 9))
    return ordered[max(rank, 1) - 1]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Durations summed up, in milliseconds."""

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
    """99.9th percentile by nearest rank; the largest of fewer than a thousand values."""
    max: float
    """Largest value."""

    @classmethod
    def of_seconds(cls, values: Iterable[float]) -> "Distribution | None":
        """The distribution of durations given in seconds; None if there are none."""
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

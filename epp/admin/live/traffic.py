"""Computes rates and latencies of a pool from the counters and histograms of its metrics.

The totals are read in the thread of the metrics port, as for a page of /metrics. A rate is the
difference of two totals; a quantile is interpolated within a bucket of the difference of two
histograms.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import add, sub
from typing import NamedTuple

from epp.observability import Metrics
from epp.observability.metric_children import Histogram


class TrafficTotals(NamedTuple):
    """Totals since the start of the process."""

    requests: int
    """Requests that were sent to an endpoint."""
    errors: Mapping[str, int]
    """Requests that ended with an error, by its class."""
    first_byte: Sequence[int]
    """Streamed responses by bucket of the time to the first byte of their body."""
    decision: Sequence[int]
    """Scheduling cycles by bucket of their duration."""


class TrafficReader:
    """Reads the totals.

    Args:
        metrics: Metrics of the pool.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._families = metrics.requests.families
        self._decision = metrics.scheduler_e2e
        self.first_byte_bounds = self._families.first_byte_bounds
        self.decision_bounds = self._decision.bounds

    def read(self) -> TrafficTotals:
        """Return the current totals; thread-safe."""
        families = self._families
        errors: dict[str, int] = {}
        for labels, counter in families.errors.children:
            errors[labels[-1]] = errors.get(labels[-1], 0) + counter.value
        return TrafficTotals(
            requests=sum(counter.value for _, counter in families.total.children),
            errors=errors,
            first_byte=_sum(
                (child for labels, child in families.first_byte.children if labels[-1] == "true"),
                len(self.first_byte_bounds) + 1,
            ),
            decision=self._decision.counts(),
        )


def _sum(histograms: Iterable[Histogram], buckets: int) -> list[int]:
    total = [0] * buckets
    for each in histograms:
        total = list(map(add, total, each.counts()))
    return total


def difference(later: Sequence[int], earlier: Sequence[int]) -> list[int]:
    """Return the observations between two readings of a histogram.

    A bucket that shrank, because label sets left the page in between, counts as 0.
    """
    return [max(0, each) for each in map(sub, later, earlier)]


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return a quantile of the observations in a histogram; None without any.

    Args:
        bounds: Upper bounds of the buckets, ascending, without infinity.
        counts: Observations by bucket, one more than ``bounds``.
        share: 0.5 for the median.
    """
    left = share * sum(counts)
    if not left:
        return None
    for (low, high), count in zip(pairwise((0.0, *bounds)), counts, strict=False):
        if count and left <= count:
            return low + (high - low) * left / count
        left -= count
    return bounds[-1]

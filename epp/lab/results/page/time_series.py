"""Rates, requests in flight and TTFT over the time of a run, in buckets of equal width."""

from collections.abc import Sequence
from dataclasses import dataclass

from epp.lab.results.distribution import percentile
from epp.lab.results.page.charts import Points
from epp.lab.results.page.numbers import ceiling
from epp.lab.results.record import Record

_BUCKETS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """Curves over time: pairs of the middle of a bucket in seconds and a value."""

    bucket_seconds: float
    """Width of a bucket."""
    sent: Points
    """Requests sent per second."""
    succeeded: Points
    """Requests per second that ended well."""
    failed: Points
    """Requests per second that failed."""
    in_flight: Points
    """Most requests in flight."""
    ttft_p50: Points
    """Median TTFT in ms of the requests sent in a bucket."""
    ttft_p90: Points
    """90th percentile of it."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> "TimeSeries":
        """Return the curves of finished requests."""
        end = max((record.finished_at for record in records), default=0.0)
        width = ceiling(end / _BUCKETS)
        count = int(end / width) + 1
        sent, succeeded, failed = ([0] * count for _ in range(3))
        ttft: list[list[float]] = [[] for _ in range(count)]
        for record in records:
            started = int(max(record.started_at, 0.0) / width)
            sent[started] += 1
            ended = succeeded if record.succeeded else failed
            ended[int(max(record.finished_at, 0.0) / width)] += not record.left_early
            if record.succeeded and record.ttft_seconds is not None:
                ttft[started].append(record.ttft_seconds * 1000)
        middles = [(number + 0.5) * width for number in range(count)]
        for values in ttft:
            values.sort()

        def rates(counts: Sequence[int]) -> Points:
            return [(x, each / width) for x, each in zip(middles, counts, strict=True)]

        def percentiles(fraction: float) -> Points:
            return [
                (x, percentile(each, fraction) if each else None)
                for x, each in zip(middles, ttft, strict=True)
            ]

        return cls(
            bucket_seconds=width,
            sent=rates(sent),
            succeeded=rates(succeeded),
            failed=rates(failed),
            in_flight=list(zip(middles, _most_in_flight(records, width, count), strict=True)),
            ttft_p50=percentiles(0.5),
            ttft_p90=percentiles(0.9),
        )


def _most_in_flight(records: Sequence[Record], width: float, count: int) -> list[float]:
    changes = [(record.started_at, 1) for record in records]
    changes += [(record.finished_at, -1) for record in records]
    most = [0.0] * count
    in_flight = reached = 0
    for time, change in sorted(changes):
        bucket = int(max(time, 0.0) / width)
        for passed in range(reached + 1, bucket + 1):
            most[passed] = in_flight
        reached = bucket
        in_flight += change
        most[bucket] = max(most[bucket], in_flight)
    return most

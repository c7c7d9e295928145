"""Parts of a summary: requests of a tenant, an adapter or a worker, and the balance of workers."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from epp.lab.results.distribution import Distribution
from epp.lab.results.record import Record
from epp.lab.results.slo import Slo


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met every objective."""

    count: int
    """Number of requests."""
    per_second: float
    """`count` divided by the seconds of the run."""
    share: float
    """Fraction (0.0-1.0) of the finished requests that the client did not abort on purpose."""

    @classmethod
    def of(cls, records: Iterable[Record], slo: Slo, elapsed_seconds: float) -> "Goodput | None":
        """Count the requests that met `slo`; return None if it has no limit."""
        if not slo.is_set:
            return None
        judged = [record for record in records if not record.left_early]
        count = sum(map(slo.is_met, judged))
        share = count / len(judged) if judged else 0.0
        return cls(count, per_second(count, elapsed_seconds), share)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """Requests that have one property in common; latencies are those of succeeded requests."""

    requests: int
    """Finished requests."""
    succeeded: int
    """Requests with a complete response without error."""
    failed: int
    """Requests with an error."""
    requests_per_second: float
    """`succeeded` divided by the seconds of the run."""
    output_tokens_per_second: float
    """Output tokens of succeeded requests divided by the seconds of the run."""
    hit_rate: float | None
    """Fraction (0.0-1.0) of prompt tokens from a prefix cache; None without prompt tokens."""
    goodput: Goodput | None
    """Requests that met the objectives; None if there are none."""
    ttft_ms: Distribution | None
    """Time from sending to the first event with text."""
    tpot_ms: Distribution | None
    """Mean time per output token after the first of each response."""
    latency_ms: Distribution | None
    """Time from sending to the end of the response."""

    @classmethod
    def of(cls, records: Sequence[Record], slo: Slo, elapsed_seconds: float) -> "GroupSummary":
        """Summarise the records of one group."""
        good = [record for record in records if record.succeeded]
        output_tokens = sum(record.output_tokens for record in good)
        return cls(
            requests=len(records),
            succeeded=len(good),
            failed=sum(record.error is not None for record in records),
            requests_per_second=per_second(len(good), elapsed_seconds),
            output_tokens_per_second=per_second(output_tokens, elapsed_seconds),
            hit_rate=hit_rate(good),
            goodput=Goodput.of(records, slo, elapsed_seconds),
            ttft_ms=Distribution.of_seconds(
                r.ttft_seconds for r in good if r.ttft_seconds is not None
            ),
            tpot_ms=Distribution.of_seconds(
                r.tpot_seconds for r in good if r.tpot_seconds is not None
            ),
            latency_ms=Distribution.of_seconds(r.latency_seconds for r in good),
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """How evenly a quantity is spread over the workers."""

    max_to_mean: float
    """Largest value divided by the mean; 1.0 if all are equal."""
    variation: float
    """Coefficient of variation: standard deviation divided by the mean; 0.0 if all are equal."""

    @classmethod
    def of(cls, values: Collection[float]) -> "Spread | None":
        """Return the spread of one value per worker; None if all are 0 or there are none."""
        total = sum(values)
        if not total:
            return None
        mean = total / len(values)
        return cls(max(values) / mean, statistics.pstdev(values, mean) / mean)


@dataclass(frozen=True, slots=True)
class Balance:
    """How evenly the workers shared the load."""

    workers: int
    """Number of workers."""
    requests: Spread | None
    """Spread of answered requests."""
    computed_tokens: Spread | None
    """Spread of tokens that had to be computed: prompt tokens outside the cache, and output."""

    @classmethod
    def of(cls, records: Iterable[Record], workers: Iterable[str] = ()) -> "Balance | None":
        """Return the balance of answered requests; None without a named worker.

        Args:
            records: Finished requests.
            workers: Names of all workers, so that one without a request counts.
        """
        requests = dict.fromkeys(workers, 0)
        tokens = dict.fromkeys(requests, 0)
        for record in records:
            if name := record.worker:
                computed = record.prompt_tokens - record.cached_tokens + record.output_tokens
                requests[name] = requests.get(name, 0) + 1
                tokens[name] = tokens.get(name, 0) + computed
        if not requests:
            return None
        return cls(len(requests), Spread.of(requests.values()), Spread.of(tokens.values()))


def summaries_by(
    key: Callable[[Record], str], records: Iterable[Record], slo: Slo, elapsed_seconds: float
) -> dict[str, GroupSummary]:
    """Return a summary for each value of `key`, in descending order of requests.

    Nothing is returned if no record has a value: then the key has no meaning in this run.
    """
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    if not any(groups):
        return {}
    largest_first = sorted(groups.items(), key=lambda each: -len(each[1]))
    return {name: GroupSummary.of(each, slo, elapsed_seconds) for name, each in largest_first}


def hit_rate(records: Iterable[Record]) -> float | None:
    """Return the fraction of prompt tokens from a prefix cache; None without prompt tokens."""
    prompt = cached = 0
    for record in records:
        prompt += record.prompt_tokens
        cached += record.cached_tokens
    return cached / prompt if prompt else None


def per_second(count: float, seconds: float) -> float:
    """Return a rate; 0.0 for a run without duration."""
    return count / seconds if seconds > 0 else 0.0

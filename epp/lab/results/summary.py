"""The summary of a run: throughput, latencies, errors, and parts per tenant, adapter and worker."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any

from epp.lab.results.distribution import Distribution
from epp.lab.results.groups import (
    Balance,
    Goodput,
    GroupSummary,
    hit_rate,
    per_second,
    summaries_by,
)
from epp.lab.results.predictions import Predictions, parts_ms
from epp.lab.results.record import Record
from epp.lab.results.slo import Slo


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Failures of one kind."""

    count: int
    """Failed requests."""
    first_message: str
    """Message of the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Summary of a run.

    Latencies are those of succeeded requests; `first_byte_ms` and `ttft_ms` include requests that
    the client aborted on purpose, `schedule_delay_ms` includes all requests. Latencies are measured
    from the time when a request was sent; `schedule_delay_ms` is the time from due to sent.
    """

    interrupted: bool
    """Whether the run was cancelled."""
    elapsed_seconds: float
    """Time from the start to the end of the last request or the interruption."""
    sent: int
    """Requests sent."""
    succeeded: int
    """Requests with a complete response without error."""
    failed: int
    """Requests with an error."""
    left_early: int
    """Requests that the client aborted on purpose."""
    unfinished: int
    """Requests that were in flight when the run was interrupted."""
    peak_in_flight: int
    """Maximum number of requests in flight."""
    requests_per_second: float
    """`succeeded` divided by `elapsed_seconds`."""
    goodput: Goodput | None
    """Requests that met the objectives; None if there are none."""
    output_tokens: int
    """Output tokens of succeeded requests."""
    output_tokens_per_second: float
    """`output_tokens` divided by `elapsed_seconds`."""
    prompt_tokens: int
    """Prompt tokens of succeeded requests, according to `usage`."""
    cached_tokens: int
    """The part of `prompt_tokens` that came from a prefix cache."""
    hit_rate: float | None
    """`cached_tokens` divided by `prompt_tokens`; None without prompt tokens."""
    first_byte_ms: Distribution | None
    """Time from sending to the first byte of the body."""
    ttft_ms: Distribution | None
    """Time from sending to the first event with text; None without streaming."""
    tpot_ms: Distribution | None
    """Mean time per output token after the first of each response; None without streaming."""
    inter_token_ms: Distribution | None
    """Time between consecutive events with text, of all responses."""
    latency_ms: Distribution | None
    """Time from sending to the end of the response."""
    schedule_delay_ms: Distribution | None
    """Open loop: time from due to sent; a large p99 means that the generator is too slow."""
    endpoints: dict[str, int]
    """Responses per endpoint, in descending order; ``""`` counts those that name none."""
    errors: dict[str, ErrorSummary]
    """Failures by kind (`timeout`, `http-503`, …), in descending order."""
    balance: Balance | None
    """How evenly the workers shared the load; None if no response names its server."""
    tenants: dict[str, GroupSummary]
    """Summary of each tenant, ``""``: none; empty if no request has one."""
    adapters: dict[str, GroupSummary]
    """Summary of each LoRA adapter, ``""``: the base model; empty if no request names one."""
    workers: dict[str, GroupSummary]
    """Summary of each worker, ``""``: not named; empty if none is named."""
    predictions: Predictions | None
    """Predicted against real cached tokens; None if no prediction is known."""
    parts_ms: dict[str, Distribution]
    """Parts of the time of requests, as far as the accounts of the server and the endpoint picker
    have them, and the regret, if an oracle recorded the best choice."""

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values; the field names contain the units."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(Summary)}


def summarise(
    records: Sequence[Record],
    slo: Slo | None = None,
    *,
    elapsed_seconds: float | None = None,
    sent: int | None = None,
    peak_in_flight: int | None = None,
    interrupted: bool = False,
    is_open_loop: bool = True,
    workers: Iterable[str] = (),
) -> Summary:
    """Summarise finished requests.

    Args:
        records: Finished requests; the first message of each error is that of the first record.
        slo: Objectives that a request must meet to count towards the goodput.
        elapsed_seconds: Duration of the run; by default until the end of the last request.
        sent: Requests sent; by default as many as finished.
        peak_in_flight: Maximum number of requests in flight; by default that of the records.
        interrupted: Whether the run was cancelled.
        is_open_loop: Whether requests had a time when they were due.
        workers: Names of all workers, so that one without a request counts in the balance.
    """
    slo = slo or Slo()
    if elapsed_seconds is None:
        elapsed_seconds = max((record.finished_at for record in records), default=0.0)
    good = [record for record in records if record.succeeded]
    begun = [record for record in records if record.error is None]
    output_tokens = sum(record.output_tokens for record in good)
    answered = [record for record in records if record.status]
    return Summary(
        interrupted=interrupted,
        elapsed_seconds=elapsed_seconds,
        sent=len(records) if sent is None else sent,
        succeeded=len(good),
        failed=sum(record.error is not None for record in records),
        left_early=sum(record.left_early for record in records),
        unfinished=0 if sent is None else sent - len(records),
        peak_in_flight=_peak_in_flight(records) if peak_in_flight is None else peak_in_flight,
        requests_per_second=per_second(len(good), elapsed_seconds),
        goodput=Goodput.of(records, slo, elapsed_seconds),
        output_tokens=output_tokens,
        output_tokens_per_second=per_second(output_tokens, elapsed_seconds),
        prompt_tokens=sum(record.prompt_tokens for record in good),
        cached_tokens=sum(record.cached_tokens for record in good),
        hit_rate=hit_rate(good),
        first_byte_ms=Distribution.of_seconds(
            r.first_byte_at - r.started_at for r in begun if r.first_byte_at is not None
        ),
        ttft_ms=Distribution.of_seconds(
            r.ttft_seconds for r in begun if r.ttft_seconds is not None
        ),
        tpot_ms=Distribution.of_seconds(r.tpot_seconds for r in good if r.tpot_seconds is not None),
        inter_token_ms=Distribution.of_seconds(_gaps(good)),
        latency_ms=Distribution.of_seconds(r.latency_seconds for r in good),
        schedule_delay_ms=Distribution.of_seconds(
            r.started_at - r.scheduled_at for r in records if is_open_loop
        ),
        endpoints=dict(Counter(record.served_by for record in answered).most_common()),
        errors=_errors(records),
        balance=Balance.of(answered, workers),
        tenants=summaries_by(lambda each: each.tenant, records, slo, elapsed_seconds),
        adapters=summaries_by(lambda each: each.adapter, records, slo, elapsed_seconds),
        workers=summaries_by(lambda each: each.worker, records, slo, elapsed_seconds),
        predictions=Predictions.of(records),
        parts_ms=parts_ms(records),
    )


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _gaps(records: Sequence[Record]) -> Iterator[float]:
    for record in records:
        if record.has_all_token_times:
            for earlier, later in pairwise(record.token_times):
                yield later - earlier


def _peak_in_flight(records: Sequence[Record]) -> int:
    changes = [(record.started_at, 1) for record in records]
    changes += [(record.finished_at, -1) for record in records]
    in_flight = peak = 0
    for _, change in sorted(changes):
        in_flight += change
        peak = max(peak, in_flight)
    return peak


def _errors(records: Sequence[Record]) -> dict[str, ErrorSummary]:
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for record in records:
        if record.error is not None:
            counts[record.error_label] += 1
            first.setdefault(record.error_label, record.message)
    return {kind: ErrorSummary(count, first[kind]) for kind, count in counts.most_common()}

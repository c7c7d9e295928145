"""The summary of a run: throughput, latencies, errors, and responses per endpoint."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from epp.lab.load.plan import LoadPlan
from epp.lab.results.distribution import Distribution
from epp.lab.results.record import Record


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Failures of one kind."""

    count: int
    """Failed requests."""
    first_message: str
    """Message of the first of them."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met every objective of the plan."""

    count: int
    """Number of requests."""
    per_second: float
    """`count` divided by the seconds of the run."""
    share: float
    """Fraction (0.0-1.0) of the finished requests that the client did not abort on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Summary of a run.

    Latencies are those of succeeded requests; `first_byte_ms` and `ttft_ms` include requests that
    the client aborted on purpose, `schedule_delay_ms` includes all requests. Latencies are measured
    from the time when a request was sent; `schedule_delay_ms` is the time from due to sent.
    """

    plan: LoadPlan
    """The plan of the run."""
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
    """Requests that met the plan's objectives; None if it has none."""
    output_tokens: int
    """Output tokens of succeeded requests."""
    output_tokens_per_second: float
    """`output_tokens` divided by `elapsed_seconds`."""
    prompt_tokens: int
    """Prompt tokens of succeeded requests, according to `usage`."""
    cached_tokens: int
    """The part of `prompt_tokens` that came from a prefix cache."""
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
    records: Sequence[Record]
    """All finished requests in the order of completion; not in `to_dict`."""

    @classmethod
    def from_records(
        cls,
        plan: LoadPlan,
        records: Sequence[Record],
        *,
        sent: int,
        elapsed_seconds: float,
        peak_in_flight: int,
        interrupted: bool = False,
    ) -> "Report":
        """Summarise `records`, which are in the order of completion."""
        good = [record for record in records if record.succeeded]
        begun = [record for record in records if record.error is None]
        output_tokens = sum(record.output_tokens for record in good)
        late = (r.started_at - r.scheduled_at for r in records if plan.rate is not None)
        answered = Counter(record.served_by for record in records if record.status)
        return cls(
            plan=plan,
            interrupted=interrupted,
            elapsed_seconds=elapsed_seconds,
            sent=sent,
            succeeded=len(good),
            failed=sum(record.error is not None for record in records),
            left_early=sum(record.left_early for record in records),
            unfinished=sent - len(records),
            peak_in_flight=peak_in_flight,
            requests_per_second=_per_second(len(good), elapsed_seconds),
            goodput=_goodput(plan, records, elapsed_seconds),
            output_tokens=output_tokens,
            output_tokens_per_second=_per_second(output_tokens, elapsed_seconds),
            prompt_tokens=sum(record.prompt_tokens for record in good),
            cached_tokens=sum(record.cached_tokens for record in good),
            first_byte_ms=Distribution.of_seconds(
                r.first_byte_at - r.started_at for r in begun if r.first_byte_at is not None
            ),
            ttft_ms=Distribution.of_seconds(
                r.ttft_seconds for r in begun if r.ttft_seconds is not None
            ),
            tpot_ms=Distribution.of_seconds(
                r.tpot_seconds for r in good if r.tpot_seconds is not None
            ),
            inter_token_ms=Distribution.of_seconds(_gaps(good)),
            latency_ms=Distribution.of_seconds(r.latency_seconds for r in good),
            schedule_delay_ms=Distribution.of_seconds(late),
            endpoints=dict(answered.most_common()),
            errors=_errors(records),
            records=records,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values; the field names contain the units."""
        values: dict[str, Any] = {"plan": self.plan.to_dict()}
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "errors":
                values[name] = {kind: asdict(summary) for kind, summary in value.items()}
            elif name not in {"plan", "records"}:
                is_record = isinstance(value, Distribution | Goodput)
                values[name] = asdict(value) if is_record else value
        return values


def _per_second(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _goodput(plan: LoadPlan, records: Sequence[Record], elapsed_seconds: float) -> Goodput | None:
    if not plan.slo.is_set:
        return None
    judged = [record for record in records if not record.left_early]
    count = sum(map(plan.slo.is_met, judged))
    share = count / len(judged) if judged else 0.0
    return Goodput(count, _per_second(count, elapsed_seconds), share)


def _gaps(records: Sequence[Record]) -> Iterator[float]:
    for record in records:
        for earlier, later in pairwise(record.token_times):
            yield later - earlier


def _errors(records: Sequence[Record]) -> dict[str, ErrorSummary]:
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for record in records:
        if record.error is not None:
            counts[record.error_label] += 1
            first.setdefault(record.error_label, record.message)
    return {kind: ErrorSummary(count, first[kind]) for kind, count in counts.most_common()}

"""Records summed up: throughput, latencies, errors, and which endpoint served how much."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from epp.lab.load.distribution import Distribution
from epp.lab.load.plan import LoadPlan
from epp.lab.load.record import Record


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Failures of one kind."""

    count: int
    """Requests that failed so."""
    first_message: str
    """What the first of them said."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met every objective of the plan."""

    count: int
    """How many."""
    per_second: float
    """`count` by the seconds of the run."""
    share: float
    """Fraction (0.0-1.0) of the finished requests whose client did not leave on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Summary of a run.

    Latencies are over succeeded requests, except that `first_byte_ms` and `ttft_ms` also count the
    clients that left on purpose, and `schedule_delay_ms` all requests. They start when the request
    was sent, not when it was due; how late it was sent is `schedule_delay_ms`.
    """

    plan: LoadPlan
    """What was to be run."""
    interrupted: bool
    """The run was cancelled."""
    elapsed_seconds: float
    """From the start to the end of the last request (or the interruption)."""
    sent: int
    """Requests begun."""
    succeeded: int
    """Whole good answers."""
    failed: int
    """Requests with an error."""
    left_early: int
    """Clients that left on purpose."""
    unfinished: int
    """Requests in flight at an interruption."""
    peak_in_flight: int
    """Most requests in flight at one time."""
    requests_per_second: float
    """`succeeded` by `elapsed_seconds`."""
    goodput: Goodput | None
    """What met the plan's objectives; None if it has none."""
    output_tokens: int
    """Tokens of succeeded answers."""
    output_tokens_per_second: float
    """`output_tokens` by `elapsed_seconds`."""
    prompt_tokens: int
    """Prompt tokens of succeeded requests, by the servers' `usage`."""
    cached_tokens: int
    """Those of `prompt_tokens` that came from a prefix cache."""
    first_byte_ms: Distribution | None
    """From sending to the first byte of the body."""
    ttft_ms: Distribution | None
    """From sending to the first event with text; None without streaming."""
    tpot_ms: Distribution | None
    """Time per output token after the first, one value for each answer; None without streaming."""
    inter_token_ms: Distribution | None
    """Gaps between neighbouring events with text, over all answers."""
    latency_ms: Distribution | None
    """From sending to the end of the answer."""
    schedule_delay_ms: Distribution | None
    """Open loop: how late requests were sent; a large p99 means the generator was too slow."""
    endpoints: dict[str, int]
    """Answers per endpoint, most first; those without a name are under ``""``."""
    errors: dict[str, ErrorSummary]
    """Failures by kind (`timeout`, `http-503`, …), most first."""
    records: Sequence[Record]
    """All finished requests, in the order of their end; not in `to_dict`."""

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
        """Sums up `records`, given in the order of their end."""
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
        """The report as JSON-ready values; field names carry the units."""
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

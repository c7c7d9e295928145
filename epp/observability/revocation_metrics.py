"""Metrics of evictions: requests in flight that are ended in favour of a higher band."""

from typing import Final, Literal

from prometheus_client import CollectorRegistry

from epp.observability.known_names import MAX_PRIORITIES, OTHER
from epp.observability.metric_families import Maker

RevocationOutcome = Literal["confirmed", "timed_out"]

# The Go EPP's buckets; it waits up to 10 s for the end of a stream.
_CONFIRMATIONS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RevocationMetrics:
    """Counts the revocations of one pool; each that is issued ends exactly once."""

    def __init__(self, registry: CollectorRegistry, pool: str) -> None:
        make = Maker(registry)
        own = ("inference_pool",)
        self._pool = pool
        self._priorities: set[str] = set()
        self._issued = make.counter(
            "flow_control_revocations_issued_total",
            "Requests in flight that were told to end; priority is theirs.",
            ("priority", *own),
        )
        self._ended = make.counter(
            "flow_control_revocations_total",
            "Revocations by outcome: confirmed, or timed_out if the end was not seen in time.",
            ("outcome", *own),
        )
        self._confirmation = make.histogram(
            "flow_control_revocation_confirmation_seconds",
            "Time from issuing a revocation to the end of the stream.",
            own,
            _CONFIRMATIONS,
        ).labels(pool)
        self._target = make.gauge(
            "flow_control_reclaim_target",
            "By how much the saturation exceeded the ceiling of the blocked band, last time.",
            own,
        ).labels(pool)
        self._pending = make.gauge(
            "flow_control_pending_reclaim",
            "How much saturation the revocations under way will take off.",
            own,
        ).labels(pool)

    def issued(self, priority: int) -> None:
        """Count a revocation of a request of ``priority``."""
        label = str(priority)
        if len(self._priorities) < MAX_PRIORITIES:
            self._priorities.add(label)
        self._issued.labels(label if label in self._priorities else OTHER, self._pool).inc()

    def ended(self, outcome: RevocationOutcome, seconds: float) -> None:
        """Count the end of a revocation, ``seconds`` after it was issued."""
        self._ended.labels(outcome, self._pool).inc()
        if outcome == "confirmed":
            self._confirmation.observe(seconds)

    def reclaim(self, *, target: float, pending: float) -> None:
        """Set the amount to be reclaimed and the amount pending."""
        self._target.set(target)
        self._pending.set(pending)

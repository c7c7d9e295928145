"""Service level objectives: the limits for a request to count towards the goodput."""

from dataclasses import dataclass, fields

from epp.lab.results.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Upper limits of latencies; None: no limit."""

    ttft_seconds: float | None = None
    """Limit of the time to the first event with text."""
    tpot_seconds: float | None = None
    """Limit of the mean time per output token after the first; a single token meets it."""
    latency_seconds: float | None = None
    """Limit of the time to the end of the response."""

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return any(getattr(self, field.name) is not None for field in fields(self))

    def is_met(self, record: Record) -> bool:
        """Return whether the request succeeded within all limits."""
        if not record.succeeded:
            return False
        times = (
            (record.ttft_seconds, self.ttft_seconds),
            (record.tpot_seconds, self.tpot_seconds),
            (record.latency_seconds, self.latency_seconds),
        )
        return all(most is None or seconds is None or seconds <= most for seconds, most in times)

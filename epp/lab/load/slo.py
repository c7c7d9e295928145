"""Service level objectives: how fast an answer must be to count as good (goodput)."""

from dataclasses import dataclass, fields

from epp.lab.load.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The longest times that are good; None: any."""

    ttft_seconds: float | None = None
    """To the first event with text."""
    tpot_seconds: float | None = None
    """Per output token after the first; an answer of one token is good."""
    latency_seconds: float | None = None
    """To the end of the answer."""

    @property
    def is_set(self) -> bool:
        """Whether there is any."""
        return any(getattr(self, field.name) is not None for field in fields(self))

    def is_met(self, record: Record) -> bool:
        """Whether the request succeeded, and as fast as wanted."""
        if not record.succeeded:
            return False
        times = (
            (record.ttft_seconds, self.ttft_seconds),
            (record.tpot_seconds, self.tpot_seconds),
            (record.latency_seconds, self.latency_seconds),
        )
        return all(most is None or seconds is None or seconds <= most for seconds, most in times)

"""What the scraper knows beyond the pages themselves: faults of each source, age of the metrics."""

from dataclasses import dataclass, field

from epp.data_layer.errors import ScrapeError
from epp.data_layer.scrape_pace import ScrapePace
from epp.data_layer.staleness import faded_fraction
from epp.scheduling import Endpoint


@dataclass(slots=True, eq=False)
class Faults:
    """The failures of one step: of asking, or of one extractor."""

    last: ScrapeError | None = None
    """Why it failed last; None after a success."""
    in_a_row: int = 0
    total: int = 0

    def note(self, error: ScrapeError) -> bool:
        """Count a failure; return whether its kind is news."""
        news = self.last is None or self.last.kind != error.kind
        self.last = error
        self.in_a_row += 1
        self.total += 1
        return news

    def clear(self) -> int:
        """Take note of a success; return how many failures it ends."""
        ended, self.in_a_row, self.last = self.in_a_row, 0, None
        return ended


@dataclass(slots=True, eq=False)
class ScrapeState:
    """What one source says of one endpoint."""

    endpoint: Endpoint
    source: str
    """Name of the source."""
    pace: ScrapePace
    """How often it is asked."""
    polls: Faults = field(default_factory=Faults)
    extracts: dict[str, Faults] = field(default_factory=dict)
    """By name of the extractor."""


@dataclass(slots=True, eq=False)
class MetricsAge:
    """How old ``endpoint.metrics`` is; times are seconds of the scraper's clock."""

    endpoint: Endpoint
    interval_seconds: float
    """The present interval: the configured one, or what scrapes really take if that is longer."""

    def seconds(self, now: float) -> float | None:
        """Return the time since the last page was asked for, None if there was never one."""
        requested_at = self.endpoint.metrics.requested_at
        return None if requested_at is None else now - requested_at

    def faded(self, now: float, staleness_seconds: float) -> float:
        """Return how much of the last page is given up: 0.0 when fresh, 1.0 when never scraped."""
        age = self.seconds(now)
        return 1.0 if age is None else faded_fraction(age, staleness_seconds, self.interval_seconds)

    def note_page(
        self, configured_interval_seconds: float, previous: float | None, *, unbroken: bool
    ) -> None:
        """Take note of new metrics.

        Args:
            configured_interval_seconds: How often their source is asked.
            previous: When the metrics before these were asked for.
            unbroken: No failure came in between.
        """
        requested_at = self.endpoint.metrics.requested_at
        gap = 0.0
        # A gap that failures made is not the interval: it would put off the doubt they deserve.
        if unbroken and previous is not None and requested_at is not None:
            gap = requested_at - previous
        self.interval_seconds = max(configured_interval_seconds, gap)

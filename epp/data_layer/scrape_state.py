"""State of scraping: failures of each source and extractor, age of each endpoint's metrics."""

from dataclasses import dataclass, field
from math import inf

from epp.data_layer.errors import ScrapeError
from epp.data_layer.plugins import LoadReport
from epp.data_layer.scrape_pace import ScrapePace
from epp.data_layer.staleness import faded_fraction, threshold_seconds
from epp.scheduling import Endpoint


@dataclass(slots=True, eq=False)
class Faults:
    """Failures of one step: of polling, or of one extractor."""

    last: ScrapeError | None = None
    """The latest failure; None after a success."""
    in_a_row: int = 0
    total: int = 0

    def note(self, error: ScrapeError) -> bool:
        """Count a failure; return whether its kind differs from the previous one."""
        news = self.last is None or self.last.kind != error.kind
        self.last = error
        self.in_a_row += 1
        self.total += 1
        return news

    def clear(self) -> int:
        """Record a success; return the number of failures in a row before it."""
        ended, self.in_a_row, self.last = self.in_a_row, 0, None
        return ended


@dataclass(slots=True, eq=False)
class ScrapeState:
    """State of scraping one endpoint by one source."""

    endpoint: Endpoint
    source: str
    """Name of the source."""
    pace: ScrapePace
    """Its scrape interval while the endpoint has requests."""
    rest_seconds: float = 0.0
    """How much longer the current interval is because the endpoint is idle or its scrapes fail."""
    polls: Faults = field(default_factory=Faults)
    extracts: dict[str, Faults] = field(default_factory=dict)
    """By name of the extractor."""


@dataclass(slots=True, eq=False)
class MetricsAge:
    """How old ``endpoint.metrics`` is; times are seconds of the scraper's clock."""

    endpoint: Endpoint
    interval_seconds: float
    """The configured interval, or the actual time between scrapes if that is longer."""
    scraped_at: float | None = None
    """When the latest page was requested, even if a load report is newer."""
    report: LoadReport | None = None
    """The latest load report."""
    reported_at: float = 0.0
    """When it arrived."""
    fresh_until: float = -inf
    """When the metrics become stale; set with each page, and by :meth:`note_threshold`."""

    def seconds(self, now: float) -> float | None:
        """Return the time since the latest page was requested, or since a newer load report.

        None if there was neither.
        """
        requested_at = self.endpoint.metrics.requested_at
        return None if requested_at is None else now - requested_at

    def faded(self, now: float, staleness_seconds: float) -> float:
        """Return the faded fraction of the metrics: 0.0 if fresh, 1.0 if never scraped."""
        age = self.seconds(now)
        return 1.0 if age is None else faded_fraction(age, staleness_seconds, self.interval_seconds)

    def note_threshold(self, staleness_seconds: float) -> None:
        """Set :attr:`fresh_until`, after a change of the metrics' time or of the interval."""
        requested_at = self.endpoint.metrics.requested_at
        if requested_at is not None:
            threshold = threshold_seconds(staleness_seconds, self.interval_seconds)
            self.fresh_until = requested_at + threshold

    def note_page(
        self, requested_at: float, configured_interval_seconds: float, *, unbroken: bool
    ) -> None:
        """Record the arrival of new metrics.

        Args:
            requested_at: When their page was requested.
            configured_interval_seconds: Interval of their source.
            unbroken: Whether no scrape failed since the previous page.
        """
        previous = self.scraped_at
        if requested_at == previous:
            return  # another extractor of the same page
        self.scraped_at = requested_at
        # A gap caused by failures is not the interval: it would delay staleness after them.
        gap = requested_at - previous if unbroken and previous is not None else 0.0
        self.interval_seconds = max(configured_interval_seconds, gap)

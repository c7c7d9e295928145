"""What the scraper knows of one endpoint beyond its last page: age, errors, present interval."""

from dataclasses import dataclass

from epp.data_layer.errors import ScrapeError
from epp.data_layer.staleness import faded_fraction
from epp.scheduling import Endpoint


@dataclass(slots=True, eq=False)
class ScrapeState:
    """The scraping of one endpoint; times are seconds of the scraper's clock."""

    endpoint: Endpoint
    configured_interval_seconds: float
    interval_seconds: float
    """The present interval: the configured one, or what scrapes really take if that is longer."""
    last_error: ScrapeError | None = None
    """Why the last scrape failed; None after a good one."""
    error_count: int = 0
    """Failed scrapes since the endpoint came."""
    errors_in_a_row: int = 0

    def age_seconds(self, now: float) -> float | None:
        """Return the time since the last page was asked for, None if there was never one."""
        requested_at = self.endpoint.metrics.requested_at
        return None if requested_at is None else now - requested_at

    def faded(self, now: float, staleness_seconds: float) -> float:
        """Return how much of the last page is given up: 0.0 when fresh, 1.0 when never scraped."""
        requested_at = self.endpoint.metrics.requested_at
        if requested_at is None:
            return 1.0
        return faded_fraction(now - requested_at, staleness_seconds, self.interval_seconds)

    def note_page(self, requested_at: float) -> None:
        """Count a good scrape asked for at ``requested_at``, before its page replaces the last."""
        previous = self.endpoint.metrics.requested_at
        # A gap that failures made is not the interval: it would put off the doubt they deserve.
        gap = 0.0 if previous is None or self.errors_in_a_row else requested_at - previous
        self.interval_seconds = max(self.configured_interval_seconds, gap)
        self.last_error = None
        self.errors_in_a_row = 0

    def note_error(self, error: ScrapeError) -> bool:
        """Count a failed scrape; return whether its kind is news."""
        news = self.last_error is None or self.last_error.kind != error.kind
        self.last_error = error
        self.error_count += 1
        self.errors_in_a_row += 1
        return news

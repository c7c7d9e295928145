"""Metrics of the scrapes of model servers: failures, durations, late starts, intervals."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.observability.metric_families import Maker
from epp.observability.pool_metrics import shown_names
from epp.scheduling import Endpoint, Plugin

TOO_LARGE = "too-large"
"""Kind of the scrape error that has a counter of its own."""

# A page takes 1 ms from an idle server of the same zone; a scrape is given up after 1 s.
_DURATIONS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# A timer of the event loop is late by up to 1 ms; scrapes come every 50 ms.
_LAGS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class ScrapeMetrics:
    """Counts and times scrapes; a ``ScrapeObserver``."""

    def __init__(self, make: Maker) -> None:
        own = ("source_type",)
        self._poll_errors = make.counter(
            "datalayer_poll_errors_total", "Failed scrapes of model servers.", own
        )
        self._extract_errors = make.counter(
            "datalayer_extract_errors_total",
            "Pages of model servers that an extractor could not use.",
            (*own, "extractor_type"),
        )
        self._pages_too_large = make.counter(
            "datalayer_pages_too_large_total",
            "Pages of model servers that are longer, or have more series, than the limit.",
            own,
        )
        self._durations = make.histogram(
            "datalayer_scrape_duration_seconds",
            "Request of a page to the end of its extractors, of successful scrapes.",
            own,
            _DURATIONS,
        )
        self._lags = make.histogram(
            "datalayer_scrape_lag_seconds",
            "How late scrapes start because the event loop is busy.",
            own,
            _LAGS,
        )

    def scrape_started(self, source: Plugin, lag_seconds: float) -> None:
        """Time how late a scrape starts."""
        self._lags.labels(source.type).observe(lag_seconds)

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        """Time a successful scrape."""
        self._durations.labels(source.type).observe(seconds)

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        """Count a failed poll."""
        self._poll_errors.labels(source.type).inc()
        if kind == TOO_LARGE:
            self._pages_too_large.labels(source.type).inc()

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        """Count a page that an extractor could not use."""
        self._extract_errors.labels(source.type, extractor.type).inc()
        if kind == TOO_LARGE:
            self._pages_too_large.labels(source.type).inc()


class ScrapeCollector(Collector):
    """Gauges of the scrape intervals.

    Args:
        read: Returns the current intervals by names of endpoint and source.
    """

    def __init__(self, read: Callable[[], Mapping[tuple[str, str], float]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read all intervals."""
        family = GaugeMetricFamily(
            "llm_d_epp_datalayer_scrape_interval_seconds",
            "Present time between two scrapes; longer than configured where a page costs too much.",
            labels=["model_server_endpoint", "source"],
        )
        intervals = dict(self._read())
        shown = shown_names({endpoint for endpoint, _ in intervals})
        for (endpoint, source), seconds in intervals.items():
            family.add_metric([shown[endpoint], source], seconds)
        yield family

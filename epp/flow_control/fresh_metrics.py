"""Fresh metrics may show room for those who wait."""

from collections.abc import Callable

from epp.data_layer.scrape import ScrapeObserver
from epp.scheduling import Endpoint, Plugin


class FreshMetrics:
    """Passes on how scrapes go, and wakes flow control after each page."""

    def __init__(self, observer: ScrapeObserver, wake: Callable[[], None]) -> None:
        self._observer = observer
        self._wake = wake

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        """Pass it on, then wake."""
        self._observer.page_scraped(source, endpoint, seconds)
        self._wake()

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        """Pass it on."""
        self._observer.poll_failed(source, endpoint, kind)

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        """Pass it on."""
        self._observer.extract_failed(source, extractor, endpoint, kind)

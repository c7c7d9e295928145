"""Callbacks for the events of scraping."""

from typing import Protocol

from epp.scheduling import Endpoint, Plugin


class ScrapeObserver(Protocol):
    """Callbacks for scrape metrics."""

    def scrape_started(self, source: Plugin, lag_seconds: float) -> None:
        """A scrape starts, ``lag_seconds`` after it was due."""

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        """The extractors have read a page, ``seconds`` after it was requested."""

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        """A poll failed; ``kind`` is that of the error class (``datalayer_poll_errors_total``)."""

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        """An extractor failed on a page (``datalayer_extract_errors_total``)."""


class NullScrapeObserver:
    """An observer that does nothing."""

    def scrape_started(self, source: Plugin, lag_seconds: float) -> None:
        """Ignore the start."""

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        """Ignore the page."""

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        """Ignore the failure."""

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        """Ignore the failure."""


class ScrapeObservers:
    """Passes each event to several observers, in order."""

    def __init__(self, *observers: ScrapeObserver) -> None:
        # Observers that ignore every event are left out.
        self._observers = [each for each in observers if type(each) is not NullScrapeObserver]
        self._page_scraped = [each.page_scraped for each in self._observers]

    def scrape_started(self, source: Plugin, lag_seconds: float) -> None:
        """Pass the start on."""
        for each in self._observers:
            each.scrape_started(source, lag_seconds)

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        """Pass the page on."""
        for page_scraped in self._page_scraped:
            page_scraped(source, endpoint, seconds)

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        """Pass the failure on."""
        for each in self._observers:
            each.poll_failed(source, endpoint, kind)

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        """Pass the failure on."""
        for each in self._observers:
            each.extract_failed(source, extractor, endpoint, kind)

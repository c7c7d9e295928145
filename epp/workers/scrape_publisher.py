"""What the worker that scrapes posts to the others: the values that have changed, and failures."""

import pickle
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any, Final

import structlog

from epp.data_layer import ScrapeObserver
from epp.scheduling import NEVER_SCRAPED, AttributeKey, Endpoint, EndpointMetrics, Plugin
from epp.workers.leadership import Leadership
from epp.workers.links import Links

_log = structlog.get_logger(__name__)

PAGE: Final = "page"
FAULT: Final = "scrape fault"
_VALUES: Final = attrgetter(*EndpointMetrics.__dataclass_fields__)
"""Returns the values of a page as a tuple: pickling the object takes five times as long."""
_NOTHING: Final[tuple[EndpointMetrics, dict[AttributeKey[Any], object]]] = (NEVER_SCRAPED, {})


class ScrapePublisher:
    """Posts the results of the leader's scrapes, and notifies its own observer first.

    Args:
        links: The connections to the other workers.
        leadership: Whether this worker scrapes.
        observer: This worker's own observer.
        written: Returns the attributes that extractors write.
    """

    def __init__(
        self,
        links: Links,
        leadership: Leadership,
        observer: ScrapeObserver,
        written: Callable[[], Collection[AttributeKey[Any]]],
    ) -> None:
        self._written = written
        self._links = links
        self._leadership = leadership
        self._observer = observer
        self._posted: dict[Endpoint, tuple[EndpointMetrics, dict[AttributeKey[Any], object]]] = {}
        """The values that were last posted."""
        self._logged_unshared: set[str] = set()

    def scrape_started(self, source: Plugin, lag_seconds: float) -> None:
        self._observer.scrape_started(source, lag_seconds)

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        self._observer.page_scraped(source, endpoint, seconds)
        if self._leadership.is_ours:
            self._links.post(PAGE, self.page(source, endpoint))

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        self._observer.poll_failed(source, endpoint, kind)
        if self._leadership.is_ours:
            self._links.post(FAULT, (endpoint.name, endpoint.address, source.name, kind))

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        self._observer.extract_failed(source, extractor, endpoint, kind)

    def page(
        self, source: Plugin, endpoint: Endpoint, *, whole: bool = False
    ) -> tuple[str, str, str, tuple[object, ...] | None, Mapping[str, bytes]]:
        """Return a page as a message: the changed values, or all."""
        metrics, before = (NEVER_SCRAPED, {}) if whole else self._posted.get(endpoint, _NOTHING)
        # Other attributes are counts of this worker's plugins; the others keep their own.
        written, held = self._written(), endpoint.attributes
        attributes = {key: value for key, value in held.items() if key in written}
        changed = {
            key.name: data
            for key, value in attributes.items()
            if before.get(key) is not value and (data := self._pickled(key, value)) is not None
        }
        values = None if endpoint.metrics is metrics else _VALUES(endpoint.metrics)
        if changed or values:
            self._posted[endpoint] = endpoint.metrics, attributes
        return endpoint.name, endpoint.address, source.name, values, changed

    def forget(self, endpoint: Endpoint) -> None:
        """Forget an endpoint that has left the pool."""
        self._posted.pop(endpoint, None)

    def _pickled(self, key: AttributeKey[Any], value: object) -> bytes | None:
        try:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            if key.name not in self._logged_unshared:
                self._logged_unshared.add(key.name)
                _log.warning(
                    "attribute of endpoints is not shared between workers",
                    attribute=key.name,
                    error=f"{type(error).__name__}: {error}",
                    remedy="its plugin must use values that can be pickled",
                )
            return None


class LeaderOnly:
    """Passes scrapes on to an observer while this worker leads, so that none counts twice.

    Args:
        observer: The observer.
        leadership: Whether this worker leads.
    """

    def __init__(self, observer: ScrapeObserver, leadership: Leadership) -> None:
        self._observer = observer
        self._leadership = leadership

    def scrape_started(self, source: Plugin, lag_seconds: float) -> None:
        if self._leadership.is_ours:
            self._observer.scrape_started(source, lag_seconds)

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        if self._leadership.is_ours:
            self._observer.page_scraped(source, endpoint, seconds)

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        if self._leadership.is_ours:
            self._observer.poll_failed(source, endpoint, kind)

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        if self._leadership.is_ours:
            self._observer.extract_failed(source, extractor, endpoint, kind)

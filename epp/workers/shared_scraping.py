"""One worker scrapes for all, and sends the results to the others.

Every worker has the scrapes of the pool. The leader runs them, and posts the values that extractors
have written, and the failures. The others apply these as if they had scraped. When the leader dies,
the supervisor appoints another one, whose scrapes then start.
"""

import asyncio
import pickle
from collections.abc import Iterator
from typing import Any, Final

import structlog

from epp.data_layer import EndpointStore, ScrapeError, ScrapeObserver, Scraper
from epp.data_layer.scrape import Scrape
from epp.data_layer.scrape_loop import ScrapeLoop
from epp.scheduling import NEVER_SCRAPED, AttributeKey, Endpoint, EndpointMetrics
from epp.workers.leadership import Leadership
from epp.workers.links import Links, Message
from epp.workers.scrape_publisher import FAULT, PAGE, ScrapePublisher

_log = structlog.get_logger(__name__)

WANTED: Final = "page wanted"


class FollowedError(ScrapeError):
    """A scrape of the worker that leads has failed.

    Args:
        kind: Kind of the failure.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(f"a scrape of another worker failed: {kind}")
        self.kind = kind  # type: ignore[misc] # of the instance: that of the failure there


class SharedLoop(ScrapeLoop):
    """Repeats a scrape from the moment this worker leads.

    Args:
        leadership: Whether this worker leads.
    """

    __slots__ = ("_leads", "_phase", "_waits_in")

    def __init__(self, *args: Any, leadership: Leadership, **named: Any) -> None:  # noqa: ANN401 - of ScrapeLoop
        super().__init__(*args, **named)
        self._leads = leadership
        self._waits_in: asyncio.TaskGroup | None = None
        self._phase = 0.0

    def start(self, group: asyncio.TaskGroup, phase: float, *, delay_seconds: float) -> None:
        if self._leads.is_ours:
            super().start(group, phase, delay_seconds=delay_seconds)
        else:
            self._waits_in, self._phase = group, phase

    def lead(self) -> None:
        """Start the loop if it has waited for leadership."""
        group, self._waits_in = self._waits_in, None
        if group is not None:
            super().start(group, self._phase, delay_seconds=0.0)


class SharedScraper(Scraper):
    """The scraper of a worker; its arguments but these are those of Scraper.

    Args:
        store: The pool.
        links: The connections to the other workers.
        leadership: Whether this worker scrapes.
        observer: Notified of the scrapes of this worker and of the leader.
    """

    def __init__(
        self,
        store: EndpointStore,
        *,
        links: Links,
        leadership: Leadership,
        observer: ScrapeObserver,
        **settings: Any,  # noqa: ANN401 - of Scraper
    ) -> None:
        self._followed: dict[tuple[str, str], SharedLoop] = {}
        """Loops by endpoint and source; they may include stopped ones."""
        self._observer = observer
        self.make_loop = self._make_loop
        self._leadership = leadership
        self._links = links
        self._publisher = ScrapePublisher(links, leadership, observer, lambda: self.written)
        super().__init__(store, observer=self._publisher, **settings)
        links.receive(PAGE, self._take_page)
        links.receive(FAULT, self._take_fault)
        links.receive(WANTED, self._send_page)
        links.greet_with(self._known_pages)
        leadership.when_taken(self._lead)

    def _make_loop(self, scrape: Scrape, *args: Any, **named: Any) -> ScrapeLoop:  # noqa: ANN401 - of ScrapeLoop
        loop = SharedLoop(scrape, *args, leadership=self._leadership, **named)
        endpoint, source = scrape.endpoint, scrape.source
        self._followed[endpoint.name, source.name] = loop
        # The leader's next page has only the attributes that have changed.
        self._links.post(WANTED, (endpoint.name, endpoint.address, source.name))
        return loop

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        super().endpoint_removed(endpoint)
        self._publisher.forget(endpoint)
        gone = [names for names in self._followed if names[0] == endpoint.name]
        for names in gone:
            del self._followed[names]

    def _lead(self) -> None:
        for loops in self._loops.values():
            for loop in loops.values():
                if isinstance(loop, SharedLoop):
                    loop.lead()

    def _known_pages(self) -> Iterator[Message]:
        """Yield the current pages, for a worker that has just connected."""
        if self._leadership.is_ours:
            for loops in self._loops.values():
                for loop in loops.values():
                    yield from self._known_page(loop.scrape)

    def _known_page(self, scrape: Scrape) -> Iterator[Message]:
        if scrape.endpoint.metrics is not NEVER_SCRAPED:
            yield PAGE, self._publisher.page(scrape.source, scrape.endpoint, whole=True)

    def _scrape_of(self, endpoint: str, address: str, source: str) -> Scrape | None:
        """Return a scrape while this scraper runs and the endpoint is in the pool."""
        loop = self._followed.get((endpoint, source))
        if self._group is None or loop is None or loop.scrape.endpoint.address != address:
            return None
        return loop.scrape

    def _send_page(self, _: int, names: tuple[str, str, str]) -> None:
        scrape = self._scrape_of(*names)
        if scrape is not None and self._leadership.is_ours:
            for subject, page in self._known_page(scrape):
                self._links.post(subject, page)

    def _take_page(self, _: int, page: tuple[Any, ...]) -> None:
        endpoint, address, source, values, attributes = page
        scrape = self._scrape_of(endpoint, address, source)
        if scrape is None or self._leadership.is_ours:
            return
        held = scrape.endpoint.attributes
        for name, value in attributes.items():
            held[AttributeKey(name)] = pickle.loads(value)  # noqa: S301 - from this user's processes
        scrape.take(None if values is None else EndpointMetrics(*values))

    def _take_fault(self, _: int, fault: tuple[str, str, str, str]) -> None:
        endpoint, address, source, kind = fault
        scrape = self._scrape_of(endpoint, address, source)
        if scrape is not None and not self._leadership.is_ours:
            scrape.state.polls.note(FollowedError(kind))
            self._observer.poll_failed(scrape.source, scrape.endpoint, kind)

"""Interface by which the processes of one endpoint picker share a pool, see ``epp/workers``."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol, TypeVar

from epp.data_layer.plugins import EndpointSpec
from epp.data_layer.scrape_observers import ScrapeObserver
from epp.data_layer.scraper import Scraper
from epp.data_layer.store import EndpointStore, PoolListener
from epp.scheduling import Endpoint, EndpointLoad, GuardRails, Plugin

T = TypeVar("T")


class PoolSharing(PoolListener, Protocol):
    """Shares scrapes and requests in flight with the other processes; listens to the store."""

    def make_load(self, spec: EndpointSpec) -> EndpointLoad:
        """Return the load of a new endpoint."""

    def before(self, read: Callable[[], T]) -> Callable[[], T]:
        """Wrap ``read``: first update the loads with the requests of the other processes."""

    def make_scraper(self, store: EndpointStore, **settings: Any) -> Scraper:  # noqa: ANN401 - of Scraper
        """Return a scraper that scrapes only in one of the processes."""

    def only_once(self, observer: ScrapeObserver) -> ScrapeObserver:
        """Return an observer that passes only the scrapes of this process on to ``observer``."""

    def use_plugins(self, plugins: Iterable[Plugin], guards: GuardRails) -> None:
        """Share the counts of these plugins, in place of the previous ones."""

    def owns_queues(self) -> bool:
        """Return whether this process owns the queues of flow control."""

    def siblings(self) -> Collection[str]:
        """Return the names that all these processes have as replicas."""

    async def run(self) -> None:
        """Share until cancelled."""


class Alone:
    """Implements :class:`PoolSharing` for an endpoint picker with one process.

    Args:
        scraper: Class of its scraper.
    """

    def __init__(self, scraper: type[Scraper] = Scraper) -> None:
        self._scraper = scraper

    def make_load(self, spec: EndpointSpec) -> EndpointLoad:
        del spec
        return EndpointLoad()

    def before(self, read: Callable[[], T]) -> Callable[[], T]:
        return read

    def make_scraper(self, store: EndpointStore, **settings: Any) -> Scraper:  # noqa: ANN401 - of Scraper
        return self._scraper(store, **settings)

    def only_once(self, observer: ScrapeObserver) -> ScrapeObserver:
        return observer

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """Do nothing."""

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """Do nothing."""

    def use_plugins(self, plugins: Iterable[Plugin], guards: GuardRails) -> None:
        """Do nothing."""

    def owns_queues(self) -> bool:
        return True

    def siblings(self) -> Collection[str]:
        return ()

    async def run(self) -> None:
        """Do nothing."""

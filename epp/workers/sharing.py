"""Connects one worker to the others: they share scrapes, requests in flight, flow control."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from epp.data_layer import EndpointSpec, EndpointStore, ScrapeObserver, Scraper
from epp.scheduling import Endpoint, EndpointLoad, GuardRails, Plugin
from epp.workers.leadership import Leadership
from epp.workers.links import Links
from epp.workers.place import Place
from epp.workers.scrape_publisher import LeaderOnly
from epp.workers.shared_flow import SharedFlowController
from epp.workers.shared_load import SharedLoads
from epp.workers.shared_scraping import SharedScraper

T = TypeVar("T")


class WorkerSharing:
    """Implements :class:`~epp.data_layer.PoolSharing` for workers.

    Args:
        memory: The shared memory with a row for each worker.
        links: The connections to the other workers.
        leadership: Whether this worker scrapes.
        place: The worker's place.
    """

    def __init__(
        self, memory: memoryview, links: Links, leadership: Leadership, place: Place
    ) -> None:
        self._links = links
        self._leadership = leadership
        self._place = place
        self._flow: SharedFlowController | None = None
        self._loads = SharedLoads(memory, place.index, place.count, looked=self._looked)

    def make_load(self, spec: EndpointSpec) -> EndpointLoad:
        return self._loads.make(spec)

    def before(self, read: Callable[[], T]) -> Callable[[], T]:
        return self._loads.before(read)

    def make_scraper(self, store: EndpointStore, **settings: Any) -> Scraper:  # noqa: ANN401 - of Scraper
        return SharedScraper(store, links=self._links, leadership=self._leadership, **settings)

    def make_flow(self, **settings: Any) -> SharedFlowController:  # noqa: ANN401 - of FlowController
        """Return the flow control of the pool, whose queues one of the workers owns."""
        self._flow = SharedFlowController(
            links=self._links, leadership=self._leadership, place=self._place, **settings
        )
        return self._flow

    def use_plugins(self, plugins: Iterable[Plugin], guards: GuardRails) -> None:
        if self._flow is not None:
            self._flow.use_plugins(plugins, guards)

    def owns_queues(self) -> bool:
        return self._leadership.is_ours

    def siblings(self) -> Collection[str]:
        return self._place.siblings

    def _looked(self) -> None:
        if self._flow is not None:
            self._flow.look()

    def only_once(self, observer: ScrapeObserver) -> ScrapeObserver:
        return LeaderOnly(observer, self._leadership)

    def endpoint_added(self, endpoint: Endpoint) -> None:
        self._loads.endpoint_added(endpoint)

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self._loads.endpoint_removed(endpoint)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._loads.run(), name="requests of other workers")
            tasks.create_task(self._links.run(), name="links")

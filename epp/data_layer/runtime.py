"""The data layer as one plugin graph after another uses it: endpoints, and what is known of them.

The store, its endpoints and their load outlive every graph. What a graph brings (a discovery,
listeners, sources with their extractors) takes the place of what the graph before it brought.
"""

import asyncio
from collections.abc import Iterable

from epp.config import PluginGraph
from epp.data_layer.discoveries import Discoveries
from epp.data_layer.errors import DiscoveryError
from epp.data_layer.notifications import Notifications
from epp.data_layer.plugins import DataSource, EndpointDiscovery, EndpointListener
from epp.data_layer.scraper import Binding, Scraper
from epp.data_layer.store import EndpointStore


class DataLayerRuntime:
    """Keeps the pool supplied with endpoints and with what the plugins of a graph know of them.

    Args:
        store: The pool.
        scraper: Asks its endpoints.
        graph: The first graph.
        fixed: Discoveries beside that of the graph.

    Raises:
        DiscoveryError: Neither the graph nor ``fixed`` has a discovery.
    """

    def __init__(
        self,
        store: EndpointStore,
        scraper: Scraper,
        graph: PluginGraph,
        fixed: Iterable[EndpointDiscovery],
    ) -> None:
        self._scraper = scraper
        self._fixed = tuple(fixed)
        self._discoveries = Discoveries(store, self._fixed, self._discovery_of(graph))
        self._notifications = Notifications(store)
        self._listen(graph)

    async def run(self) -> None:
        """Run discoveries and scrapes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discoveries.run(), name="discoveries")
            tasks.create_task(self._scraper.run(), name="scraper")

    async def prepare(self, graph: PluginGraph) -> None:
        """Start what has to be running before ``graph`` can be used.

        Raises:
            DiscoveryError: Its discovery failed at the first look, or there is none at all.
        """
        await self._discoveries.prepare(self._discovery_of(graph))

    def use(self, graph: PluginGraph) -> None:
        """Use ``graph``, which has been prepared, from now on.

        Raises:
            DuplicateEndpointError: Its discovery clashes with a fixed one; nothing has changed.
        """
        self._discoveries.use(self._discovery_of(graph))
        self._listen(graph)

    def _listen(self, graph: PluginGraph) -> None:
        self._notifications.use(graph.implementing(EndpointListener), graph.sources)
        self._scraper.use(polled(graph.sources))

    def _discovery_of(self, graph: PluginGraph) -> EndpointDiscovery | None:
        chosen = graph.discovery
        if chosen is None and not self._fixed:
            raise DiscoveryError(
                "no endpoints: give --endpoint HOST:PORT, --endpoints-file FILE, or"
                " dataLayer.discovery in the configuration"
            )
        assert chosen is None or isinstance(chosen, EndpointDiscovery)  # noqa: S101 - the graph's check
        return chosen


def polled(bindings: Iterable[Binding]) -> list[Binding]:
    """Return those whose source asks the endpoints; an ``EndpointSource`` asks nobody."""
    return [each for each in bindings if isinstance(each.source, DataSource)]

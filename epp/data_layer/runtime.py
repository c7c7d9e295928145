"""Run the data layer across configuration reloads.

The store, its endpoints and their load outlive every plugin graph. The discovery, listeners,
sources and extractors of a new graph replace those of the previous one. So do the kinds of
Kubernetes objects that are followed for its plugins.
"""

import asyncio
from collections.abc import Iterable

from epp.config import PluginGraph, SourceBinding
from epp.data_layer.discoveries import Discoveries
from epp.data_layer.errors import DiscoveryError
from epp.data_layer.notifications import Notifications
from epp.data_layer.object_notifications import ObjectFeed, ObjectNotifications
from epp.data_layer.plugins import (
    DataSource,
    EndpointDiscovery,
    EndpointListener,
    ObjectListener,
)
from epp.data_layer.scraper import DataBinding, Scraper
from epp.data_layer.store import EndpointStore


class DataLayerRuntime:
    """Runs the discoveries, listeners and scrapes of the current plugin graph.

    Args:
        store: The pool.
        scraper: Scrapes its endpoints.
        graph: The first graph.
        fixed: Discoveries from the command line, which no reload changes.
        own_sources: Data sources that do not come from a graph.
        objects: Follows Kubernetes objects; None if the endpoints do not come from that API.

    Raises:
        DiscoveryError: Neither the graph nor ``fixed`` has a discovery.
    """

    def __init__(
        self,
        store: EndpointStore,
        scraper: Scraper,
        graph: PluginGraph,
        fixed: Iterable[EndpointDiscovery],
        own_sources: Iterable[DataSource] = (),
        *,
        objects: ObjectFeed | None = None,
    ) -> None:
        self._scraper = scraper
        self._own_sources = [SourceBinding(source, ()) for source in own_sources]
        self._fixed = tuple(fixed)
        self._discoveries = Discoveries(store, self._fixed, self._discovery_of(graph))
        self._notifications = Notifications(store)
        self._objects = objects
        self._object_notifications = ObjectNotifications(objects)
        self._listen(graph)

    async def run(self) -> None:
        """Run discoveries and scrapes, and follow objects, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discoveries.run(), name="discoveries")
            tasks.create_task(self._scraper.run(), name="scraper")
            if self._objects is not None:
                tasks.create_task(self._objects.run(), name="objects of plugins")

    async def prepare(self, graph: PluginGraph) -> None:
        """Start the discovery of ``graph`` and wait for its first report.

        Raises:
            DiscoveryError: The discovery failed before its first report, or there is none.
        """
        await self._discoveries.prepare(self._discovery_of(graph))

    def use(self, graph: PluginGraph) -> None:
        """Switch to ``graph``, which must have been prepared.

        Raises:
            DuplicateEndpointError: Its discovery and a fixed one report the same endpoint;
                nothing has changed.
        """
        self._discoveries.use(self._discovery_of(graph))
        self._listen(graph)

    def _listen(self, graph: PluginGraph) -> None:
        self._notifications.use(graph.implementing(EndpointListener), graph.sources)
        self._object_notifications.use(graph.implementing(ObjectListener), graph.sources)
        self._scraper.use([*polled(graph.sources), *self._own_sources])

    def _discovery_of(self, graph: PluginGraph) -> EndpointDiscovery | None:
        chosen = graph.discovery
        if chosen is None and not self._fixed:
            raise DiscoveryError(
                "no endpoints: give --endpoint HOST:PORT, --endpoints-file FILE,"
                " --endpoint-dns NAME:PORT, --pool-name or --endpoint-selector (Kubernetes), or"
                " dataLayer.discovery in the configuration"
            )
        assert chosen is None or isinstance(chosen, EndpointDiscovery)  # noqa: S101 - the graph's check
        return chosen


def polled(bindings: Iterable[DataBinding]) -> list[DataBinding]:
    """Return the bindings whose source polls endpoints; an ``EndpointSource`` does not."""
    return [each for each in bindings if isinstance(each.source, DataSource)]

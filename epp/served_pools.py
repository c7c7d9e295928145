"""The pools that a process serves: their interface to the application, and the case of one pool."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from epp.descriptors import PoolDescriptors
from epp.ext_proc import OneHandler, RequestHandlers
from epp.observability import AdminAction, DebugPage, EventSource, MetricsRegistry
from epp.pool_runtime import PoolRuntime
from epp.sockets import Shares

EVENTS: Final = "events"
"""Path of the feed of a pool below ``/debug/``."""


class ServedPools(RequestHandlers, Protocol):
    """One pool, or several."""

    @property
    def is_ready(self) -> bool:
        """Whether requests can be decided."""

    @property
    def polled_sources(self) -> int:
        """The number of data sources that scrape every endpoint; of several pools, the most."""

    @property
    def in_flight(self) -> int:
        """The number of requests at model servers."""

    @property
    def summary(self) -> Mapping[str, object]:
        """What the process serves, as log fields."""

    def use_descriptors(self, shares: Shares) -> None:
        """Warn if scraping needs more descriptors than ``shares`` has for it."""

    def registries(self) -> Mapping[str, MetricsRegistry]:
        """Return the metrics of each pool; none if they are among those of the process."""

    def debug_pages(self) -> Mapping[str, DebugPage]:
        """Return the pages for operators by path."""

    def pool_lines(self) -> Sequence[object] | None:
        """Return a line for each pool, with its ``name`` and ``fault``; None for the only one."""

    def event_sources(self) -> Mapping[str, EventSource]:
        """Return the feeds of events by path; called in another thread."""

    def admin_actions(self) -> Mapping[str, AdminAction]:
        """Return the changing calls by path."""

    async def reload_now(self) -> Sequence[str]:
        """Reload the configurations, even if their files are unchanged.

        Returns: Why each is not in use; "" if it is.
        """

    async def load(self) -> None:
        """Read what must be valid at the start, before :meth:`run`."""

    async def run(self) -> None:
        """Serve until cancelled."""

    async def until_reported(self) -> None:
        """Wait until the endpoints are known."""

    def close(self) -> None:
        """Close the plugins."""


class OnePool(OneHandler):
    """One pool, which decides every request.

    Args:
        pool: The pool.
    """

    def __init__(self, pool: PoolRuntime) -> None:
        super().__init__(pool.handler)
        self.pool = pool

    @property
    def is_ready(self) -> bool:
        return self.pool.is_ready

    @property
    def polled_sources(self) -> int:
        return self.pool.polled_sources

    @property
    def in_flight(self) -> int:
        return self.pool.director.in_flight

    @property
    def summary(self) -> Mapping[str, object]:
        graph = self.pool.graph
        return {"config": graph.config.source, "plugins": sorted(graph.plugins)}

    def use_descriptors(self, shares: Shares) -> None:
        pool = self.pool
        pool.store.add_listener(PoolDescriptors(pool.store, shares, lambda: pool.scrapes))

    def registries(self) -> Mapping[str, MetricsRegistry]:
        return {}

    def debug_pages(self) -> Mapping[str, DebugPage]:
        return self.pool.debug_pages()

    def pool_lines(self) -> Sequence[object] | None:
        return None

    def event_sources(self) -> Mapping[str, EventSource]:
        return {EVENTS: self.pool.live}

    def admin_actions(self) -> Mapping[str, AdminAction]:
        return self.pool.admin_actions()

    async def reload_now(self) -> Sequence[str]:
        return [await self.pool.reload_now()]

    async def load(self) -> None:
        await self.pool.load()

    async def run(self) -> None:
        await self.pool.run()

    async def until_reported(self) -> None:
        await self.pool.store.reported.wait()

    def close(self) -> None:
        self.pool.close()

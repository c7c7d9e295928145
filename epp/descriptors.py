"""Divides the process's file descriptors among ports and pools, and warns if there are too few."""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from epp.data_layer import EndpointStore
from epp.health import MAX_CONNECTIONS as MAX_HEALTH_CONNECTIONS
from epp.scheduling import Endpoint
from epp.settings import ServeSettings
from epp.sockets import DescriptorDemand, Shares, descriptor_limit, share_out
from epp.transport.eviction import connections_for, descriptors_for

LEAST_SCRAPES = 256
"""Minimum number of connections to model servers to reserve descriptors for."""
_REMEDY = "raise the hard limit (ulimit -Hn, LimitNOFILE=, the container runtime's default-ulimits)"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PortLimits:
    """Maximum number of connections of each port."""

    ext_proc: int
    health: int
    metrics: int


def share_descriptors(settings: ServeSettings, *, sources: int) -> tuple[Shares, PortLimits]:
    """Divide the descriptor limit of the process, and log the result.

    Args:
        settings: Configured connection limits of the ports.
        sources: Number of data sources that scrape every endpoint.
    """
    demand = DescriptorDemand(
        ext_proc=descriptors_for(settings.transport_settings.max_connections),
        health=descriptors_for(MAX_HEALTH_CONNECTIONS),
        metrics=settings.max_metrics_connections,
        scrapes=max(LEAST_SCRAPES, len(settings.endpoints) * sources),
    )
    shares = share_out(descriptor_limit().soft, demand)
    limits = PortLimits(
        ext_proc=connections_for(shares.ext_proc),
        health=connections_for(shares.health),
        metrics=shares.metrics,
    )
    write = log.info if shares.is_enough else log.warning
    write(
        "descriptors shared out" if shares.is_enough else "too few descriptors, ports have fewer",
        limit=shares.limit,
        needed=shares.needed,
        ext_proc_connections=limits.ext_proc,
        health_connections=limits.health,
        metrics_connections=limits.metrics,
        scrape_connections=shares.scrapes,
        **({} if shares.is_enough else {"remedy": _REMEDY}),
    )
    return shares, limits


class PoolDescriptors:
    """Warns once if scraping needs more descriptors than are reserved for it.

    Args:
        store: The pool to which endpoints are added.
        shares: Descriptors per purpose.
        scrapes: Returns the number of connections for scraping, of all pools of the process.
    """

    def __init__(self, store: EndpointStore, shares: Shares, scrapes: Callable[[], int]) -> None:
        self._store = store
        self._shares = shares
        self._scrapes = scrapes
        self._has_warned = False

    def endpoint_added(self, endpoint: Endpoint) -> None:
        del endpoint
        wanted = self._scrapes()
        if wanted > self._shares.scrapes and not self._has_warned:
            self._has_warned = True
            log.warning(
                "too few descriptors for the pool",
                endpoints=len(self._store.snapshot),
                scrape_connections=wanted,
                available=self._shares.scrapes,
                limit=self._shares.limit,
                remedy=_REMEDY,
            )

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """Do nothing."""

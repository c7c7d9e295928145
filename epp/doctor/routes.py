"""Routes through the endpoint picker.

A `RouteUse` is one such route: a connection manager, its ext_proc filter with the route's
overrides, and the target cluster of the route.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from epp.doctor.tree import ConfigNode

_FILTERS = "envoy.extensions.filters.http"
EXT_PROC = f"{_FILTERS}.ext_proc.v3.ExternalProcessor"
ROUTER = f"{_FILTERS}.router.v3.Router"
_FILTER_CONFIG = "envoy.config.route.v3.FilterConfig"

BODY_MODES = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED", "GRPC")
_HEADER_MODES = ("DEFAULT", "SEND", "SKIP")
FULL_DUPLEX = "FULL_DUPLEX_STREAMED"


@dataclass(frozen=True, slots=True)
class Target:
    """A route to one cluster."""

    table: ConfigNode
    """The RouteConfiguration."""

    host: ConfigNode
    route: ConfigNode
    cluster: str
    """Name of the cluster; empty if a header or an extension selects it per request."""

    levels: tuple[ConfigNode, ...]
    """Nodes with per-filter settings, the most specific last."""

    def action(self, *keys: str) -> ConfigNode:
        """Return the field of the route's action, possibly absent."""
        return self.route.get("route", *keys)


@dataclass(frozen=True, slots=True)
class Manager:
    """An HTTP connection manager."""

    node: ConfigNode
    listener: ConfigNode
    filters: tuple[ConfigNode, ...]
    """The http_filters; ECDS filters include their configuration if the dump has it."""

    targets: tuple[Target, ...]
    missing_table: str = ""
    """Name of the route table if the source lacks it."""


@dataclass(frozen=True, slots=True)
class RouteUse:
    """One route through the endpoint picker."""

    manager: Manager
    filter: ConfigNode
    """The item of http_filters."""

    config: ConfigNode
    """The filter's ExternalProcessor message."""

    overrides: tuple[ConfigNode, ...] = ()
    """ExtProcOverrides, the most specific last."""

    target: Target | None = None

    def get(self, field: str, *keys: str) -> ConfigNode:
        """Return a field of the filter, with the overrides applied."""
        for override in reversed(self.overrides):
            if override.get(field):
                return override.get(field, *keys)
        return self.config.get(field, *keys)

    def body_mode(self, direction: str) -> str:
        """Return the body mode of ``request`` or ``response``."""
        return self.get("processing_mode", f"{direction}_body_mode").choice(*BODY_MODES)

    def sends(self, part: str) -> bool:
        """Whether ``part`` (``response_header``, ``response_trailer``) is sent to the EPP."""
        mode = self.get("processing_mode", f"{part}_mode").choice(*_HEADER_MODES)
        return mode == "SEND" or (mode == "DEFAULT" and part.endswith("header"))

    @property
    def streams_request(self) -> bool:
        """Whether request bodies are sent to the EPP in full-duplex mode."""
        return self.body_mode("request") == FULL_DUPLEX

    @property
    def fails_open(self) -> bool:
        """Whether requests continue without the EPP if it fails."""
        return self.get("failure_mode_allow").flag()

    @property
    def epp_cluster(self) -> str:
        """Name of the EPP's cluster; empty for google_grpc, which uses none."""
        return self.get("grpc_service", "envoy_grpc", "cluster_name").text()


def targets_of(table: ConfigNode) -> Iterator[Target]:
    """Yield the targets of a table's routes, one per cluster."""
    for host in table.get("virtual_hosts").items():
        for route in host.get("routes").items():
            action = route.get("route")
            if not action:  # a redirect or a direct response, without a cluster
                continue
            levels = (table, host, route)
            weighted = tuple(action.get("weighted_clusters", "clusters").items())
            for each in weighted:
                yield Target(table, host, route, each.get("name").text(), (*levels, each))
            if not weighted:
                yield Target(table, host, route, action.get("cluster").text(), levels)


def routes_through(manager: Manager, item: ConfigNode) -> Iterator[tuple[RouteUse, bool]]:
    """Yield each route's use of an ext_proc filter, and whether the filter is enabled there."""
    on = not item.get("disabled").flag()
    use = RouteUse(manager, item, item.typed_config().unwrapped())
    if not manager.targets:
        yield use, on
    for target in manager.targets:
        overrides, here = [], on
        for level in target.levels:
            given = level.get("typed_per_filter_config", item.get("name").text())
            if not given:
                continue
            off = given.get("disabled").flag()
            if given.type_name() == _FILTER_CONFIG:
                given = given.get("config")
            given = given.unwrapped()
            here = not (off or given.get("disabled").flag())
            if given.get("overrides"):
                overrides.append(given.get("overrides"))
        yield replace(use, overrides=tuple(overrides), target=target), here

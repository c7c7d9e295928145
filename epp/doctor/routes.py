"""The ways of requests past the endpoint picker.

A `Use` is one of them: a connection manager, its ext_proc filter with what the route changes about
it, and the cluster that the route leads to.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from epp.doctor.tree import Node

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

    table: Node
    """The RouteConfiguration."""

    host: Node
    route: Node
    cluster: str
    """Empty if a header or an extension names it for each request."""

    levels: tuple[Node, ...]
    """What may have settings for filters, the most special last."""

    def action(self, *keys: str) -> Node:
        """Return the field of the route's action; where it is not set, its place there."""
        return self.route.get("route", *keys)


@dataclass(frozen=True, slots=True)
class Manager:
    """An HTTP connection manager."""

    node: Node
    listener: Node
    filters: tuple[Node, ...]
    """The http_filters, those of ECDS with their configuration where the dump has it."""

    targets: tuple[Target, ...]
    missing_table: str = ""
    """Name of the route table that is not in the source."""


@dataclass(frozen=True, slots=True)
class Use:
    """One way of a request past the endpoint picker."""

    manager: Manager
    filter: Node
    """The item of http_filters."""

    config: Node
    """Its ExternalProcessor message."""

    overrides: tuple[Node, ...] = ()
    """ExtProcOverrides, the most special last."""

    target: Target | None = None

    def get(self, field: str, *keys: str) -> Node:
        """Return a field of the filter as it holds here."""
        for override in reversed(self.overrides):
            if override.get(field):
                return override.get(field, *keys)
        return self.config.get(field, *keys)

    def body_mode(self, direction: str) -> str:
        """Return the body mode of ``request`` or ``response``."""
        return self.get("processing_mode", f"{direction}_body_mode").choice(*BODY_MODES)

    def sends(self, part: str) -> bool:
        """Whether a part, ``response_header`` or ``response_trailer``, goes to the EPP."""
        mode = self.get("processing_mode", f"{part}_mode").choice(*_HEADER_MODES)
        return mode == "SEND" or (mode == "DEFAULT" and part.endswith("header"))

    @property
    def streams_request(self) -> bool:
        """Whether request bodies go to the EPP as full duplex."""
        return self.body_mode("request") == FULL_DUPLEX

    @property
    def fails_open(self) -> bool:
        """Whether requests go on without the EPP when it fails."""
        return self.get("failure_mode_allow").flag()

    @property
    def epp_cluster(self) -> str:
        """Name of the EPP's cluster; empty with google_grpc, which has none."""
        return self.get("grpc_service", "envoy_grpc", "cluster_name").text()


def targets_of(table: Node) -> Iterator[Target]:
    """Yield where the routes of a table lead, one for each cluster."""
    for host in table.get("virtual_hosts").items():
        for route in host.get("routes").items():
            action = route.get("route")
            if not action:  # a redirect or a direct response: nobody behind it
                continue
            levels = (table, host, route)
            weighted = tuple(action.get("weighted_clusters", "clusters").items())
            for each in weighted:
                yield Target(table, host, route, each.get("name").text(), (*levels, each))
            if not weighted:
                yield Target(table, host, route, action.get("cluster").text(), levels)


def routes_through(manager: Manager, item: Node) -> Iterator[tuple[Use, bool]]:
    """Yield each route's use of an ext_proc filter, and whether the filter is on there."""
    on = not item.get("disabled").flag()
    use = Use(manager, item, item.typed_config().unwrapped())
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

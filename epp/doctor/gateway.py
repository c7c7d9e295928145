"""Envoy's configuration in the form for checks: connection managers, clusters, routes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from epp.doctor.clusters import is_tls
from epp.doctor.routes import EXT_PROC, Manager, RouteUse, Target, routes_through, targets_of
from epp.doctor.sources import Source, Version
from epp.doctor.tree import ConfigNode

QUEUED_SECONDS = 60.0
"""Longest time in the EPP's queue unless configured otherwise: the default TTL of flow control."""

_MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"

# Keys: fields of the config dump that list resources. Values: path of the resource in an element.
_CLUSTER_LISTS = {
    "static_clusters": "cluster",
    "dynamic_active_clusters": "cluster",
    "dynamic_warming_clusters": "cluster",
}
_LISTENER_LISTS = {
    "static_listeners": "listener",
    "dynamic_listeners": "active_state/listener",
}
_TABLE_LISTS = {
    "static_route_configs": "route_config",
    "dynamic_route_configs": "route_config",
}


class Gateway:
    """The data that checks can read: configuration, and version and counters if known."""

    def __init__(
        self,
        source: Source,
        ext_proc: str | None = None,
        *,
        queued_seconds: float = QUEUED_SECONDS,
    ) -> None:
        """Read clusters, connection managers and routes from a source.

        Args:
            source: The configuration.
            ext_proc: Check only the filter of this name, or those that call the cluster of this
                name; None to check every ext_proc filter.
            queued_seconds: Maximum time of a request in the EPP's queue.
        """
        self._source = source
        self._chosen = ext_proc
        self.queued_seconds = queued_seconds
        self.version: Version | None = source.version
        self.counters: Mapping[str, int] | None = source.counters
        self.bootstraps = source.bootstraps

    @cached_property
    def clusters(self) -> dict[str, ConfigNode]:
        """All clusters, keyed by name."""
        return self._resources("clusters", _CLUSTER_LISTS)

    @cached_property
    def managers(self) -> tuple[Manager, ...]:
        """Every connection manager of every listener."""
        listeners = self._resources("listeners", _LISTENER_LISTS)
        return tuple(each for node in listeners.values() for each in self._managers_of(node))

    @cached_property
    def uses(self) -> tuple[RouteUse, ...]:
        """The pairs to check: a route and an ext_proc filter that is enabled there."""
        return tuple(
            use for use, enabled in self._pairs if enabled and self._chosen in self._names_of(use)
        )

    @cached_property
    def bypasses(self) -> tuple[tuple[Manager, Target], ...]:
        """Routes on which the EPP is not called, with those of managers without ext_proc filter.

        Targets are compared by identity, because two routes may be equal.
        """
        called = {id(use.target) for use in self.uses}
        return tuple(
            (manager, target)
            for manager in self.managers
            for target in manager.targets
            if id(target) not in called
        )

    @cached_property
    def pools(self) -> dict[str, ConfigNode]:
        """Clusters of model servers by name: the targets of routes on which the EPP is called."""
        names = {use.target.cluster for use in self.uses if use.target is not None}
        return {name: node for name, node in self.clusters.items() if name in names}

    @cached_property
    def epp_clusters(self) -> dict[str, ConfigNode]:
        """Clusters of endpoint pickers, keyed by name."""
        names = {use.epp_cluster for use in self.uses}
        return {name: node for name, node in self.clusters.items() if name in names}

    @property
    def pools_speak_tls(self) -> bool | None:
        """Whether Envoy uses TLS to the model servers; None if that is unknown, or mixed."""
        return _whether_tls(self.pools)

    @property
    def pickers_speak_tls(self) -> bool | None:
        """Whether Envoy uses TLS to the endpoint picker; None if that is unknown, or mixed."""
        return _whether_tls(self.epp_clusters)

    def pool_of(self, use: RouteUse) -> ConfigNode:
        """Return the cluster to which ``use`` routes; an empty node if there is none."""
        name = use.target.cluster if use.target is not None else ""
        return self.clusters.get(name, ConfigNode(None, f"clusters[{name}]"))

    def _names_of(self, use: RouteUse) -> tuple[str | None, ...]:
        return (None, use.filter.get("name").text(), use.epp_cluster)

    @cached_property
    def _pairs(self) -> tuple[tuple[RouteUse, bool], ...]:
        """Each pair of a route and an ext_proc filter, and whether the filter is enabled there."""
        return tuple(
            pair
            for manager in self.managers
            for item in manager.filters
            if item.typed_config().type_name() == EXT_PROC
            for pair in routes_through(manager, item)
        )

    def _resources(self, name: str, lists: Mapping[str, str]) -> dict[str, ConfigNode]:
        """Return resources by name; sections of the dump take precedence over bootstraps."""
        found: dict[str, ConfigNode] = {}
        for root in self._source.roots:
            for field, path in lists.items():
                for each in root.get(field).items():
                    self._add(found, name, each.get(*path.split("/")))
        for root in self.bootstraps:
            for each in root.get("static_resources", name).items():
                self._add(found, name, each)
        return found

    def _add(self, found: dict[str, ConfigNode], kind: str, resource: ConfigNode) -> None:
        if resource:
            name = resource.get("name").text() or resource.get("cluster_name").text()
            shown = name or str(len(found))
            found.setdefault(shown, replace(resource, path=f"{kind}[{shown}]"))

    @cached_property
    def _tables(self) -> dict[str, ConfigNode]:
        return self._resources("route_configs", _TABLE_LISTS)

    @cached_property
    def _discovered_filters(self) -> dict[str, ConfigNode]:
        return self._resources("ecds_filters", {"ecds_filters": "ecds_filter"})

    def _managers_of(self, listener: ConfigNode) -> Iterator[Manager]:
        chains = (*listener.get("filter_chains").items(), listener.get("default_filter_chain"))
        for chain in chains:
            for each in chain.get("filters").items():
                config = each.typed_config()
                if config.type_name() == _MANAGER:
                    yield self._manager(config.unwrapped(), listener)

    def _manager(self, node: ConfigNode, listener: ConfigNode) -> Manager:
        filters = tuple(
            self._discovered_filters.get(each.get("name").text(), each)
            if each.get("config_discovery")
            else each
            for each in node.get("http_filters").items()
        )
        name = node.get("rds", "route_config_name").text()
        table = node.get("route_config") or self._tables.get(name, ConfigNode(None, ""))
        missing = "" if table else name or "scoped routes"
        return Manager(node, listener, filters, tuple(targets_of(table)), missing)


def _whether_tls(clusters: Mapping[str, ConfigNode]) -> bool | None:
    found = {is_tls(cluster) for cluster in clusters.values()}
    return found.pop() if len(found) == 1 else None

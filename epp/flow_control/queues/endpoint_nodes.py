"""The endpoints of the pool as the nodes of sessions."""

from collections.abc import Sequence

from epp.flow_control.sessions import Cluster, Node
from epp.scheduling import Endpoint


class EndpointNode(Node):
    """An endpoint as session plugins see it; it has no limit of its own, and no GPUs."""

    __slots__ = ("endpoint",)

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.name, labels=endpoint.labels)
        self.endpoint = endpoint


class EndpointNodes:
    """Keeps the nodes of a cluster equal to the pool."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pool: Sequence[Endpoint] = ()
        self._nodes: dict[Endpoint, EndpointNode] = {}

    def follow(self, pool: Sequence[Endpoint]) -> None:
        """Update the nodes to ``pool``, a snapshot; does nothing for the same object again."""
        if pool is self._pool:
            return
        self._pool = pool
        present = set(pool)
        for endpoint, node in list(self._nodes.items()):
            if endpoint not in present:
                del self._nodes[endpoint]
                self._cluster.remove_node(node)
        for endpoint in pool:
            known = self._nodes.get(endpoint)
            if known is None:
                known = self._nodes[endpoint] = EndpointNode(endpoint)
                self._cluster.add_node(known)
            known.labels = endpoint.labels

    def of(self, endpoint: Endpoint) -> EndpointNode:
        """Return the node of ``endpoint``; an endpoint that left the pool gets a new one."""
        return self._nodes.get(endpoint) or EndpointNode(endpoint)

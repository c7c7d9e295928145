"""A session over requests: nodes are endpoints, and the scheduler chooses among those that fit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from epp.flow_control.queues import Flow, NoPlaceError, QueuedRequest
from epp.flow_control.sessions import Binder, Cluster, Job, Node, Queue, Session, Task
from epp.flow_control.sessions.answers import Fault
from epp.scheduling import PLUGIN_FAULTS, Endpoint


class EndpointNode(Node):
    """An endpoint as session plugins see it; it has no limit of its own, and no GPUs."""

    __slots__ = ("endpoint",)

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.name, labels=endpoint.labels)
        self.endpoint = endpoint


class EndpointNodes:
    """The nodes of a cluster, kept like the pool."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pool: Sequence[Endpoint] = ()
        self._nodes: dict[Endpoint, EndpointNode] = {}

    def follow(self, pool: Sequence[Endpoint]) -> None:
        """Make the cluster's nodes those of ``pool``; looked at once per object."""
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
        """Return the node of ``endpoint``; one that left the pool has a node of its own."""
        return self._nodes.get(endpoint) or EndpointNode(endpoint)


class RequestSession(Session):
    """Chooses a node by the scheduler, among the endpoints that the session's predicates allow."""

    def __init__(
        self,
        cluster: Cluster,
        binder: Binder,
        fault: Fault,
        *,
        pool: Callable[[], Sequence[Endpoint]],
        nodes: EndpointNodes,
        crowding: Callable[[QueuedRequest, Sequence[Endpoint]], str],
    ) -> None:
        super().__init__(cluster, binder, fault)
        self._pool = pool
        self._crowding = crowding
        self._endpoint_nodes = nodes
        self.failure: Exception | None = None
        """What has ended the request that was tried last."""

    def best_node(self, task: Task, nodes: Sequence[Node]) -> Node | None:
        """Return the node for ``task`` among those that fit; None if there is none."""
        queued = cast("QueuedRequest", task.job)
        self.failure = None
        if refusal := self.refusal_of_task(task):
            self.explanations.of_task(task, refusal)
            return None
        endpoints, preference = self._allowed(task, nodes)
        if not endpoints:
            if not nodes:
                self.explanations.of_task(task, "the pool has no endpoint")
            return None
        if len(endpoints) < len(nodes) and (why := self._crowding(queued, endpoints)):
            self.explanations.of_task(task, why)
            return None
        try:
            result = queued.candidate.choose(endpoints, preference)
        except NoPlaceError as error:
            self.explanations.of_task(task, str(error))
            return None
        except Exception as error:
            self.failure = error
            return None
        queued.result = result
        return self._endpoint_nodes.of(result.endpoints[0].endpoint)

    def _allowed(
        self, task: Task, nodes: Sequence[Node]
    ) -> tuple[Sequence[Endpoint], Mapping[Endpoint, float] | None]:
        if not (self.predicates or self.node_capacities or self.subset_nodes or self.node_orders):
            return self._pool(), None
        fitting = self.fitting(task, nodes)
        if not self.node_orders:
            return [node.endpoint for node in cast("list[EndpointNode]", fitting)], None
        scores = cast("Mapping[EndpointNode, float]", self.node_scores(task, fitting))
        preference = {node.endpoint: score for node, score in scores.items()}
        return list(preference), preference

    def tie_of_queues(self, left: Queue, right: Queue) -> int:
        """Return which flow is first by its band's fairness policy."""
        if not (isinstance(left, Flow) and isinstance(right, Flow)):
            return super().tie_of_queues(left, right)
        return _sign(left.key, left.stamp, right.key, right.stamp)

    def tie_of_jobs(self, left: Job, right: Job) -> int:
        """Return which request is first by its band's ordering policy."""
        if not (isinstance(left, QueuedRequest) and isinstance(right, QueuedRequest)):
            return super().tie_of_jobs(left, right)
        return _sign(left.key, left.sequence, right.key, right.sequence)


def _sign(left: Any, left_number: int, right: Any, right_number: int) -> int:  # noqa: ANN401 - as policies have it
    try:
        if left < right:
            return -1
        if right < left:
            return 1
    except PLUGIN_FAULTS:  # counted when the heaps of flows and bands meet them
        pass
    return (left_number > right_number) - (left_number < right_number)

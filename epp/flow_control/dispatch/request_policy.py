"""The policy of live sessions: the scheduler chooses nodes, and the bands break ties."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from epp.flow_control.dispatch.request_binder import FlowParts
from epp.flow_control.flows import Flow, NoPlaceError, QueuedRequest
from epp.flow_control.queues.endpoint_nodes import EndpointNode
from epp.flow_control.sessions import DefaultPolicy, Job, Node, Queue, Task
from epp.flow_control.sessions.combined_points import CombinedPoints
from epp.scheduling import PLUGIN_FAULTS, Endpoint


class RequestPolicy(DefaultPolicy):
    """Chooses nodes with the scheduler, and breaks ties by the policies of the bands."""

    def __init__(self, parts: FlowParts) -> None:
        self._host = parts.host
        self._nodes = parts.ledger.nodes
        self._capacity = parts.capacity
        self._failure: Exception | None = None

    def best_node(self, ssn: CombinedPoints, task: Task, nodes: Sequence[Node]) -> Node | None:
        """Return the node for ``task`` among those that the session's plugins allow."""
        queued = cast("QueuedRequest", task.job)
        endpoints, preference = self._allowed(ssn, task, nodes)
        if not endpoints:
            if not nodes:
                ssn.explanations.of_task(task, self._host.why_empty())
            return None
        if len(endpoints) < len(nodes) and (why := self._capacity.shortage(queued, endpoints)):
            ssn.explanations.of_task(task, why)
            return None
        try:
            result = queued.candidate.choose(endpoints, preference)
        except NoPlaceError as error:
            ssn.explanations.of_task(task, str(error))
            return None
        except Exception as error:
            self._failure = error
            return None
        queued.result = result
        return self._nodes.of(result.endpoints[0].endpoint)

    def pop_failure(self) -> Exception | None:
        """Return the exception with which the last choice failed, once; None if there was none."""
        failure, self._failure = self._failure, None
        return failure

    def _allowed(
        self, ssn: CombinedPoints, task: Task, nodes: Sequence[Node]
    ) -> tuple[Sequence[Endpoint], Mapping[Endpoint, float] | None]:
        if not (ssn.predicates or ssn.node_capacities or ssn.subset_nodes or ssn.node_orders):
            return self._host.pool(), None
        fitting = ssn.fitting(task, nodes)
        if not ssn.node_orders:
            return [node.endpoint for node in cast("list[EndpointNode]", fitting)], None
        scores = cast("Mapping[EndpointNode, float]", ssn.node_scores(task, fitting))
        preference = {node.endpoint: score for node, score in scores.items()}
        return list(preference), preference

    def tie_of_queues(self, left: Queue, right: Queue) -> int:
        """Return which flow is first by the fairness policy of its band."""
        if not (isinstance(left, Flow) and isinstance(right, Flow)):
            return super().tie_of_queues(left, right)
        return _sign(left.key, left.stamp, right.key, right.stamp)

    def tie_of_jobs(self, left: Job, right: Job) -> int:
        """Return which request is first by the ordering policy of its band."""
        if not (isinstance(left, QueuedRequest) and isinstance(right, QueuedRequest)):
            return super().tie_of_jobs(left, right)
        return _sign(left.key, left.sequence, right.key, right.sequence)


def _sign(left: Any, left_number: int, right: Any, right_number: int) -> int:  # noqa: ANN401 - as policies have it
    try:
        if left < right:
            return -1
        if right < left:
            return 1
    except PLUGIN_FAULTS:  # counted when the heaps of flows and bands compare them
        pass
    return (left_number > right_number) - (left_number < right_number)

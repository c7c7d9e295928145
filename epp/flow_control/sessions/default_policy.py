"""What a session decides itself where its plugins leave it open."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epp.flow_control.sessions.model import Job, Node, Queue, Task

if TYPE_CHECKING:
    from epp.flow_control.sessions.combined_points import CombinedPoints


class DefaultPolicy:
    """The choice of a node, and the order of queues and jobs that compare as equal.

    A dispatcher may be given a policy of its own with other methods.
    """

    def best_node(self, ssn: "CombinedPoints", task: Task, nodes: Sequence[Node]) -> Node | None:
        """Return the node for ``task``, which may have a place; None if none fits.

        Here it is the node with the highest score; among equals the first by name.
        """
        scores = ssn.node_scores(task, ssn.fitting(task, nodes))
        return min(scores, key=lambda node: (-scores[node], node.name), default=None)

    def tie_of_queues(self, left: Queue, right: Queue) -> int:
        """Return -1 if ``left`` is first, 1 if ``right`` is; here the older one is."""
        return _older(left, right)

    def tie_of_jobs(self, left: Job, right: Job) -> int:
        """Return -1 if ``left`` is first, 1 if ``right`` is; here the older one is."""
        return _older(left, right)


def _older(left: Queue | Job, right: Queue | Job) -> int:
    if left.created != right.created:
        return -1 if left.created < right.created else 1
    return (left.name > right.name) - (left.name < right.name)

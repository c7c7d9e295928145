"""``spot-instance-manager``: keeps jobs that must not be interrupted off spot instances.

::

    score = nonSpotScore on a node that is not a spot instance, else 0

Jobs that are not preemptible are never placed on a spot instance. Preemptible jobs are placed there
if no other node fits or has a higher score. A node is a spot instance if its label ``spotLabelKey``
(by default ``kai.scheduler/instance-type``) is ``spotLabelValue`` (by default ``spot``);
``nonSpotScore`` is 1000 by default.

Example::

    featureGates: [flowControl]
    extensions:
      sessions:
        plugins:
          spot-instance-manager:
            priority: 10
            arguments: {spotLabelKey: capacity}
"""

import msgspec

from epp.flow_control.sessions import Job, Node, Session, SessionPlugin, Task


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``spot-instance-manager``."""

    spot_label_key: str = "kai.scheduler/instance-type"
    """Label of nodes."""
    spot_label_value: str = "spot"
    """Value of the label on spot instances."""
    non_spot_score: float = 1000.0
    """Score of a node that is not a spot instance."""


class SpotInstanceManager(SessionPlugin):
    """Uses spot instances for preemptible jobs only, and as a last choice."""

    name = "spot-instance-manager"

    def __init__(self, params: Params) -> None:
        self._key = params.spot_label_key
        self._value = params.spot_label_value
        self._non_spot_score = params.non_spot_score

    def on_session_open(self, ssn: Session) -> None:
        ssn.add_predicate_fn(self._refusal)
        ssn.add_node_order_fn(self._score)

    def _refusal(self, task: Task, job: Job, node: Node) -> str | None:
        if job.is_preemptible() or not self._is_spot(node):
            return None
        return f"non-preemptible pod {task.name} cannot be scheduled on spot instance {node.name}"

    def _score(self, _task: Task, node: Node) -> float:
        return 0.0 if self._is_spot(node) else self._non_spot_score

    def _is_spot(self, node: Node) -> bool:
        return node.labels.get(self._key) == self._value

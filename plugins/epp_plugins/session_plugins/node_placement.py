"""``node-binpack``, ``node-spread``, ``node-affinity``: choose the node.

``node-binpack``
    Fills nodes one after another: the score is ``9 * used / capacity``, of the GPUs for a task that
    needs one.
``node-spread``
    Fills nodes evenly: the score is ``9 * (1 - used / capacity)``.
``node-affinity``
    Places tasks only on nodes whose label ``nodeLabel`` has the value of the task's label
    ``taskLabel`` (by default the same name). A task without that label can be placed on any node.
    With ``required: false`` matching nodes are only preferred, by a score of 100.

For a node without a capacity limit, ``used / (1 + used)`` replaces ``used / capacity``.

Example::

    featureGates: [flowControl]
    extensions:
      sessions:
        plugins:
          node-binpack: {}        # or node-spread
          node-affinity:
            arguments: {nodeLabel: zone, required: false}
"""

import msgspec

from epp.flow_control.sessions import ExtensionPoints, Job, Node, SessionPlugin, Task
from epp.flow_control.sessions.scores import AVAILABILITY, MAX_HIGH_DENSITY


class NodeBinpack(SessionPlugin):
    """Prefers full nodes."""

    name = "node-binpack"

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_node_order_fn(lambda task, node: MAX_HIGH_DENSITY * _filled(task, node))


class NodeSpread(SessionPlugin):
    """Prefers empty nodes."""

    name = "node-spread"

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_node_order_fn(
            lambda task, node: MAX_HIGH_DENSITY * (1 - _filled(task, node))
        )


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``node-affinity``."""

    node_label: str = "zone"
    """Label of nodes."""
    task_label: str = ""
    """Label of tasks with the value that a node needs; "" for the same name as ``nodeLabel``."""
    required: bool = True
    """False to prefer matching nodes only."""


class NodeAffinity(SessionPlugin):
    """Requires or prefers nodes with the label value of the task."""

    name = "node-affinity"

    def __init__(self, params: Params) -> None:
        self._node_label = params.node_label
        self._task_label = params.task_label or params.node_label
        self._is_required = params.required

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        if self._is_required:
            dispatcher.add_predicate_fn(self._refusal)
        else:
            dispatcher.add_node_order_fn(self._score)

    def _refusal(self, task: Task, _job: Job, node: Node) -> str | None:
        wanted = task.labels.get(self._task_label)
        if wanted is None or node.labels.get(self._node_label) == wanted:
            return None
        return f"node {node.name} has no label {self._node_label}={wanted}"

    def _score(self, task: Task, node: Node) -> float:
        wanted = task.labels.get(self._task_label)
        matches = wanted is not None and node.labels.get(self._node_label) == wanted
        return AVAILABILITY if matches else 0.0


def _filled(task: Task, node: Node) -> float:
    if task.requires_gpu:
        return node.gpu_utilization()
    if node.capacity is None:
        return node.used / (1 + node.used)
    return node.used / node.capacity if node.capacity else 1.0

"""Combines the registered functions of all plugins: orders, refusals and scores."""

from collections.abc import Callable, Iterable, Sequence
from functools import cmp_to_key
from math import inf
from typing import Any

from epp.flow_control.sessions.cluster import Cluster
from epp.flow_control.sessions.contracts import PLUGIN_FAULTS, PluginFault, Verdict
from epp.flow_control.sessions.explanations import Explanations
from epp.flow_control.sessions.model import Gpu, Job, Node, Queue, Task
from epp.flow_control.sessions.points import ExtensionPoints, Registered, Timer, no_timer

Fault = Callable[[str, str, PluginFault], None]
"""Receives the plugin, the extension point and the exception of a failure."""


class DefaultPolicy:
    """Chooses nodes, and breaks ties between queues and between jobs.

    A dispatcher may be given a subclass.
    """

    def best_node(self, ssn: "CombinedPoints", task: Task, nodes: Sequence[Node]) -> Node | None:
        """Return the node for ``task``, which may be placed; None if none fits.

        The default is the node with the highest score; among equals the first by name.
        """
        scores = ssn.node_scores(task, ssn.fitting(task, nodes))
        return min(scores, key=lambda node: (-scores[node], node.name), default=None)

    def tie_of_queues(self, left: Queue, right: Queue) -> int:
        """Return -1 if ``left`` is first, 1 if ``right`` is; here the older one is."""
        return _older(left, right)

    def tie_of_jobs(self, left: Job, right: Job) -> int:
        """Return -1 if ``left`` is first, 1 if ``right`` is; here the older one is."""
        return _older(left, right)


class CombinedPoints(ExtensionPoints):
    """The extension points with the combined results of all plugins.

    A plugin that raises an exception does not end the session: it counts as undecided in an order,
    as a refusal everywhere else, and the fault is reported.
    """

    def __init__(
        self, cluster: Cluster, fault: Fault, policy: DefaultPolicy, timer: Timer = no_timer
    ) -> None:
        super().__init__(timer)
        self.cluster = cluster
        self.policy = policy
        self.explanations = Explanations()
        self.fault = fault

    # --- orders -----------------------------------------------------------------------------------

    def compare_queues(  # noqa: PLR0917 - both sides of a comparison, as plugins get them
        self,
        left: Queue,
        right: Queue,
        left_job: Job,
        right_job: Job,
        left_victims: Sequence[Task] = (),
        right_victims: Sequence[Task] = (),
    ) -> int:
        """Return -1 if ``left`` is first, 1 if ``right`` is, 0 if they are equal."""
        if self.queue_orders:
            sides = (left, right, left_job, right_job, left_victims, right_victims)
            if decided := self._first(self.queue_orders, "queue_order", *sides):
                return decided
        return self.policy.tie_of_queues(left, right)

    def compare_jobs(self, left: Job, right: Job) -> int:
        """Return -1 if ``left`` is first, 1 if ``right`` is, 0 if they are equal."""
        if self.job_orders and (decided := self._first(self.job_orders, "job_order", left, right)):
            return decided
        return self.policy.tie_of_jobs(left, right)

    def ordered_tasks(self, tasks: Iterable[Task]) -> list[Task]:
        """Return ``tasks`` in order."""
        ordered = list(tasks)
        if len(ordered) > 1:
            ordered.sort(key=cmp_to_key(self._compare_tasks))
        return ordered

    def _compare_tasks(self, left: Task, right: Task) -> int:
        return self._first(self.task_orders, "task_order", left, right) or _sign(
            (left.created, left.uid), (right.created, right.uid)
        )

    def _first(self, orders: Sequence[Registered[Any]], point: str, *args: object) -> int:
        for plugin, order in orders:
            try:
                decided: float = order(*args)
                if decided < 0:
                    return -1
                if decided > 0:
                    return 1
                if decided != 0:
                    raise ValueError(_NO_NUMBER)
            except PLUGIN_FAULTS as error:
                self.fault(plugin, point, error)
        return 0

    # --- nodes for a task -------------------------------------------------------------------------

    def refusal_of_job(self, job: Job, tasks: Sequence[Task]) -> str:
        """Return why these tasks of the job may not be placed in addition; "" if they may."""
        refusal = self._verdict(self.job_capacities, "is_job_over_capacity", job, tasks)
        if not refusal and not job.is_preemptible():
            point = "is_non_preemptible_job_over_queue_quota"
            refusal = self._verdict(self.quotas, point, job, tasks)
        return refusal

    def refusal_of_task(self, task: Task) -> str:
        """Return why ``task`` may not be placed on any node; "" if it may."""
        return self._refusal(self.pre_predicates, "pre_predicate", task, task.job)

    def refusal_of_node(self, task: Task, node: Node) -> str:
        """Return why ``task`` may not be placed on ``node``; "" if it may."""
        return (
            node.unfit(task)
            or self._refusal(self.predicates, "predicate", task, task.job, node)
            or self._verdict(
                self.node_capacities,
                "is_task_allocation_on_node_over_capacity",
                task,
                task.job,
                node,
            )
        )

    def subsets(self, job: Job, tasks: Sequence[Task]) -> list[Sequence[Node]]:
        """Return the sets of nodes for ``job``, to be tried in this order."""
        sets: list[Sequence[Node]] = [list(self.cluster.nodes.values())]
        if not sets[0]:
            self.explanations.of_job(job, "there are no nodes")
            return []
        for plugin, split in self.subset_nodes:
            try:
                sets = [part for nodes in sets for part in _parts(split(job, tasks, nodes), nodes)]
            except PLUGIN_FAULTS as error:
                self.fault(plugin, "subset_nodes", error)
                self.explanations.of_job(job, _failed(plugin, error))
                return []
            if not sets:
                self.explanations.of_job(job, f"{plugin} leaves no node to choose from")
                return []
        return sets

    def best_node(self, task: Task, nodes: Sequence[Node]) -> Node | None:
        """Return the node for ``task``; None if none fits."""
        if refusal := self.refusal_of_task(task):
            self.explanations.of_task(task, refusal)
            return None
        return self.policy.best_node(self, task, nodes)

    def fitting(self, task: Task, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that fit ``task``; reasons are noted for the others."""
        fitting: list[Node] = []
        for node in nodes:
            if refusal := self.refusal_of_node(task, node):
                self.explanations.of_node(task, node, refusal)
            else:
                fitting.append(node)
        return fitting

    def node_scores(self, task: Task, nodes: Sequence[Node]) -> dict[Node, float]:
        """Return the scores of ``nodes``, without nodes for which a plugin failed."""
        for plugin, prepare in self.node_pre_orders:
            try:
                prepare(task, nodes)
            except PLUGIN_FAULTS as error:
                self.fault(plugin, "node_pre_order", error)
        scores: dict[Node, float] = {}
        for node in nodes:
            score, refusal = self._score(self.node_orders, "node_order", task, node)
            if refusal:
                self.explanations.of_node(task, node, refusal)
            else:
                scores[node] = score
        return scores

    def best_gpu(self, task: Task, node: Node) -> Gpu | None:
        """Return the GPU for ``task`` on ``node``; None if none fits and has a score."""
        best: Gpu | None = None
        best_score = 0.0
        for gpu in node.gpus:
            if not gpu.fits(task):
                continue
            score, refusal = self._score(self.gpu_orders, "gpu_order", task, node, gpu)
            if refusal:
                self.explanations.of_node(task, node, f"GPU {gpu.index}: {refusal}")
            elif best is None or score > best_score:
                best, best_score = gpu, score
        return best

    def _score(
        self, orders: Sequence[Registered[Any]], point: str, *args: object
    ) -> tuple[float, str]:
        total = 0.0
        for plugin, order in orders:
            try:
                total += order(*args)
                if not total <= inf:  # NaN; also what is left of two infinite scores
                    raise ValueError(_NO_NUMBER)
            except PLUGIN_FAULTS as error:
                self.fault(plugin, point, error)
                return 0.0, _failed(plugin, error)
        return total, ""

    def _refusal(self, checks: Sequence[Registered[Any]], point: str, *args: object) -> str:
        for plugin, check in checks:
            try:
                refusal: str | None = check(*args)
                if refusal is not None and not isinstance(refusal, str):
                    raise wrong_result(refusal, "why not, in words, or None")
            except PLUGIN_FAULTS as error:
                self.fault(plugin, point, error)
                return _failed(plugin, error)
            if refusal:
                return refusal
        return ""

    def _verdict(self, checks: Sequence[Registered[Any]], point: str, *args: object) -> str:
        for plugin, check in checks:
            try:
                verdict: object = check(*args)
                if not isinstance(verdict, Verdict):
                    raise wrong_result(verdict, "a Verdict, such as ALLOWED")
            except PLUGIN_FAULTS as error:
                self.fault(plugin, point, error)
                return _failed(plugin, error)
            if not verdict.allowed:
                return str(verdict.reason) or f"{plugin} allows no more"
        return ""


def _parts(returned: Sequence[Sequence[Node]], whole: Sequence[Node]) -> list[Sequence[Node]]:
    """Return the sets into which a plugin splits ``whole``, without empty ones.

    Raises:
        TypeError: ``returned`` is not a sequence of sequences of these nodes.
    """
    known = set(whole)
    parts: list[Sequence[Node]] = []
    for part in returned:
        nodes = part if isinstance(part, Sequence) else None
        if nodes is None or not known.issuperset(nodes):
            raise wrong_result(
                part, "a sequence of sets, each a sequence of nodes that it was given"
            )
        if nodes:
            parts.append(nodes)
    return parts


def _failed(plugin: str, error: PluginFault) -> str:
    return f"{plugin} failed: {type(error).__name__}: {error}"


def wrong_result(returned: object, expected: str) -> TypeError:
    """Return the fault of a plugin that returned an object of the wrong type."""
    return TypeError(f"it returned {returned!r:.100}; it must return {expected}")


_NO_NUMBER = "it returned NaN, which is neither more nor less than any number"


def _sign(left: tuple[object, ...], right: tuple[object, ...]) -> int:
    return (left > right) - (left < right)


def _older(left: Queue | Job, right: Queue | Job) -> int:
    if left.created != right.created:
        return -1 if left.created < right.created else 1
    return (left.name > right.name) - (left.name < right.name)

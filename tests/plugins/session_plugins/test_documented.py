"""The examples of KAI-Scheduler's documentation, written with these classes, work as documented."""

from collections import Counter

import pytest
from flow_control.sessions.clusters import Bench, gpus

from epp.flow_control.sessions import Event, Job, Node, Session, SessionPlugin, Task


class GPUPredicate(SessionPlugin):
    """Refuses nodes whose GPUs are taken."""

    name = "gpu-predicate"

    def on_session_open(self, ssn: Session) -> None:
        ssn.add_predicate_fn(self.check)

    def check(self, task: Task, _job: Job, node: Node) -> str | None:
        if task.requires_gpu and not node.has_available_gpus():
            return f"node {node.name} has no available GPUs"
        return None


class GPUUtilizationScore(SessionPlugin):
    """Scores a node by its utilization."""

    name = "gpu-utilization-score"

    def on_session_open(self, ssn: Session) -> None:
        ssn.add_node_order_fn(self.score)

    def score(self, _task: Task, node: Node) -> float:
        return node.gpu_utilization()


class NamespaceAllocationTracker(SessionPlugin):
    """Counts places by namespace, in each session anew, and reports when it closes."""

    name = "namespace-allocation-tracker"

    def __init__(self) -> None:
        self.allocations: Counter[str] = Counter()
        self.reports: list[dict[str, int]] = []

    def on_session_open(self, ssn: Session) -> None:
        self.allocations = Counter()
        ssn.add_event_handler(allocate=self.allocated, deallocate=self.deallocated)

    def allocated(self, event: Event) -> None:
        self.allocations[event.task.namespace] += 1

    def deallocated(self, event: Event) -> None:
        self.allocations[event.task.namespace] -= 1

    def on_session_close(self, ssn: Session) -> None:
        self.reports.append(dict(self.allocations))


def gpu_task(name: str, namespace: str = "default") -> Task:
    return Task(name, namespace=namespace, requires_gpu=True)


def test_a_node_without_free_gpus_is_refused_with_its_name() -> None:
    plugin = GPUPredicate()
    full, free = gpus("n1", 1, used=1.0), gpus("n2", 1)
    made = Bench(plugin, nodes=[full, free])
    job = made.job("job", gpu_task("pod"))
    assert plugin.check(job.tasks[0], job, full) == "node n1 has no available GPUs"
    assert plugin.check(Task("cpu"), job, full) is None
    assert made.run() == {"pod": "n2"}


def test_the_score_is_the_nodes_utilization() -> None:
    plugin = GPUUtilizationScore()
    nodes = [gpus("n1", 2), gpus("n2", 2, used=0.25), gpus("n3", 2, used=0.125)]
    assert [plugin.score(gpu_task("pod"), node) for node in nodes] == [0.0, 0.25, 0.125]
    made = Bench(plugin, nodes=nodes)
    made.job("job", Task("pod", requires_gpu=True, size=0.5))
    assert made.run() == {"pod": "n2"}


def test_allocations_are_counted_from_0_in_each_session_and_reported_at_its_end() -> None:
    tracker = NamespaceAllocationTracker()
    made = Bench(tracker, nodes=[gpus("n1", 3)])
    made.job("a", gpu_task("a1", "team-a"), gpu_task("a2", "team-a"), min_available=2)
    made.job("b", gpu_task("b1", "team-b"))
    made.run()
    assert tracker.reports == [{"team-a": 2, "team-b": 1}]
    made.job("c", gpu_task("c1", "team-c"))  # no room
    made.run()
    assert tracker.reports[1:] == [{}]


def test_a_place_that_is_taken_back_counts_down_again() -> None:
    tracker = NamespaceAllocationTracker()
    made = Bench(tracker, nodes=[gpus("n1", 2)])
    made.job("gang", *(gpu_task(f"g{n}", "team-a") for n in range(3)), min_available=3)
    made.run()
    assert tracker.reports == [{"team-a": 0}]


@pytest.mark.parametrize("used", [0.0, 0.5])
def test_utilization_counts_what_a_session_gives(used: float) -> None:
    node = gpus("n1", 1, used=used)
    made = Bench(nodes=[node])
    made.job("job", Task("pod", requires_gpu=True, size=0.5))
    made.run()
    assert node.gpu_utilization() == used + 0.5

"""In any session, a job runs with at least its minimum or not at all, within node capacities."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from flow_control.sessions.clusters import Bench, Plugin, room
from hypothesis import given
from hypothesis import strategies as st

from epp.flow_control.sessions import Job, Queue, Session, Task


@dataclass(frozen=True)
class Arrival:
    """A job that is added before a session."""

    queue: str
    sizes: list[float]
    min_available: int
    priority: int


ARRIVALS = st.builds(
    Arrival,
    st.sampled_from(["x", "y"]),
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=3, max_size=4),
    st.integers(1, 3),
    st.integers(-2, 2),
)
ACTIONS = st.permutations(["allocate", "reclaim", "preempt"])


def orders(ssn: Session) -> None:
    """Orders by priority, and reclaims from lower priorities only."""
    ssn.add_job_order_fn(lambda left, right: right.priority - left.priority)
    ssn.add_reclaim_victim_filter_fn(lambda job, victim: victim.priority < job.priority)


def check(made: Bench, jobs: Sequence[Job]) -> None:
    """Check the invariants between sessions."""
    assert made.faults.seen == []
    for node in made.cluster.nodes.values():
        assert node.used == sum(task.size for task in node.tasks)
        assert node.capacity is not None
        assert node.used <= node.capacity
    for job in jobs:
        active = job.active()
        assert not active or len(active) >= job.min_available
        assert len(active) + len(job.pending()) == len(job.tasks)
        for task in active:
            assert task.node is not None
            assert task in task.node.tasks
    placed = {task.name: task.node.name for job in jobs for task in job.tasks if task.node}
    assert made.world.bound == placed


@given(
    capacities=st.lists(st.sampled_from([1.0, 2.5, 4.0]), min_size=1, max_size=3),
    rounds=st.lists(st.lists(ARRIVALS, max_size=3), min_size=1, max_size=5),
    actions=ACTIONS,
    refusals=st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_jobs_run_with_their_minimum_or_not_at_all(
    capacities: list[float],
    rounds: list[list[Arrival]],
    actions: list[str],
    refusals: list[bool],
) -> None:
    made = Bench(
        Plugin(orders),
        actions=actions,
        nodes=[room(f"node-{place}", capacity) for place, capacity in enumerate(capacities)],
        queues=[Queue("x"), Queue("y")],
    )
    answers = cycle(refusals)
    made.world.refuses = lambda: next(answers)
    jobs: list[Job] = []
    for arrivals in rounds:
        for each in arrivals:
            name = str(len(jobs))
            tasks = [Task(f"{name}-{place}", size=size) for place, size in enumerate(each.sizes)]
            jobs.append(
                made.job(
                    name,
                    *tasks,
                    queue=each.queue,
                    min_available=each.min_available,
                    priority=each.priority,
                )
            )
        made.run()
        check(made, jobs)

"""For any operations, the counts of event handlers are exact and a rollback restores everything."""

from collections import Counter
from functools import partial
from operator import eq

from flow_control.sessions.clusters import Bench, gpus, room
from hypothesis import given
from hypothesis import strategies as st

from epp.flow_control.sessions import (
    CommitError,
    Event,
    ExtensionPoints,
    Session,
    SessionPlugin,
    Statement,
    Task,
    TaskStatus,
)


class Ledger(SessionPlugin):
    """Counts by events only."""

    name = "ledger"

    def __init__(self) -> None:
        self.held: Counter[tuple[str, int | None, str]] = Counter()

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_event_handler(
            allocate=lambda event: self.held.update([_key(event)]),
            deallocate=lambda event: self.held.subtract([_key(event)]),
        )

    @property
    def present(self) -> dict[tuple[str, int | None, str], int]:
        """The placed tasks according to its count."""
        return {key: count for key, count in self.held.items() if count}


def _key(event: Event) -> tuple[str, int | None, str]:
    return event.node.name, None if event.gpu is None else event.gpu.index, event.task.name


def state(made: Bench) -> object:
    """The state that operations may change."""
    return (
        {
            name: ({task.name for task in node.tasks}, node.used, [gpu.used for gpu in node.gpus])
            for name, node in made.cluster.nodes.items()
        },
        {
            task.name: (task.status, task.node, task.gpu)
            for job in made.cluster.jobs.values()
            for task in job.tasks
        },
    )


def held(made: Bench) -> dict[tuple[str, int | None, str], int]:
    """The placed tasks according to the cluster."""
    return {
        (name, None if task.gpu is None else task.gpu.index, task.name): 1
        for name, node in made.cluster.nodes.items()
        for task in node.tasks
    }


def step(made: Bench, statement: Statement, task: Task, place: int) -> None:
    """Apply a possible operation to a task."""
    if task.status is TaskStatus.RUNNING:
        statement.evict(task, "because")
    elif task.status is TaskStatus.PENDING:
        node = made.cluster.nodes["gpus" if task.requires_gpu else f"node-{place % 2}"]
        statement.allocate(task, node, node.gpus[place % 2] if task.requires_gpu else None)


STEPS = st.lists(
    st.tuples(st.sampled_from("oooocr"), st.integers(0, 5), st.integers(0, 3)), max_size=25
)


@given(
    sizes=st.lists(st.sampled_from([0.25, 0.5, 1.0, 3.0]), min_size=6, max_size=6),
    programs=st.lists(st.tuples(STEPS, st.sampled_from(["commit", "refused", "discard"]))),
)
def test_accounts_follow_the_cluster_and_an_undone_statement_leaves_no_trace(
    sizes: list[float], programs: list[tuple[list[tuple[str, int, int]], str]]
) -> None:
    ledger = Ledger()
    made = Bench(ledger, nodes=[room("node-0", 99), room("node-1", 99), gpus("gpus", 2)])
    tasks = [
        Task(str(place), size=size, requires_gpu=place % 3 == 0) for place, size in enumerate(sizes)
    ]
    for task in tasks:
        made.job(task.name, task)
    session = made.dispatcher.points
    assert isinstance(session, Session)
    for steps, end in programs:
        start, known = state(made), dict(made.world.bound)
        statement = session.statement()
        marks = [(0, start)]
        for kind, number, place in steps:
            if kind == "c":
                marks.append((statement.checkpoint(), state(made)))
            elif kind == "r":
                checkpoint, then = marks[min(place, len(marks) - 1)]
                statement.rollback(checkpoint)
                assert state(made) == then
                marks = [mark for mark in marks if mark[0] <= checkpoint]
            else:
                step(made, statement, tasks[number], place)
            assert ledger.present == held(made)
            assert made.world.bound == known  # the world learns nothing before the commit
        made.world.refuses = partial(eq, end, "refused")
        if end == "discard":
            statement.discard()
        else:
            try:
                statement.commit()
            except CommitError:
                assert end == "refused"
        if end != "commit":
            assert state(made) == start
            assert made.world.bound == known
        assert ledger.present == held(made)
        assert made.world.bound == {task: node for node, _, task in held(made)}

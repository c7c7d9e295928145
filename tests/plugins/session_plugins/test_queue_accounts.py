"""Allocations and demands of queues, tracked by events, equal a full count."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from flow_control.sessions.clusters import Bench, room
from hypothesis import given
from hypothesis import strategies as st

from epp.flow_control.sessions import ArgumentError, Arguments, Job, Queue, Task, TaskStatus
from epp_plugins.session_plugins.proportion import Params, Proportion


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def bench(
    queues: Sequence[Queue],
    capacity: float,
    arguments: Mapping[str, object] | None = None,
    **said: Any,
) -> tuple[Bench, Proportion, Clock]:
    clock = Clock()
    plugin = Proportion(Arguments(arguments).as_params(Params), clock)
    return Bench(plugin, queues=queues, nodes=[room("n", capacity)], **said), plugin, clock


def fair_shares(plugin: Proportion, queues: Sequence[Queue]) -> list[float]:
    return [plugin._accounts[queue].fair[0] for queue in queues]


def crowd(made: Bench, count: int) -> None:
    """Have many jobs wait in each queue."""
    for queue in made.cluster.queues.values():
        for number in range(count):
            made.job(f"{queue.name}{number}", queue=queue.name, priority=-1)


@pytest.mark.parametrize(
    ("k", "want"),
    [
        pytest.param(0, [5, 5], id="k = 0: it does not matter"),
        pytest.param(1, [3, 7], id="k = 1"),  # 0.5 + (0.5 - 0.7), 0.5 + (0.5 - 0.3)
        pytest.param("0.5", [4, 6], id="in between"),
    ],
)
def test_what_queues_had_before_counts_against_them(k: object, want: list[float]) -> None:
    queues = [Queue("a"), Queue("b")]
    arguments = {"kValue": k, "usage": {"a": 0.7, "b": 0.3}}
    made, plugin, _ = bench(queues, 10, arguments)
    crowd(made, 20)
    made.run()
    assert fair_shares(plugin, queues) == pytest.approx(want)


def test_use_builds_up_while_a_queue_has_much_and_is_forgotten() -> None:
    queues = [Queue("a"), Queue("b")]
    made, plugin, clock = bench(queues, 10, {"usageHalfLife": "60s"})
    first = [made.job(f"first{n}", queue="a", priority=-1) for n in range(10)]
    made.run()
    clock.now = 60.0  # one half-life long it had all, and before nothing: 0.5
    crowd(made, 20)
    made.run()
    assert fair_shares(plugin, queues) == pytest.approx([10 / 3, 20 / 3])  # 0.5 to 0.5 + 0.5
    for job in first:
        made.dispatcher.end(job.tasks[0])
        made.cluster.remove_job(job)
    for job in [*made.cluster.jobs.values()]:
        assert not job.active()
        made.cluster.remove_job(job)
    clock.now = 6000.0
    crowd(made, 20)
    made.run()
    assert fair_shares(plugin, queues) == pytest.approx([5, 5])


def test_without_a_half_life_nothing_builds_up() -> None:
    queues = [Queue("a"), Queue("b")]
    made, plugin, clock = bench(queues, 10)
    for number in range(10):
        made.job(f"first{number}", queue="a", priority=-1)
    made.run()
    clock.now = 1e6
    crowd(made, 20)
    made.run()
    assert fair_shares(plugin, queues) == pytest.approx([5, 5])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        pytest.param(
            {"kValue": -1}, "argument 'kValue' is -1; it must be a finite number >= 0", id="below 0"
        ),
        pytest.param(
            {"usage": 0.5}, "argument 'usage' is 0.5; it must be a mapping", id="no mapping"
        ),
        pytest.param(
            {"usage": {"a": "much"}},
            "argument 'usage': 'a' is 'much'; it must be a finite number",
            id="no number",
        ),
        pytest.param(
            {"usage": {"a": -0.1}},
            "argument 'usage': 'a' is -0.1; it must be a finite number >= 0",
            id="less than nothing",
        ),
        pytest.param({"usageHalfLife": "long"}, "argument 'usageHalfLife' is 'long'", id="no time"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Arguments(arguments).as_params(Params)
    assert str(caught.value).startswith(why)


def test_use_of_a_queue_that_is_not_there_is_reported() -> None:
    made, _, _ = bench([Queue("a")], 1, {"usage": {"b": 0.5}})
    made.job("waits")
    made.run()
    fault = ("proportion", "on_session_open", "argument 'usage': there is no queue 'b'")
    assert made.faults.seen == [fault]


def test_what_ran_before_and_what_starts_between_sessions_is_counted() -> None:
    queue = Queue("a", limit=3)
    made, plugin, _ = bench([queue], 9)
    node = made.cluster.nodes["n"]
    early = Task("early")
    made.job("early", early)
    node.add(early, None)
    early.note_status(TaskStatus.RUNNING)
    made.run()
    made.dispatcher.start(made.job("between").tasks[0], node)
    assert [*made.run()] == []
    assert plugin._accounts[queue].allocated == [2]
    late = [made.job("late0"), made.job("late1")]
    assert [*made.run()] == ["late0"]
    assert made.explanations.jobs == {late[1]: "queue a has 3 of at most 3, job late1 wants 1 more"}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["job", "job", "run", "run", "end", "start", "remove", "queue"]),
        st.integers(0, 30),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_accounts_are_what_a_count_of_all_finds(steps: list[tuple[str, int]]) -> None:
    org = Queue("org", limit=6)
    leaves = [Queue("a", parent=org, deserved=2), Queue("b", parent=org), Queue("c", limit=3)]
    made, plugin, _ = bench([org, *leaves], 8, actions=("allocate", "reclaim", "preempt"))
    node = made.cluster.nodes["n"]
    for place, (step, number) in enumerate(steps):
        jobs: list[Job] = [*made.cluster.jobs.values()]
        tasks = [task for job in jobs for task in job.tasks]
        if step == "job":
            queue = leaves[number % len(leaves)].name
            made.job(
                f"j{place}", *(Task(f"t{place}-{n}") for n in range(1 + number % 3)),
                queue=queue, priority=number % 5 - 2,
            )  # fmt: skip
        elif step == "queue":
            leaf = Queue(f"q{place}", parent=org)
            made.cluster.add_queue(leaf)
            leaves.append(leaf)
        elif step == "remove" and jobs:
            gone = jobs[number % len(jobs)]
            for task in gone.active():
                made.dispatcher.end(task)
            made.cluster.remove_job(gone)
        elif step == "end" and (running := [task for task in tasks if task.node]):
            made.dispatcher.end(running[number % len(running)])
        elif step == "start" and (idle := [task for task in tasks if task.node is None]):
            if node.fits(idle[0]):
                made.dispatcher.start(idle[0], node)
        elif step == "run":
            made.world.bound = {task.name: "n" for task in tasks if task.node}
            made.run()
            assert made.faults.seen == []
            check(made, plugin)


def check(made: Bench, plugin: Proportion) -> None:
    """Compare the accounts with a count of everything."""
    for queue in made.cluster.queues.values():
        jobs = [job for job in made.cluster.jobs.values() if queue in job.queue.path()]
        active = [task for job in jobs for task in job.active()]
        account = plugin._accounts[queue]
        assert account.allocated == [len(active)]
        assert account.requested == [sum(len(job.tasks) for job in jobs)]
        assert account.allocated_non_preemptible == sum(
            not task.job.is_preemptible() for task in active
        )


def test_the_state_has_what_queues_have() -> None:
    made, plugin, _ = bench([Queue("a"), Queue("b")], 10)
    crowd(made, 2)
    made.run()
    queue = {"allocated": 2, "requested": 2, "fair_share": 2, "past_use": 0}
    assert plugin.dump_state() == {"jobs": 4, "queues": {"a": queue, "b": queue}}

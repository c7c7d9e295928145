"""Fair shares: the share of each queue, the next queue, and which may reclaim from which."""

from collections.abc import Sequence
from typing import Any

from flow_control.sessions.clusters import Bench, room

from epp.flow_control.sessions import Queue, Session, SessionPlugin, Task
from epp_plugins.session_plugins.proportion import Params, Proportion


def bench(queues: Sequence[Queue], capacity: float, **said: Any) -> Bench:
    return Bench(Proportion(Params()), queues=queues, nodes=[room("a", capacity)], **said)


def attained(made: Bench) -> dict[str, int]:
    """Places by queue."""
    return {
        queue.name: sum(
            len(job.active()) for job in made.cluster.jobs.values() if job.queue is queue
        )
        for queue in made.cluster.queues.values()
    }


def test_queues_attain_their_shares_in_one_session() -> None:
    queues = [
        Queue(name, over_quota_weight=weight) for name, weight in (("a", 1), ("b", 2), ("c", 4))
    ]
    made = bench(queues, 70)
    for queue in queues:
        for number in range(100):
            made.job(f"{queue.name}{number}", queue=queue.name)
    made.run()
    assert attained(made) == {"a": 10, "b": 20, "c": 40}


def test_a_queue_above_its_limit_waits_and_says_why() -> None:
    top = Queue("top", limit=2)
    made = bench([top, Queue("a", parent=top), Queue("b", parent=top)], 9)
    for name in ("a1", "a2"):
        made.job(name, queue="a")
    made.run()
    late = made.job("b1", queue="b")
    made.run()
    assert attained(made) == {"top": 0, "a": 2, "b": 0}
    assert made.explanations.jobs == {late: "queue top has 2 of at most 2, job b1 wants 1 more"}


def test_jobs_that_are_not_preemptible_stay_within_what_their_queue_deserves() -> None:
    made = bench([Queue("a", deserved=1)], 9)
    made.job("first")
    second = made.job("second")
    made.job("spare", priority=-1)
    assert [*made.run()] == ["first", "spare"]
    assert made.explanations.jobs[second] == (
        "queue a deserves 1 and has 1 of that for jobs that are not preemptible,"
        " job second wants 1 more"
    )


def hog(made: Bench, count: int, *, queue: str) -> None:
    """Fill places with preemptible jobs of a queue."""
    for number in range(count):
        job = made.job(f"{queue}-hog-{number}", queue=queue, priority=-1)
        made.dispatcher.start(job.tasks[0], made.cluster.nodes["a"])
        made.world.bound[job.name] = "a"


def test_a_queue_takes_back_its_share_and_no_more() -> None:
    made = bench([Queue("a"), Queue("b")], 10, actions=("allocate", "reclaim"))
    hog(made, 10, queue="b")
    for number in range(10):
        made.job(f"a{number}", queue="a", priority=-1)
    made.run()
    assert attained(made) == {"a": 5, "b": 5}
    assert len(made.world.evicted) == 5
    made.run()
    assert len(made.world.evicted) == 5  # and it stays so


def test_a_queue_within_its_share_loses_nothing() -> None:
    made = bench([Queue("a"), Queue("b", deserved=8)], 10, actions=("allocate", "reclaim"))
    hog(made, 8, queue="b")
    for number in range(5):
        made.job(f"a{number}", queue="a", priority=-1)
    made.run()
    assert attained(made) == {"a": 2, "b": 8}
    assert made.world.evicted == []


def test_amounts_are_there_for_others() -> None:
    seen: dict[str, tuple[float | None, ...]] = {}

    class Reader(SessionPlugin):
        name = "reader"

        def on_session_open(self, ssn: Session) -> None:
            for queue in ssn.cluster.queues.values():
                names = ("allocated", "deserved", "fair_share")
                seen[queue.name] = tuple(ssn.amount(name, queue) for name in names)

    queues = [Queue("a", deserved=2), Queue("b")]
    made = Bench(Proportion(Params()), Reader(), queues=queues, nodes=[room("n", 6)])
    for number in range(9):
        made.job(f"a{number}", Task(f"a{number}"), queue="a", priority=-1)
        made.job(f"b{number}", queue="b", priority=-1)
    made.run()
    assert seen == {"a": (0, 2, 4), "b": (0, 0, 2)}


def test_of_a_gang_all_that_goes_together_counts_for_the_order() -> None:
    made = bench([Queue("a"), Queue("b")], 3)  # 1.5 for each: two together are too many
    made.job("a", *(Task(f"a{n}") for n in range(2)), queue="a", min_available=2)
    for name in ("b0", "b1"):
        made.job(name, queue="b")
    assert [*made.run()] == ["b0", "a0", "a1"]


def test_a_job_that_lacks_one_of_its_tasks_reclaims_for_that_one() -> None:
    made = bench([Queue("a"), Queue("b")], 6, actions=("reclaim",))
    gang = made.job(
        "gang", *(Task(f"a{n}") for n in range(5)), queue="a", min_available=2, priority=-1
    )
    for task in gang.tasks[:2]:
        made.dispatcher.start(task, made.cluster.nodes["a"])
    hog(made, 4, queue="b")
    made.run()  # it has 2 of the 3 that it is owed
    assert attained(made) == {"a": 3, "b": 3}

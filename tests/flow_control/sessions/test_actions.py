"""Placement and eviction by the actions."""

from collections.abc import Sequence
from typing import Any

import pytest
from flow_control.sessions.clusters import Bench, Plugin, gpus, room
from hypothesis import given
from hypothesis import strategies as st

from epp.flow_control.sessions import Gpu, Job, Node, Queue, Scenario, Session, SessionPlugin, Task


def by_priority(ssn: Session) -> None:
    """Higher priorities first."""
    ssn.add_job_order_fn(lambda left, right: right.priority - left.priority)


def running(made: Bench, name: str, node: str, count: int = 1, **said: Any) -> Job:
    """Add a job whose tasks run on a node."""
    job = made.job(name, *(Task(f"{name}-{number}") for number in range(count)), **said)
    for task in job.tasks:
        made.dispatcher.start(task, made.cluster.nodes[node])
        made.world.bound[task.name] = node
    return job


def two_queues() -> list[Queue]:
    return [Queue("mine"), Queue("theirs")]


def test_as_many_are_placed_in_one_session_as_there_is_room_for() -> None:
    made = Bench(nodes=[room("a", 20), room("b", 30)])
    for number in range(500):
        made.job(f"{number:03}", created=number)
    bound = made.run()
    assert sorted(bound) == [f"{number:03}" for number in range(50)]
    assert sorted(bound.values()) == ["a"] * 20 + ["b"] * 30


def test_placed_ones_are_seen_by_the_next_ones_and_spread() -> None:
    made = Bench(
        Plugin(lambda ssn: ssn.add_node_order_fn(lambda task, node: -node.used)),
        nodes=[room(f"node-{place}", 99) for place in range(4)],
    )
    for number in range(10):
        made.job(str(number))
    made.run()
    assert sorted(node.used for node in made.cluster.nodes.values()) == [2, 2, 3, 3]


def test_above_its_minimum_a_job_gets_one_task_at_a_time_and_competes_again() -> None:
    placed: list[str] = []

    def register(ssn: Session) -> None:
        ssn.add_job_order_fn(lambda left, right: len(left.active()) - len(right.active()))
        ssn.add_event_handler(allocate=lambda event: placed.append(event.task.name))

    made = Bench(Plugin(register), nodes=[room("a", 5)])
    for name in ("x", "y"):
        made.job(name, *(Task(f"{name}{number}") for number in range(4)), min_available=2)
    made.run()
    assert placed == ["x0", "x1", "y0", "y1", "x2"]


def test_inner_queues_are_compared_before_leaves() -> None:
    org_a, org_b = Queue("org-a", priority=1), Queue("org-b")
    queues = [
        org_a,
        org_b,
        Queue("a-low", parent=org_a, priority=-5),
        Queue("b-high", parent=org_b, priority=9),
    ]
    made = Bench(
        Plugin(
            lambda ssn: ssn.add_queue_order_fn(
                lambda left, right, *_: right.priority - left.priority
            )
        ),
        nodes=[room("a")],
        queues=queues,
    )
    made.job("from-a", queue="a-low")
    made.job("from-b", queue="b-high")
    assert made.run() == {"from-a": "a"}


class RoundRobin(SessionPlugin):
    """Orders queues by their allocation, counted by events."""

    name = "round-robin"

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    def on_session_open(self, ssn: Session) -> None:
        ssn.add_event_handler(allocate=lambda event: self._add(event.task.job.queue))
        ssn.add_queue_order_fn(
            lambda left, right, *_: self.held.get(left.name, 0) - self.held.get(right.name, 0)
        )

    def _add(self, queue: Queue) -> None:
        for each in queue.path():
            self.held[each.name] = self.held.get(each.name, 0) + 1


@given(
    waiting=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    parents=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    capacity=st.integers(0, 20),
)
def test_queues_are_put_in_order_anew_after_every_place_as_if_all_were_compared(
    waiting: Sequence[int], parents: Sequence[int], capacity: int
) -> None:
    tops = [Queue(f"top-{number}") for number in range(3)]
    leaves = [
        Queue(f"leaf-{number}", parent=tops[parents[number]]) for number in range(len(waiting))
    ]
    made = Bench(RoundRobin(), nodes=[room("a", capacity)], queues=[*tops, *leaves])
    for leaf, count in zip(leaves, waiting, strict=True):
        for number in range(count):
            made.job(f"{leaf.name}/{number}", queue=leaf.name)
    # The naive way: all queues of a level compared before each place.
    want: list[str] = []
    left = {leaf.name: count for leaf, count in zip(leaves, waiting, strict=True)}
    held: dict[str, int] = {}

    def rank(queue: Queue) -> tuple[int, str]:
        return held.get(queue.name, 0), queue.name

    for _ in range(min(capacity, sum(waiting))):
        open_leaves = [leaf for leaf in leaves if left[leaf.name]]
        top = min({top for leaf in open_leaves for top in leaf.path() if top in tops}, key=rank)
        leaf = min((leaf for leaf in open_leaves if leaf.parent is top), key=rank)
        want.append(f"{leaf.name}/{waiting[leaves.index(leaf)] - left[leaf.name]}")
        left[leaf.name] -= 1
        for queue in leaf.path():
            held[queue.name] = held.get(queue.name, 0) + 1
    assert [*made.run()] == want


def test_a_job_preempts_the_lowest_priority_of_its_queue_that_makes_room() -> None:
    made = Bench(Plugin(by_priority), actions=("allocate", "preempt"), nodes=[room("a", 3)])
    for name, priority in (("x", -1), ("y", -3), ("z", -2)):
        running(made, name, "a", priority=priority)
    made.job("vip", priority=1)
    assert made.run() == {"x-0": "a", "z-0": "a", "vip": "a"}
    assert made.world.evicted == [("y-0", "preempted by job vip")]


def test_victims_whose_places_do_not_help_are_spared() -> None:
    def only_b(task: Task, _job: Job, node: Node) -> str | None:
        return "it must be b" if task.name == "vip" and node.name != "b" else None

    def register(ssn: Session) -> None:
        by_priority(ssn)
        ssn.add_predicate_fn(only_b)

    made = Bench(Plugin(register), actions=("allocate", "preempt"), nodes=[room("a", 2), room("b")])
    running(made, "x", "a", priority=-9)
    running(made, "y", "a", priority=-8)
    running(made, "z", "b", priority=-1)
    made.job("vip")
    made.run()
    assert made.world.evicted == [("z-0", "preempted by job vip")]
    assert made.world.commits == 1


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param({"priority": -1, "preemptible": False}, "not preemptible", id="protected"),
        pytest.param({"priority": 5, "preemptible": True}, "not lower", id="the same priority"),
        pytest.param({"priority": -1, "queue": "theirs"}, "another queue", id="another queue"),
    ],
)
def test_who_may_not_be_preempted_stays(said: dict[str, Any], why: str) -> None:
    made = Bench(
        Plugin(by_priority), actions=("allocate", "preempt"), nodes=[room("a")], queues=two_queues()
    )
    running(made, "old", "a", **{"queue": "mine", **said})
    made.job("vip", priority=5)
    assert made.run() == {"old-0": "a"}, why


def test_a_job_loses_what_it_can_do_without_first_and_then_all_of_it() -> None:
    made = Bench(Plugin(by_priority), actions=("allocate", "preempt"), nodes=[room("a", 4)])
    elastic = running(made, "elastic", "a", 4, priority=-1, min_available=3)
    made.job("first")
    made.run()
    assert made.world.evicted == [("elastic-3", "preempted by job first")]
    made.cluster.remove_job(elastic)  # what it lost must not come back in between
    made.cluster.add_job(elastic)
    made.job("second", created=-1)
    elastic.tasks.pop()  # it does not ask for the lost one again
    made.run()
    assert [name for name, _ in made.world.evicted[1:]] == ["elastic-2", "elastic-1", "elastic-0"]


def test_a_queue_reclaims_from_another_but_not_from_itself() -> None:
    made = Bench(
        Plugin(by_priority),
        actions=("allocate", "reclaim"),
        nodes=[room("a", 2)],
        queues=two_queues(),
    )
    running(made, "own", "a", queue="mine", priority=-9)
    running(made, "other", "a", queue="theirs", priority=-1)
    made.job("job", queue="mine")
    made.run()
    assert made.world.evicted == [("other-0", "reclaimed by job job")]


@pytest.mark.parametrize(
    ("action", "want"), [("reclaim", ["start", "filter"] * 2), ("preempt", []), ("allocate", [])]
)
def test_plugins_are_notified_when_a_reclaim_begins_to_look_for_victims(
    action: str, want: list[str]
) -> None:
    calls: list[str] = []

    def register(ssn: Session) -> None:
        ssn.add_on_job_solution_start_fn(lambda: calls.append("start"))
        ssn.add_reclaim_victim_filter_fn(spare)

    def spare(_job: Job, _victim: Job) -> bool:
        calls.append("filter")
        return False

    def fail() -> None:
        raise RuntimeError("no idea")

    made = Bench(
        Plugin(lambda ssn: ssn.add_on_job_solution_start_fn(fail), "failing"),
        Plugin(register),
        actions=(action,),
        nodes=[room("a")],
        queues=two_queues(),
    )
    running(made, "other", "a", queue="theirs", priority=-1)
    made.job("one", queue="mine")
    made.job("two", queue="mine")
    made.run()
    assert calls == want
    faults = [("failing", "on_job_solution_start", "no idea")] * want.count("start")
    assert made.faults.seen == faults


VETOES: dict[str, Any] = {
    "nobody may reclaim": lambda ssn: ssn.add_can_reclaim_resources_fn(lambda job: False),
    "the victim is spared": lambda ssn: ssn.add_reclaim_victim_filter_fn(lambda job, victim: False),
    "the scenario is not valid": lambda ssn: ssn.add_reclaim_scenario_validator_fn(
        lambda scenario: not scenario.victims
    ),
    "it is not reclaimable": lambda ssn: ssn.add_reclaimable_fn(
        lambda job, victim: "it began just now"
    ),
}


VETOED = {
    "nobody may reclaim": ["other does not let it reclaim"],
    "the victim is spared": [],
    "the scenario is not valid": ["other does not accept the evictions for it"],
    "it is not reclaimable": ["it began just now"],
}


@pytest.mark.parametrize("veto", VETOES)
def test_one_veto_stops_a_reclaim(veto: str) -> None:
    made = Bench(
        Plugin(lambda ssn: ssn.add_reclaimable_fn(lambda job, victim: None)),
        Plugin(VETOES[veto], "other"),
        actions=("allocate", "reclaim"),
        nodes=[room("a")],
        queues=two_queues(),
    )
    running(made, "other", "a", queue="theirs", priority=-1)
    job = made.job("job", queue="mine")
    assert made.run() == {"other-0": "a"}
    assert made.faults.seen == []
    full, *why = made.explanations.of(job)
    assert full == "node a has room for 0, the task takes 1"
    assert why == VETOED[veto]


@pytest.mark.parametrize(
    ("register", "point"),
    [
        (lambda ssn: ssn.add_can_reclaim_resources_fn(lambda job: "no"), "can_reclaim_resources"),
        (
            lambda ssn: ssn.add_reclaim_victim_filter_fn(lambda job, victim: "no"),
            "reclaim_victim_filter",
        ),
        (
            lambda ssn: ssn.add_reclaim_scenario_validator_fn(lambda scenario: None),
            "reclaim_scenario_validator",
        ),
    ],
    ids=["a text for who may reclaim", "a text for a victim", "nothing for a scenario"],
)
def test_what_is_neither_a_yes_nor_a_no_evicts_nobody(register: Any, point: str) -> None:
    made = Bench(Plugin(register), actions=("reclaim",), nodes=[room("a")], queues=two_queues())
    running(made, "other", "a", queue="theirs", priority=-1)
    made.job("job", queue="mine")
    assert made.run() == {"other-0": "a"}
    ((plugin, where, text),) = set(made.faults.seen)
    assert (plugin, where) == ("test", point)
    assert text.endswith("it must return True or False")


def test_a_validator_sees_the_victims_and_a_bigger_scenario_is_tried_after_a_refusal() -> None:
    seen: list[list[str]] = []

    def validate(scenario: Scenario) -> bool:
        seen.append([task.name for task in scenario.victims])
        return len(scenario.victims) > 1

    made = Bench(
        Plugin(lambda ssn: ssn.add_preempt_scenario_validator_fn(validate)),
        actions=("preempt",),
        nodes=[room("a", 2)],
    )
    running(made, "x", "a", priority=-1)
    running(made, "y", "a", priority=-1)
    made.job("vip")
    made.run()
    assert seen == [["y-0"], ["y-0", "x-0"], ["x-0"], ["y-0", "x-0"]]
    assert [name for name, _ in made.world.evicted] == ["y-0", "x-0"]


def test_a_world_that_refuses_an_eviction_keeps_victim_and_preemptor_where_they_were() -> None:
    made = Bench(actions=("preempt",), nodes=[room("a")])
    running(made, "old", "a", priority=-1)
    made.job("vip")
    made.world.refuses = lambda: True
    assert made.run() == {"old-0": "a"}
    assert [task.name for task in made.cluster.nodes["a"].tasks] == ["old-0"]


def test_a_task_that_needs_a_gpu_gets_one_and_says_why_not() -> None:
    made = Bench(nodes=[gpus("a", 1, used=1.0), gpus("b", 1)])
    first = made.job("first", Task("first", requires_gpu=True))
    second = made.job("second", Task("second", requires_gpu=True), created=1)
    assert made.run() == {"first": "b"}
    assert first.tasks[0].gpu is made.cluster.nodes["b"].gpus[0]
    assert made.explanations.nodes[second.tasks[0]] == {
        "a": "node a has no available GPUs",
        "b": "node b has no available GPUs",
    }


def test_nobody_is_asked_any_more_once_there_is_no_room_for_any_task() -> None:
    tried: list[str] = []
    made = Bench(
        Plugin(lambda ssn: ssn.add_pre_job_allocation_fn(lambda job: tried.append(job.name))),
        nodes=[room("a", 2), room("b", 0)],
    )
    jobs = [made.job(f"{number:02}", created=number) for number in range(50)]
    assert made.run() == {"00": "a", "01": "a"}
    assert tried == ["00", "01", "02"]
    assert made.explanations.of(jobs[2]) == [
        "node a has room for 0, the task takes 1",
        "node b has room for 0, the task takes 1",
    ]
    assert made.explanations.of(jobs[3]) == []
    assert made.explanations.unreached == "no node has room for any task that waits"


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(Task("last", size=0.5), id="a smaller one"),
        pytest.param(Task("last", requires_gpu=True), id="one that needs a GPU"),
    ],
)
def test_a_task_for_which_there_is_no_room_does_not_block_one_for_which_there_is(
    last: Task,
) -> None:
    made = Bench(nodes=[Node("a", capacity=1.5, gpus=gpus("", 1).gpus)])
    for number in range(5):
        made.job(str(number), created=number)
    made.job("last", last, created=9)
    assert [*made.run()] == ["0", "last"]
    assert made.explanations.unreached == "no action tried it in this session"


def test_without_anybody_to_take_from_no_plugin_is_asked() -> None:
    asked: list[str] = []
    made = Bench(
        Plugin(
            lambda ssn: ssn.add_can_reclaim_resources_fn(
                lambda job: asked.append(job.name) or True  # type: ignore[func-returns-value]
            )
        ),
        actions=("reclaim", "preempt"),
        nodes=[room("a")],
        queues=two_queues(),
    )
    running(made, "old", "a", queue="theirs")
    made.job("job", queue="mine")
    made.run()
    assert asked == []


def test_what_an_attempt_to_make_room_saw_is_not_reported_as_if_it_were_so() -> None:
    def refuse_last(task: Task, _job: Job, node: Node) -> str | None:
        return "not here" if task.name == "vip-1" else None

    made = Bench(
        Plugin(lambda ssn: ssn.add_predicate_fn(refuse_last)),
        actions=("allocate", "preempt"),
        nodes=[room("a", 2)],
    )
    running(made, "x", "a", priority=-2)
    running(made, "y", "a", priority=-1)
    vip = made.job("vip", Task("vip-0"), Task("vip-1"), min_available=2)
    assert made.run() == {"x-0": "a", "y-0": "a"}
    assert made.explanations.of(vip) == [
        "node a has room for 0, the task takes 1",
        "not here",  # of the second task nothing was known before
    ]


def test_of_two_victims_that_would_do_the_first_in_order_is_spared() -> None:
    def only_b(task: Task, _job: Job, node: Node) -> str | None:
        return "it must be b" if task.name == "vip-0" and node.name != "b" else None

    def register(ssn: Session) -> None:
        by_priority(ssn)
        ssn.add_predicate_fn(only_b)

    made = Bench(Plugin(register), actions=("preempt",), nodes=[room("a", 2), room("b")])
    running(made, "worst", "a", priority=-3)
    running(made, "mid", "a", priority=-2)
    running(made, "best", "b", priority=-1)
    made.job("vip", Task("vip-0"), Task("vip-1"), min_available=2)
    made.run()
    assert [name for name, _ in made.world.evicted] == ["worst-0", "best-0"]


def test_of_a_victim_no_less_is_left_than_it_needs_to_run_at_all() -> None:
    made = Bench(
        Plugin(by_priority), actions=("preempt",), nodes=[room("a"), Node("b", capacity=2)]
    )
    gang = running(made, "gang", "b", 2, priority=-1, min_available=2)
    extra = Task("gang-2")
    gang.tasks.append(extra)
    extra.job = gang
    made.dispatcher.start(extra, made.cluster.nodes["a"])
    made.world.bound["gang-2"] = "a"
    made.job("vip", Task("vip", size=2.0))  # fits b alone: the place on a is of no use to it
    made.run()
    assert sorted(name for name, _ in made.world.evicted) == ["gang-0", "gang-1", "gang-2"]
    assert gang.active() == []


def tries(count: int, capacity: int, *, only: str = "") -> int:
    """Return how often a gang is tried until it reclaims enough places."""
    tried: list[Job] = []

    def register(ssn: Session) -> None:
        ssn.add_pre_job_allocation_fn(tried.append)
        ssn.add_predicate_fn(lambda task, job, node: "not here" if only not in node.name else None)

    names = [f"n{number:02}" for number in range(count // capacity)]
    made = Bench(
        Plugin(register),
        nodes=[room(name, capacity) for name in names],
        queues=two_queues(),
        actions=("reclaim",),
    )
    for number in range(count):
        node = names[number // capacity]
        running(made, f"v{number:02}", node, queue="theirs", preemptible=True)
    size = capacity if only else count
    gang = [Task(f"t{number}") for number in range(size)]
    made.job("gang", *gang, queue="mine", min_available=size)
    assert made.run().keys() >= {task.name for task in gang}
    assert len(made.world.evicted) == size
    return len(tried)


def test_a_gang_is_not_tried_before_there_is_room_for_it() -> None:
    # For the reasons, with the last victim, and once more after none of them could be spared.
    assert tries(64, 4) == 3


def test_many_who_are_in_nobodys_way_are_spared_together() -> None:
    # With each victim, then without all but the last.
    assert tries(64, 1, only="n00") == 64 + 1


def test_of_tasks_with_and_without_a_gpu_that_goes_for_which_a_place_can_be_had() -> None:
    nodes = [Node("gpu", gpus=[Gpu(0, used=1)], capacity=0), room("cpu", 2)]
    made = Bench(nodes=nodes, queues=two_queues(), actions=("reclaim",))
    for name in ("v0", "v1"):
        running(made, name, "cpu", queue="theirs", preemptible=True)
    made.job("mixed", Task("t0", size=2), Task("t1", requires_gpu=True), queue="mine")
    assert made.run() == {"t0": "cpu"}

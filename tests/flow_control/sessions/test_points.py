"""Combination of several registrations at one extension point."""

import sys
from collections.abc import Callable
from math import inf
from typing import Any, NoReturn

import pytest
from flow_control.sessions.clusters import Bench, Plugin, gpus, room

from epp.flow_control.sessions import (
    ALLOWED,
    Job,
    Node,
    Queue,
    Session,
    Task,
    Verdict,
)

Register = Callable[[Session], object]

FULL = Verdict(allowed=False, reason="the tenant has enough")


def bench(*registers: Register, nodes: int = 1, **said: Any) -> Bench:
    """Return a cluster of nodes with capacity for one task each."""
    plugins = [Plugin(register, f"plugin-{place}") for place, register in enumerate(registers)]
    return Bench(*plugins, nodes=[room(f"node-{place}") for place in range(nodes)], **said)


def by_name(first: str) -> Callable[[Any, Any], float]:
    """Return an order that puts one name first and treats others as equal."""
    return lambda left, right: (right.name == first) - (left.name == first)


@pytest.mark.parametrize(
    ("orders", "want"),
    [
        pytest.param([], "old", id="nobody decides: the oldest"),
        pytest.param(["young"], "young", id="one decides"),
        pytest.param(["young", "mid"], "young", id="the first that decides"),
        pytest.param(["nobody", "mid", "old"], "mid", id="one without an opinion is passed over"),
    ],
)
def test_the_first_job_order_with_an_opinion_decides(orders: list[str], want: str) -> None:
    made = bench(*[lambda ssn, name=name: ssn.add_job_order_fn(by_name(name)) for name in orders])
    for age, name in enumerate(["old", "mid", "young"]):
        made.job(name, created=age)
    assert made.run() == {want: "node-0"}


def test_jobs_of_one_age_go_by_name() -> None:
    made = bench()
    for name in ("b", "a", "c"):
        made.job(name)
    assert made.run() == {"a": "node-0"}


def test_the_first_task_order_with_an_opinion_decides() -> None:
    made = bench(
        lambda ssn: ssn.add_task_order_fn(by_name("nobody")),
        lambda ssn: ssn.add_task_order_fn(by_name("b")),
    )
    made.job("job", Task("a"), Task("b"), Task("c"))
    assert made.run() == {"b": "node-0"}


def test_queues_are_compared_by_their_best_jobs() -> None:
    seen: set[tuple[str, str, str, str]] = set()

    def order(left: Queue, right: Queue, left_job: Job, right_job: Job, *_: object) -> float:
        seen.add((left.name, left_job.name, right.name, right_job.name))
        return right_job.priority - left_job.priority

    made = bench(
        lambda ssn: ssn.add_queue_order_fn(order),
        lambda ssn: ssn.add_job_order_fn(lambda left, right: right.priority - left.priority),
        queues=[Queue("x"), Queue("y")],
    )
    made.job("x-low", queue="x")
    made.job("x-high", queue="x", priority=1)
    made.job("y-highest", queue="y", priority=2)
    assert made.run() == {"y-highest": "node-0"}
    assert {job for each in seen for job in each[1::2]} == {"x-high", "y-highest"}


@pytest.mark.parametrize(
    ("add", "of_node"),
    [
        pytest.param(
            lambda ssn, answer: ssn.add_predicate_fn(lambda task, job, node: answer),
            True,
            id="predicate",
        ),
        pytest.param(
            lambda ssn, answer: ssn.add_pre_predicate_fn(lambda task, job: answer),
            False,
            id="pre-predicate",
        ),
    ],
)
def test_all_must_pass_and_the_reason_is_kept(
    add: Callable[[Session, str | None], None], of_node: bool
) -> None:
    made = bench(lambda ssn: add(ssn, None), lambda ssn: add(ssn, "it rains"))
    job = made.job("job")
    assert made.run() == {}
    explanations = made.explanations
    if of_node:
        assert explanations.nodes == {job.tasks[0]: {"node-0": "it rains"}}
    else:
        assert explanations.tasks == {job.tasks[0]: "it rains"}


def test_scores_are_summed_and_ties_go_by_name() -> None:
    scores = {"node-0": (5.0, 1.0), "node-1": (2.0, 4.0), "node-2": (0.0, 5.9)}
    made = bench(
        lambda ssn: ssn.add_node_order_fn(lambda task, node: scores[node.name][0]),
        lambda ssn: ssn.add_node_order_fn(lambda task, node: scores[node.name][1]),
        nodes=3,
    )
    made.job("job")
    assert made.run() == {"job": "node-0"}  # 6, 6 and 5.9


def test_an_order_of_nodes_sees_those_that_fit_and_what_was_prepared_for_them() -> None:
    prepared: list[list[str]] = []
    made = bench(
        lambda ssn: ssn.add_predicate_fn(
            lambda task, job, node: "not this one" if node.name == "node-1" else None
        ),
        lambda ssn: ssn.add_node_pre_order_fn(
            lambda task, nodes: prepared.append([node.name for node in nodes])
        ),
        lambda ssn: ssn.add_node_order_fn(lambda task, node: prepared[-1].index(node.name)),
        nodes=3,
    )
    made.job("job")
    assert made.run() == {"job": "node-2"}
    assert prepared == [["node-0", "node-2"]]


def failing(*_: object) -> Any:
    raise RuntimeError("no idea")


def leaving(*_: object) -> NoReturn:
    sys.exit("a plugin wants to leave")


def test_a_node_order_that_fails_drops_the_node_and_the_fault_is_reported() -> None:
    def order(task: Task, node: Node) -> float:
        return failing() if node.name == "node-0" else 0.0

    made = bench(lambda ssn: ssn.add_node_order_fn(order), nodes=2)
    job = made.job("job")
    assert made.run() == {"job": "node-1"}
    assert made.faults.seen == [("plugin-0", "node_order", "no idea")]
    assert job.tasks[0] not in made.explanations.nodes  # it has a place after all


def test_a_gpu_order_that_fails_drops_the_gpu_and_then_the_node() -> None:
    made = Bench(
        Plugin(
            lambda ssn: ssn.add_gpu_order_fn(
                lambda task, node, gpu: failing() if node.name == "a" else -gpu.index
            )
        ),
        nodes=[gpus("a", 2), gpus("b", 2)],
    )
    job = made.job("job", Task("task", requires_gpu=True))
    assert made.run() == {"task": "b"}
    assert job.tasks[0].gpu is made.cluster.nodes["b"].gpus[0]
    assert [point for _, point, _ in made.faults.seen] == ["gpu_order", "gpu_order"]


FAILING: dict[str, Register] = {
    "predicate": lambda ssn: ssn.add_predicate_fn(failing),
    "pre_predicate": lambda ssn: ssn.add_pre_predicate_fn(failing),
    "is_job_over_capacity": lambda ssn: ssn.add_is_job_over_capacity_fn(failing),
    "is_non_preemptible_job_over_queue_quota": (
        lambda ssn: ssn.add_is_non_preemptible_job_over_queue_quota_fn(failing)
    ),
    "is_task_allocation_on_node_over_capacity": (
        lambda ssn: ssn.add_is_task_allocation_on_node_over_capacity_fn(failing)
    ),
    "subset_nodes": lambda ssn: ssn.add_subset_nodes_fn(failing),
}


@pytest.mark.parametrize("point", FAILING)
def test_a_check_that_fails_refuses(point: str) -> None:
    made = bench(FAILING[point])
    job = made.job("job")
    assert made.run() == {}
    assert made.faults.seen == [("plugin-0", point, "no idea")]
    explanations = made.explanations
    reasons = [*explanations.jobs.values(), *explanations.tasks.values()]
    reasons += explanations.nodes.get(job.tasks[0], {}).values()
    assert reasons == ["plugin-0 failed: RuntimeError: no idea"]


@pytest.mark.parametrize(
    ("register", "what"),
    [
        pytest.param(
            lambda ssn: ssn.add_predicate_fn(lambda *_: True),
            "returned True; it must return why not, in words, or None",
            id="a predicate that says True",
        ),
        pytest.param(
            lambda ssn: ssn.add_predicate_fn(lambda *_: False),
            "returned False; it must return why not, in words, or None",
            id="a predicate that says False",
        ),
        pytest.param(
            lambda ssn: ssn.add_pre_predicate_fn(lambda *_: ["no"]),
            "returned ['no']; it must return why not, in words, or None",
            id="a reason that is no text",
        ),
        pytest.param(
            lambda ssn: ssn.add_is_job_over_capacity_fn(lambda *_: True),
            "returned True; it must return a Verdict, such as ALLOWED",
            id="a capacity check that says True",
        ),
        pytest.param(
            lambda ssn: ssn.add_is_task_allocation_on_node_over_capacity_fn(lambda *_: None),
            "returned None; it must return a Verdict, such as ALLOWED",
            id="a capacity check of a node that forgets to answer",
        ),
        pytest.param(
            lambda ssn: ssn.add_subset_nodes_fn(lambda job, tasks, nodes: nodes),
            "returned Node('node-0'); it must return a sequence of sets, each a sequence of nodes"
            " that it was given",
            id="nodes that are not in sets",
        ),
        pytest.param(
            lambda ssn: ssn.add_subset_nodes_fn(lambda *_: [[room("elsewhere")]]),
            "returned [Node('elsewhere')]; it must return a sequence of sets",
            id="a node that it was not given",
        ),
        pytest.param(
            lambda ssn: ssn.add_node_order_fn(lambda *_: 1j), "TypeError", id="a complex score"
        ),
        pytest.param(
            lambda ssn: [ssn.add_node_order_fn(lambda *_, of=of: of) for of in (inf, -inf)],
            "returned NaN",
            id="infinite scores that leave nothing",
        ),
    ],
)
def test_a_result_of_another_kind_refuses_and_says_so(register: Register, what: str) -> None:
    made = bench(register)
    job = made.job("job")
    assert made.run() == {}
    (reason,) = made.explanations.of(job)
    assert reason.startswith("plugin-0 failed: ")
    assert what in reason
    assert [plugin for plugin, _, _ in made.faults.seen] == ["plugin-0"]


@pytest.mark.parametrize(
    "register",
    [
        pytest.param(lambda ssn: ssn.add_predicate_fn(leaving), id="predicate"),
        pytest.param(lambda ssn: ssn.add_job_order_fn(leaving), id="order"),
        pytest.param(lambda ssn: ssn.add_node_order_fn(leaving), id="score"),
        pytest.param(lambda ssn: ssn.add_is_job_over_capacity_fn(leaving), id="capacity"),
        pytest.param(lambda ssn: ssn.add_subset_nodes_fn(leaving), id="sets of nodes"),
        pytest.param(lambda ssn: ssn.add_event_handler(allocate=leaving), id="handler"),
        pytest.param(lambda ssn: ssn.add_bind_request_mutate_fn(leaving), id="mutate"),
        pytest.param(leaving, id="open"),
    ],
)
def test_a_plugin_that_exits_fails_like_any_other(register: Register) -> None:
    made = bench(register, nodes=2)
    made.job("a")
    made.job("b")
    made.run()
    assert {plugin for plugin, _, _ in made.faults.seen} == {"plugin-0"}


HOOKS: dict[str, Register] = {
    "job_order": lambda ssn: ssn.add_job_order_fn(failing),
    "node_pre_order": lambda ssn: ssn.add_node_pre_order_fn(failing),
    "pre_job_allocation": lambda ssn: ssn.add_pre_job_allocation_fn(failing),
    "allocate": lambda ssn: ssn.add_event_handler(allocate=failing),
    "bind_request_mutate": lambda ssn: ssn.add_bind_request_mutate_fn(failing),
    "on_session_open": failing,
}


@pytest.mark.parametrize("point", HOOKS)
def test_what_cannot_veto_is_passed_over_when_it_fails_and_the_others_run(point: str) -> None:
    seen: list[str] = []
    made = bench(
        HOOKS[point],
        lambda ssn: ssn.add_event_handler(allocate=lambda event: seen.append(event.task.name)),
        nodes=2,
    )
    made.job("a")
    made.job("b")
    assert made.run() == {"a": "node-0", "b": "node-1"}
    assert {fault[:2] for fault in made.faults.seen} == {("plugin-0", point)}
    assert seen == ["a", "b"]


def test_every_capacity_check_is_asked_and_its_reason_kept() -> None:
    made = bench(
        lambda ssn: ssn.add_is_job_over_capacity_fn(lambda job, tasks: ALLOWED),
        lambda ssn: ssn.add_is_job_over_capacity_fn(lambda job, tasks: FULL),
    )
    job = made.job("job")
    assert made.run() == {}
    assert made.explanations.jobs == {job: "the tenant has enough"}


@pytest.mark.parametrize(("priority", "placed"), [(0, False), (-1, True)])
def test_a_quota_is_for_jobs_that_are_not_preemptible(priority: int, placed: bool) -> None:
    made = bench(
        lambda ssn: ssn.add_is_non_preemptible_job_over_queue_quota_fn(lambda job, tasks: FULL)
    )
    made.job("job", priority=priority)
    assert bool(made.run()) is placed


def test_sets_of_nodes_are_refined_in_order_and_the_next_is_tried_when_one_is_full() -> None:
    split: list[list[str]] = []

    def halves(_job: Job, _tasks: object, nodes: Any) -> list[Any]:
        return [nodes[2:], nodes[:2]]

    def singles(_job: Job, _tasks: object, nodes: Any) -> list[Any]:
        split.append([node.name for node in nodes])
        return [[node] for node in nodes]

    made = bench(
        lambda ssn: ssn.add_subset_nodes_fn(halves),
        lambda ssn: ssn.add_subset_nodes_fn(singles),
        nodes=4,
    )
    for name in ("a", "b", "c"):
        made.job(name)
    assert made.run() == {"a": "node-2", "b": "node-3", "c": "node-0"}
    assert split[:2] == [["node-2", "node-3"], ["node-0", "node-1"]]


def test_a_gang_that_fits_no_set_leaves_nothing_behind() -> None:
    made = bench(
        lambda ssn: ssn.add_subset_nodes_fn(lambda job, tasks, nodes: [nodes[:1], nodes[1:]]),
        nodes=3,
    )
    made.job("three", Task("a"), Task("b"), Task("c"), min_available=3)
    made.job("two", Task("d"), Task("e"), min_available=2, created=1)
    assert made.run() == {"d": "node-1", "e": "node-2"}
    assert made.world.commits == 1


def test_later_attributes_win_where_keys_are_the_same() -> None:
    made = bench(
        lambda ssn: ssn.add_bind_request_mutate_fn(lambda task, node: {"a": "1", "b": node}),
        lambda ssn: ssn.add_bind_request_mutate_fn(lambda task, node: None),
        lambda ssn: ssn.add_bind_request_mutate_fn(lambda task, node: {"a": "2"}),
    )
    made.job("job")
    made.run()
    assert made.world.attributes == {"job": {"a": "2", "b": "node-0"}}


@pytest.mark.parametrize(
    ("add", "text"),
    [
        pytest.param(
            lambda ssn: ssn.add_queue_amount_fn("deserved", lambda queue: 1.0),
            "'plugin-1' cannot provide the queues' amount 'deserved', which 'plugin-0' provides",
            id="amount",
        ),
        pytest.param(
            lambda ssn: ssn.add_http_handler("/shares", dict),
            "'plugin-1' cannot provide the path '/shares', which 'plugin-0' provides",
            id="path",
        ),
    ],
)
def test_where_only_one_can_be_the_second_is_refused(add: Register, text: str) -> None:
    made = bench(add, add)
    made.run()
    ((plugin, point, said),) = made.faults.seen
    assert (plugin, point) == ("plugin-1", "on_session_open")
    assert text in said


def test_amounts_of_queues_are_asked_of_their_provider() -> None:
    asked: list[float | None] = []
    made = bench(
        lambda ssn: ssn.add_queue_amount_fn("deserved", lambda queue: len(queue.name)),
        lambda ssn: ssn.add_queue_amount_fn("fair_share", failing),
        lambda ssn: asked.extend(
            ssn.amount(name, ssn.cluster.queues["all"])
            for name in ("deserved", "fair_share", "allocated")
        ),
    )
    made.run()
    assert asked == [3, None, None]
    assert made.faults.seen == [("plugin-1", "fair_share", "no idea")]


NAN = float("nan")


def test_a_score_that_is_no_number_drops_the_node() -> None:
    made = bench(
        lambda ssn: ssn.add_node_order_fn(lambda task, node: NAN if node.name == "node-0" else 0.0),
        nodes=2,
    )
    made.job("job")
    assert made.run() == {"job": "node-1"}
    ((plugin, point, text),) = made.faults.seen
    assert (plugin, point) == ("plugin-0", "node_order")
    assert "it returned NaN" in text


def test_an_order_that_is_no_number_decides_nothing() -> None:
    made = bench(
        lambda ssn: ssn.add_job_order_fn(lambda left, right: NAN),
        lambda ssn: ssn.add_job_order_fn(by_name("b")),
    )
    for name in ("a", "b", "c"):
        made.job(name)
    assert made.run() == {"b": "node-0"}
    assert {fault[:2] for fault in made.faults.seen} == {("plugin-0", "job_order")}


@pytest.mark.parametrize("sets", [[], [[]]], ids=["no set", "an empty set"])
def test_the_plugin_that_left_no_node_to_a_job_is_reported(sets: list[list[Node]]) -> None:
    made = bench(
        lambda ssn: ssn.add_subset_nodes_fn(lambda job, tasks, nodes: [nodes]),
        lambda ssn: ssn.add_subset_nodes_fn(lambda job, tasks, nodes: sets),
    )
    job = made.job("job")
    assert made.run() == {}
    assert made.explanations.of(job) == ["plugin-1 leaves no node to choose from"]


def test_a_job_waits_where_there_are_no_nodes() -> None:
    made = bench(nodes=0)
    job = made.job("job")
    assert made.run() == {}
    assert made.explanations.of(job) == ["there are no nodes"]

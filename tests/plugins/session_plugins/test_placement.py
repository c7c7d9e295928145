"""Session plugins that choose jobs, nodes and GPUs."""

from typing import Any

import pytest
from flow_control.sessions.clusters import Bench, gpus, room

from epp.flow_control.sessions import ArgumentError, Node, PluginSetting, Queue, Registry, Task
from epp_plugins.session_plugins import BUILDERS

SPOT = {"kai.scheduler/instance-type": "spot"}


def bench(plugin: str, arguments: dict[str, Any] | None = None, **said: Any) -> Bench:
    """A cluster with one plugin of those that come along."""
    built = Registry(BUILDERS).build({plugin: PluginSetting(arguments=arguments or {})})
    return Bench(*built, **said)


def test_priority_puts_higher_jobs_first() -> None:
    made = bench("priority", nodes=[room("a", 2)])
    for name, priority in (("low", -1), ("high", 5), ("mid", 1)):
        made.job(name, priority=priority)
    assert [*made.run()] == ["high", "mid"]


@pytest.mark.parametrize(
    ("arguments", "labels"),
    [
        pytest.param({}, {"role": "leader"}, id="by default"),
        pytest.param(
            {"leaderLabel": "kind", "leaderValue": "head"}, {"kind": "head"}, id="another label"
        ),
    ],
)
def test_leader_first(arguments: dict[str, str], labels: dict[str, str]) -> None:
    made = bench("leader-first", arguments, nodes=[room("a", 1)])
    made.job("job", Task("a"), Task("z", labels=labels), Task("b", labels={"role": "worker"}))
    assert made.run() == {"z": "a"}


def test_strict_priority_serves_a_queue_until_it_is_empty() -> None:
    queues = [Queue("low"), Queue("high", priority=3)]
    made = bench("strict-priority", nodes=[room("a", 3)], queues=queues)
    for name in ("l1", "l2"):
        made.job(name, queue="low", priority=100)
    for name in ("h1", "h2"):
        made.job(name, queue="high")
    assert [*made.run()] == ["h1", "h2", "l1"]


@pytest.mark.parametrize(
    ("plugin", "want"),
    [
        # used 1 of 4, 1 of 2, 0 of 4: full ones first, empty ones first
        pytest.param("node-binpack", ["half", "quarter", "quarter"], id="node-binpack"),
        pytest.param("node-spread", ["empty", "empty", "quarter"], id="node-spread"),
    ],
)
def test_filling_of_nodes(plugin: str, want: list[str]) -> None:
    nodes = [
        Node("quarter", capacity=4, used=1),
        Node("half", capacity=2, used=1),
        Node("empty", capacity=4),
    ]
    made = bench(plugin, nodes=nodes)
    for number in range(3):
        made.job(str(number))
    assert [*made.run().values()] == want


@pytest.mark.parametrize(("plugin", "want"), [("node-binpack", "b"), ("node-spread", "a")])
def test_of_a_gpu_task_the_gpus_count(plugin: str, want: str) -> None:
    made = bench(plugin, nodes=[gpus("a", 2), gpus("b", 2, used=0.5)])
    made.job("job", Task("pod", requires_gpu=True, size=0.5))
    assert made.run() == {"pod": want}


def test_node_affinity_refuses_other_nodes() -> None:
    made = bench("node-affinity", nodes=[room("a", 9, zone="x"), room("b", 1, zone="y"), room("c")])
    made.job("y1", Task("y1", labels={"zone": "y"}))
    y2 = made.job("y2", Task("y2", labels={"zone": "y"}))
    made.job("z-any")
    assert made.run() == {"y1": "b", "z-any": "a"}
    assert made.explanations.nodes[y2.tasks[0]] == {
        "a": "node a has no label zone=y",
        "b": "node b has room for 0, the task takes 1",
        "c": "node c has no label zone=y",
    }


def test_node_affinity_may_be_a_wish() -> None:
    arguments = {"nodeLabel": "zone", "taskLabel": "wants", "required": False}
    made = bench("node-affinity", arguments, nodes=[room("a"), room("b", zone="y")])
    for name in ("1", "2"):
        made.job(name, Task(name, labels={"wants": "y"}))
    assert made.run() == {"1": "b", "2": "a"}


@pytest.mark.parametrize(("plugin", "want"), [("gpu-pack", 1), ("gpu-spread", 2)])
def test_filling_of_gpus(plugin: str, want: int) -> None:
    node = gpus("a", 3)
    for gpu, used in zip(node.gpus, (0.25, 0.5, 0.0), strict=True):
        gpu.used = used
    made = bench(plugin, nodes=[node])
    job = made.job("job", Task("pod", requires_gpu=True, size=0.5))
    made.run()
    assert job.tasks[0].gpu is node.gpus[want]


def test_spot_instances_take_preemptible_jobs_only_and_last() -> None:
    nodes = [Node("spot-0", labels=SPOT, capacity=9), room("solid", 2)]
    made = bench("spot-instance-manager", nodes=nodes)
    made.job("critical")
    made.job("sheddable-1", priority=-1)
    made.job("sheddable-2", priority=-1)
    last = made.job("vip", priority=1)
    # In the order of names; no other plugin prefers anybody.
    assert made.run() == {"critical": "solid", "sheddable-1": "solid", "sheddable-2": "spot-0"}
    assert made.explanations.nodes[last.tasks[0]] == {
        "spot-0": "non-preemptible pod vip cannot be scheduled on spot instance spot-0",
        "solid": "node solid has room for 0, the task takes 1",
    }


@pytest.mark.parametrize(
    ("arguments", "labels", "want"),
    [
        pytest.param({}, SPOT, "b", id="1000 more elsewhere"),
        pytest.param({"nonSpotScore": 5}, SPOT, "a", id="less than another plugin gives"),
        pytest.param({"spotLabelKey": "life"}, SPOT, "a", id="another label"),
        pytest.param(
            {"spotLabelKey": "life", "spotLabelValue": "short"}, {"life": "short"}, "b", id="both"
        ),
    ],
)
def test_its_score_is_summed_with_those_of_others(
    arguments: dict[str, Any], labels: dict[str, str], want: str
) -> None:
    settings = {
        "spot-instance-manager": PluginSetting(arguments=arguments),
        "node-binpack": PluginSetting(),  # up to 9 for node a, which is nearly full
    }
    nodes = [Node("a", labels=labels, capacity=10, used=9), room("b", 10)]
    made = Bench(*Registry(BUILDERS).build(settings), nodes=nodes)
    made.job("job", priority=-1)
    assert made.run() == {"job": want}


@pytest.mark.parametrize("plugin", BUILDERS)
def test_an_unknown_argument_is_refused(plugin: str) -> None:
    with pytest.raises(ArgumentError, match=f"'{plugin}': unknown argument 'nonsense'; it takes"):
        bench(plugin, {"nonsense": 1})
    assert bench(plugin).run() == {}


@pytest.mark.parametrize(
    ("plugin", "want"),
    [
        pytest.param("node-spread", ["a", "b", "a"], id="node-spread"),
        pytest.param("node-binpack", ["a", "a", "a"], id="node-binpack"),
    ],
)
def test_filling_of_nodes_without_a_limit(plugin: str, want: list[str]) -> None:
    made = bench(plugin, nodes=[Node("a"), Node("b")])
    for number in range(3):
        made.job(str(number))
    assert [*made.run().values()] == want

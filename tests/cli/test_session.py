"""``epp session run``: a cluster in a file, and the printed result."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from typer.testing import CliRunner

from epp.cli import cli
from epp.flow_control.sessions import Session
from epp.flow_control.sessions.actions import Allocate

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "deploy/sessions").glob("*.yaml"))


def session(tmp_path: Path, text: str, *options: str) -> tuple[int, str, str]:
    """Run a session over a file of this text."""
    path = tmp_path / "cluster.yaml"
    path.write_text(dedent(text))
    done = CliRunner().invoke(cli, ["session", "run", str(path), *options])
    return done.exit_code, done.stdout, done.stderr.replace(str(path), "cluster.yaml")


def outcome(tmp_path: Path, text: str) -> dict[str, Any]:
    code, stdout, stderr = session(tmp_path, text, "--json")
    assert (code, stderr) == (0, "")
    document: dict[str, Any] = json.loads(stdout)
    return document


ONE = """
queues: [{name: all}]
nodes: [{name: a, capacity: 1}]
jobs:
- {name: first, queue: all, tasks: [{name: first-0}]}
- {name: second, queue: all, tasks: [{name: second-0}]}
"""


def test_who_went_where_and_why_not(tmp_path: Path) -> None:
    assert outcome(tmp_path, ONE) == {
        "placed": [{"task": "first-0", "job": "first", "node": "a", "gpu": None, "attributes": {}}],
        "evicted": [],
        "waiting": [
            {
                "job": "second",
                "tasks": ["second-0"],
                "reasons": ["node a has room for 0, the task takes 1"],
            }
        ],
    }
    code, stdout, _ = session(tmp_path, ONE)
    assert code == 0
    assert [line.split() for line in stdout.splitlines()] == [
        ["Placed"],
        ["task", "job", "node", "gpu"],
        ["first-0", "first", "a"],
        ["Waiting"],
        ["job", "tasks", "why"],
        [
            "second",
            "second-0",
            *["node", "a", "has", "room", "for", "0,", "the", "task", "takes", "1"],
        ],
    ]


def test_what_runs_already_counts_and_may_lose_its_place(tmp_path: Path) -> None:
    document = outcome(
        tmp_path,
        """
        queues: [{name: all}]
        nodes: [{name: a, gpus: [{}, {used: 1}]}]
        jobs:
        - name: old
          queue: all
          priority: -1
          tasks: [{name: old-0, requires_gpu: true, node: a, gpu: 0}]
        - {name: vip, queue: all, tasks: [{name: vip-0, requires_gpu: true}]}
        sessions: {actions: [allocate, preempt], plugins: {priority: {}}}
        """,
    )
    assert [(each["task"], each["gpu"]) for each in document["placed"]] == [("vip-0", 0)]
    assert document["evicted"] == [{"task": "old-0", "node": "a", "reason": "preempted by job vip"}]
    assert document["waiting"] == [
        {"job": "old", "tasks": ["old-0"], "reasons": ["preempted by job vip"]}
    ]


PLUGIN = """
from epp.flow_control.sessions import SessionPlugin


class Never(SessionPlugin):
    name = "never"

    def __init__(self, arguments):
        self.node = arguments.get_str("node")

    def on_session_open(self, ssn):
        ssn.add_predicate_fn(lambda t, j, n: f"never {n.name}" if n.name == self.node else None)
"""


def test_a_plugin_in_a_file_beside_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "never.py").write_text(PLUGIN)
    document = outcome(
        tmp_path, ONE + "sessions: {plugins: {'file:never.py:Never': {arguments: {node: a}}}}\n"
    )
    assert document["placed"] == []
    assert [each["reasons"] for each in document["waiting"]] == [["never a"], ["never a"]]


def test_a_plugin_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "never.py").write_text(PLUGIN.replace('f"never', '1 / 0 or f"never'))
    plugins = "sessions: {plugins: {'file:never.py:Never': {arguments: {node: a}}}}\n"
    code, stdout, stderr = session(tmp_path, ONE + plugins, "--json")
    assert code == 1
    assert json.loads(stdout)["placed"] == []
    assert stderr.splitlines() == [
        "plugin never failed in predicate: ZeroDivisionError: division by zero"
    ] * len(json.loads(stdout)["waiting"])


MEDDLING = """
from epp.flow_control.sessions import SessionPlugin, TaskStatus


class Meddles(SessionPlugin):
    name = "meddles"

    def __init__(self, arguments):
        pass

    def on_session_open(self, ssn):
        def check(task, job, node):
            {}

        ssn.add_predicate_fn(check)
"""


@pytest.mark.parametrize(
    ("does", "expected"),
    [
        pytest.param(
            "ssn.add_predicate_fn(check)",
            "RegistrationError: functions are registered in on_configure and on_session_open",
            id="registers itself",
        ),
        pytest.param(
            "task.status = TaskStatus.RUNNING",
            "AttributeError: a task's status is set by statements: ssn.statement().allocate()",
            id="sets a task's status",
        ),
    ],
)
def test_a_predicate_that_meddles_is_named_and_the_session_ends_as_it_should(
    tmp_path: Path, does: str, expected: str
) -> None:
    (tmp_path / "meddles.py").write_text(MEDDLING.format(does))
    plugins = "sessions: {plugins: {'file:meddles.py:Meddles': {}}}\n"
    code, stdout, stderr = session(tmp_path, ONE + plugins, "--json")
    assert code == 1
    assert [each["job"] for each in json.loads(stdout)["waiting"]] == ["first", "second"]
    assert stderr.startswith(f"plugin meddles failed in predicate: {expected}")


COUNTING = """
from epp.flow_control.sessions import SessionPlugin


class Counts(SessionPlugin):
    name = "counts"

    def __init__(self, arguments):
        self.running = set()

    def on_configure(self, dispatcher):
        dispatcher.add_event_handler(allocate=lambda event: self.running.add(event.task.name))
        dispatcher.add_predicate_fn(lambda t, j, n: f"running: {sorted(self.running)}")
"""


def test_handlers_of_on_configure_are_notified_of_what_runs_already(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTING)
    document = outcome(
        tmp_path,
        """
        queues: [{name: all}]
        nodes: [{name: a, capacity: 2}]
        jobs:
        - {name: old, queue: all, tasks: [{name: old-0, node: a}]}
        - {name: new, queue: all, tasks: [{name: new-0}]}
        sessions: {plugins: {'file:counts.py:Counts': {}}}
        """,
    )
    assert [each["reasons"] for each in document["waiting"]] == [["running: ['old-0']"]]


def test_an_action_that_fails_ends_the_command_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_: Allocate, __: Session) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(Allocate, "execute", breaks)
    code, stdout, stderr = session(tmp_path, ONE)
    assert (code, stdout) == (1, "")
    assert stderr == "epp: the session failed: RuntimeError: out of order\n"


def test_jobs_that_were_not_tried_get_the_reason_that_there_is_no_room(tmp_path: Path) -> None:
    document = outcome(tmp_path, ONE + "- {name: third, queue: all, tasks: [{name: third-0}]}\n")
    assert [each["reasons"] for each in document["waiting"]] == [
        ["node a has room for 0, the task takes 1"],
        ["no node has room for any task that waits"],
    ]


def test_a_job_that_no_action_tried_is_reported_as_such(tmp_path: Path) -> None:
    document = outcome(tmp_path, ONE + "sessions: {actions: [reclaim]}\n")
    assert [each["reasons"] for each in document["waiting"]] == [
        ["no action tried it in this session"],
        ["no action tried it in this session"],
    ]


def test_a_class_in_a_file_that_is_no_session_plugin(tmp_path: Path) -> None:
    (tmp_path / "never.py").write_text(PLUGIN.replace("(SessionPlugin)", ""))
    code, stdout, stderr = session(
        tmp_path, ONE + "sessions: {plugins: {'file:never.py:Never': {}}}\n"
    )
    assert (code, stdout) == (2, "")
    assert "class 'Never' is no plugin; inherit from SessionPlugin" in stderr


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_the_samples_place_something_and_explain_the_rest(sample: Path) -> None:
    done = CliRunner().invoke(cli, ["session", "run", str(sample), "--json"])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["placed"]
    assert all(each["reasons"] and all(each["reasons"]) for each in document["waiting"])
    assert f"epp session run deploy/sessions/{sample.name}" in sample.read_text()


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        pytest.param("queues: []", ["1:9: queues: expected a list of length >= 1"], id="no queue"),
        pytest.param(
            "queues: [{name: a, weight: 2}]\nnode: []\n",
            [
                "1:20: queues[0].weight: unknown field `weight`",
                "2:1: node: unknown field `node`; did you mean `nodes`?",
            ],
            id="unknown fields",
        ),
        pytest.param(
            "queues: [{name: a}]\njobs: [{name: j, queue: b, tasks: [{name: t}]}]\n",
            ["2:25: jobs[0].queue: there is no queue `b`; known: `a`"],
            id="unknown queue",
        ),
        pytest.param(
            "queues: [{name: a, parent: b}, {name: b}]\n",
            ["1:28: queues[0].parent: there is no queue `b` before it; queues before it: none"],
            id="a parent that comes later",
        ),
        pytest.param(
            "queues: [{name: a}, {name: b, parent: a}]\n"
            "jobs: [{name: j, queue: a, tasks: [{name: t}]}]\n",
            ["2:8: jobs[0]: job 'j': queue 'a' has queues below it ('b'); put the job into one"],
            id="a job in an inner queue",
        ),
        pytest.param(
            "queues: [{name: a}, {name: a}]\nnodes: [{name: n}, {name: n}]\n",
            [
                "1:28: queues[1].name: there are two queues named 'a'; rename one",
                "2:27: nodes[1].name: there are two nodes named 'n'; rename one",
            ],
            id="names twice",
        ),
        pytest.param(
            "queues: [{name: a}]\njobs:\n- {name: i, queue: a, tasks: [{name: t}]}\n"
            "- {name: j, queue: a, tasks: [{name: t, namespace: other}, {name: t}]}\n",
            ["4:67: jobs[1].tasks[1].name: there are two tasks named 't' in namespace 'default'"],
            id="a task twice",
        ),
        pytest.param(
            "queues: [{name: a, limit: .inf}]\nnodes: [{name: n, capacity: 1e400}]\n",
            [
                "1:27: queues[0].limit: expected a number <= 1000000000000000.0",
                "2:29: nodes[0].capacity: expected a number <= 1000000000000000.0",
            ],
            id="amounts without end",
        ),
        pytest.param(
            "queues: [{name: a}]\n"
            "jobs: [{name: j, queue: a, min_available: 2, tasks: [{name: t}]}]",
            ["2:8: jobs[0]: job 'j': min_available is 2; it must be from 1 to the number of its"],
            id="more needed than there are",
        ),
        pytest.param(
            "queues: [{name: a}]\nnodes: [{name: n, gpus: [{used: 1}]}, {name: m, capacity: 0}]\n"
            "jobs:\n"
            "- {name: i, queue: a, tasks: [{name: t, node: x}]}\n"
            "- {name: j, queue: a, tasks: [{name: u, node: m}]}\n"
            "- {name: k, queue: a, tasks: [{name: v, node: n, requires_gpu: true}]}\n"
            "- {name: l, queue: a, tasks: [{name: w, node: n, requires_gpu: true, gpu: 0}]}\n",
            [
                "4:47: jobs[0].tasks[0].node: there is no node `x`; known: `m`, `n`",
                "5:47: jobs[1].tasks[0].node: node m has room for 0, the task takes 1",
                "6:31: jobs[2].tasks[0]: the task runs on a GPU of node n: `gpu` must say which",
                "7:47: jobs[3].tasks[0].node: GPU 0 of node n has no room for it",
            ],
            id="places that cannot be",
        ),
        pytest.param(
            ONE + "sessions: {plugins: {priorty: {}}}",
            ["there is no session plugin 'priorty'; did you mean 'priority'?"],
            id="unknown plugin",
        ),
        pytest.param(
            ONE + "sessions: {actions: [allocate, alocate]}",
            ["there is no action 'alocate'; did you mean 'allocate'?"],
            id="unknown action",
        ),
        pytest.param(
            ONE + "sessions: {plugins: {spot-instance-manager: {arguments: {nonSpotScore: x}}}}",
            ["session plugin 'spot-instance-manager': argument 'nonSpotScore' is 'x'; it must be"],
            id="bad argument",
        ),
        pytest.param(
            ONE + "sessions: {plugins: {'file:gone.py:Gone': {}}}",
            ["gone.py: cannot read the plugin file"],
            id="no such file",
        ),
        pytest.param("queues: [", ["not valid YAML"], id="no YAML"),
        pytest.param("- 1", ["expected a mapping"], id="a list"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_every_fault(
    tmp_path: Path, text: str, errors: list[str]
) -> None:
    code, stdout, stderr = session(tmp_path, text)
    assert (code, stdout) == (2, "")
    for error in errors:
        assert error in stderr
    assert len(stderr.splitlines()) == len(errors)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["session", "run", str(tmp_path / "none.yaml")])
    assert done.exit_code == 2
    assert f"cannot read the cluster file {tmp_path}/none.yaml: no such file" in done.stderr

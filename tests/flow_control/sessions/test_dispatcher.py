"""The life cycle of sessions, and events between them."""

import gc
import weakref
from collections.abc import Callable, Sequence

import pytest
from flow_control.sessions.clusters import Bench, Plugin, room

from epp.flow_control.sessions import (
    CommitError,
    DefaultPolicy,
    Event,
    ExtensionPoints,
    Node,
    PluginError,
    Queue,
    RegistrationError,
    Session,
    SessionPlugin,
    StatementError,
    Task,
    Verdict,
)
from epp.flow_control.sessions.combined_points import CombinedPoints
from epp.flow_control.sessions.dispatcher import TIMED_SESSIONS


class Diary(SessionPlugin):
    """Records its calls in a list that plugins may share."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def on_session_open(self, ssn: Session) -> None:
        self.notes.append(f"open {self.name}")

    def on_session_close(self, ssn: Session) -> None:
        self.notes.append(f"close {self.name}")


class Raising:
    """An action that leaves a statement open."""

    name = "raising"

    def execute(self, ssn: Session) -> None:
        job = next(iter(ssn.cluster.jobs.values()))
        ssn.statement().allocate(job.tasks[0], ssn.cluster.nodes["a"])
        raise RuntimeError("no more")


def test_plugins_are_opened_in_order_and_closed_in_reverse() -> None:
    notes: list[str] = []
    made = Bench(Diary("x", notes), Diary("y", notes))
    made.run()
    made.run()
    assert notes == ["open x", "open y", "close y", "close x"] * 2


def test_every_call_of_a_plugin_is_timed_at_its_extension_point() -> None:
    calls: list[str] = []

    def timer(plugin: str, point: str) -> Callable[[float], None]:
        def observe(seconds: float) -> None:
            assert seconds >= 0.0
            calls.append(f"{plugin} {point}")

        return observe

    def register(ssn: Session) -> None:
        ssn.add_predicate_fn(lambda task, job, node: None)
        ssn.add_node_order_fn(lambda task, node: 1 / 0 if node.name == "b" else 1.0)

    notes: list[str] = []
    made = Bench(Plugin(register), Diary("diary", notes), nodes=[room("a"), room("b")], timer=timer)
    made.job("job")
    assert made.run() == {"job": "a"}
    assert sorted(calls) == [
        "diary on_session_close",
        "diary on_session_open",
        "test node_order",
        "test node_order",  # a call that fails took time, too
        "test on_session_open",
        "test predicate",
        "test predicate",
    ]
    assert made.faults.seen == [("test", "node_order", "division by zero")]
    in_one = len(calls)
    for number in range(1, TIMED_SESSIONS):
        made.job(f"job {number}")
        made.run()
    opened_and_closed = 3 * (TIMED_SESSIONS - 1)
    assert len(calls) == in_one + opened_and_closed  # of the other sessions nothing more is timed


def test_functions_of_the_configuration_are_timed_in_some_sessions_only() -> None:
    calls: list[str] = []

    class Refusing(SessionPlugin):
        name = "refusing"

        def on_configure(self, dispatcher: ExtensionPoints) -> None:
            dispatcher.add_predicate_fn(lambda task, job, node: None)
            dispatcher.add_event_handler(allocate=lambda event: None)

    made = Bench(
        Refusing(), nodes=[room("a", 100)], timer=lambda _, point: lambda _: calls.append(point)
    )
    made.job("job 0")
    for number in range(1, 2 * TIMED_SESSIONS + 1):
        made.run()
        made.job(f"job {number}")
    assert sorted(calls) == ["allocate", "allocate", "predicate", "predicate"]
    assert len(made.world.bound) == 2 * TIMED_SESSIONS


def test_an_action_that_raises_leaves_nothing_behind() -> None:
    notes: list[str] = []
    made = Bench(Diary("x", notes), Diary("y", notes), nodes=[room("a")])
    job = made.job("job")
    made.dispatcher.actions = (Raising(),)
    with pytest.raises(RuntimeError, match="no more"):
        made.run()
    assert notes == ["open x", "open y", "close y", "close x"]
    assert job.pending() == job.tasks
    assert not made.cluster.nodes["a"].tasks


def test_a_plugin_that_fails_to_open_is_left_out_with_all_it_registered() -> None:
    notes: list[str] = []

    def register(ssn: Session) -> None:
        ssn.add_predicate_fn(lambda task, job, node: "never")
        ssn.add_http_handler("page", dict)
        raise KeyError("missing")

    made = Bench(Plugin(register, "bad"), Diary("x", notes), nodes=[room("a")])
    made.job("job")
    assert made.run() == {"job": "a"}
    assert made.faults.seen == [("bad", "on_session_open", "'missing'")]
    assert not made.dispatcher.points.http_handlers
    assert notes == ["open x", "close x"]


def test_a_plugin_that_fails_to_close_does_not_keep_the_others_from_it() -> None:
    class Bad(Diary):
        def on_session_close(self, ssn: Session) -> None:
            raise KeyError("lost")

    notes: list[str] = []
    made = Bench(Diary("x", notes), Bad("y", notes))
    made.run()
    assert notes == ["open x", "open y", "close x"]
    assert made.faults.seen == [("y", "on_session_close", "'lost'")]


def test_what_was_registered_in_a_session_is_gone_in_the_next() -> None:
    opened: list[int] = []

    def once(ssn: Session) -> None:
        if not opened:
            ssn.add_predicate_fn(lambda task, job, node: "only once")
            ssn.add_queue_amount_fn("deserved", lambda queue: 1.0)
            ssn.add_event_handler(allocate=lambda event: opened.append(99))
        opened.append(len(ssn.predicates) + len(ssn.amounts) + len(ssn.on_allocate))

    made = Bench(Plugin(once), nodes=[room("a")])
    made.job("job")
    assert made.run() == {}
    assert made.run() == {"job": "a"}
    assert opened == [3, 0]


def test_a_page_stays_until_the_next_session_opens() -> None:
    answers = iter([{"run": 1}, {"run": 2}])

    def register(ssn: Session) -> None:
        said = next(answers)
        ssn.add_http_handler("/shares/", lambda: said)

    made = Bench(Plugin(register))
    for run in (1, 2):
        made.run()
        assert made.dispatcher.points.http_handlers["shares"].function() == {"run": run}


class Accounts(SessionPlugin):
    """Counts placed tasks, registered once."""

    name = "accounts"

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.events: list[str] = []

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_event_handler(allocate=self._add, deallocate=self._remove)

    def _add(self, event: Event) -> None:
        self.held[event.node.name] = self.held.get(event.node.name, 0) + 1
        self.events.append(f"+{event.task.name}")

    def _remove(self, event: Event) -> None:
        self.held[event.node.name] -= 1
        self.events.append(f"-{event.task.name}")


def test_handlers_of_the_configuration_also_hear_of_what_happens_between_sessions() -> None:
    accounts = Accounts()
    made = Bench(accounts, nodes=[room("a"), room("b")])
    job = made.job("job")
    made.run()
    made.dispatcher.move(job.tasks[0], made.cluster.nodes["b"])
    assert accounts.held == {"a": 0, "b": 1}
    made.dispatcher.end(job.tasks[0])
    made.cluster.remove_job(job)
    assert accounts.held == {"a": 0, "b": 0}
    other = made.job("other")
    made.dispatcher.start(other.tasks[0], made.cluster.nodes["a"])
    assert accounts.events == ["+job", "-job", "+job", "-job", "+other"]
    assert made.run() == {"job": "a"}  # nothing is left to place; the world was told of job alone


def test_a_session_sees_what_is_in_flight() -> None:
    seen: list[list[Task]] = []
    made = Bench(
        Plugin(lambda ssn: seen.append([*ssn.cluster.nodes["a"].tasks])), nodes=[room("a", 2)]
    )
    first = made.job("first")
    made.dispatcher.start(first.tasks[0], made.cluster.nodes["a"])
    made.run()
    assert seen == [first.tasks]


def test_a_world_that_refuses_leaves_all_as_it_was_and_says_why() -> None:
    accounts = Accounts()
    made = Bench(accounts, nodes=[room("a"), room("b")])
    job = made.job("gang", Task("x"), Task("y"), min_available=2)
    made.world.refuses = lambda: True
    assert made.run() == {}
    assert accounts.held == {"a": 0, "b": 0}
    assert job.pending() == job.tasks
    assert made.explanations.jobs == {job: "nothing of the statement was done: nobody answers"}
    made.world.refuses = lambda: False
    assert made.run() == {"x": "a", "y": "b"}


def in_session(made: Bench) -> Session:
    """Return the session of a bench, for operations of actions."""
    session = made.dispatcher.points
    assert isinstance(session, Session)
    return session


def test_a_statement_ends_once() -> None:
    made = Bench(nodes=[room("a")])
    task = made.job("job").tasks[0]
    statement = in_session(made).statement()
    statement.allocate(task, made.cluster.nodes["a"])
    statement.commit()
    for again in (statement.commit, statement.discard, lambda: statement.evict(task, "why")):
        with pytest.raises(StatementError, match="begin another one"):
            again()
    assert task.node is made.cluster.nodes["a"]


def test_operations_that_make_no_sense_are_refused_and_change_nothing() -> None:
    made = Bench(nodes=[room("a", 2)])
    task = made.job("job").tasks[0]
    node = made.cluster.nodes["a"]
    statement = in_session(made).statement()
    with pytest.raises(StatementError, match="cannot be evicted: it is not running"):
        statement.evict(task, "why")
    statement.allocate(task, node)
    with pytest.raises(StatementError, match="cannot be allocated: it is not pending"):
        statement.allocate(task, node)
    for checkpoint in (-1, 2):
        with pytest.raises(StatementError, match=f"there is no checkpoint {checkpoint}"):
            statement.rollback(checkpoint)
    assert node.used == 1
    statement.discard()
    assert (node.used, task.node) == (0, None)


def test_a_commit_that_fails_says_so_to_an_action() -> None:
    made = Bench(nodes=[room("a")])
    statement = in_session(made).statement()
    statement.allocate(made.job("job").tasks[0], made.cluster.nodes["a"])
    made.world.refuses = lambda: True
    with pytest.raises(CommitError, match="nobody answers"):
        statement.commit()
    assert not made.cluster.nodes["a"].tasks


def test_what_a_plugin_cannot_have_in_every_session_is_an_error_of_the_configuration() -> None:
    class Pages(SessionPlugin):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_configure(self, dispatcher: ExtensionPoints) -> None:
            dispatcher.add_http_handler("page", dict)

    with pytest.raises(RegistrationError, match="'y' cannot provide the path 'page', which 'x'"):
        Bench(Pages("x"), Pages("y"))


def test_a_session_cannot_begin_inside_another() -> None:
    def begin(_event: Event) -> None:
        made.dispatcher.run()

    made = Bench(Plugin(lambda ssn: ssn.add_event_handler(allocate=begin)), nodes=[room("a")])
    made.job("job")
    assert made.run() == {"job": "a"}
    assert made.faults.seen == [
        ("test", "allocate", "a session runs already; begin the next one when it has ended")
    ]
    made.run()  # and now there is none


def test_a_task_that_ends_while_others_are_notified_of_it_has_ended() -> None:
    accounts = Accounts()
    made = Bench(accounts, nodes=[room("a", 9)])
    job = made.job("job")

    def ends() -> bool:
        made.dispatcher.end(job.tasks[0])
        return False

    made.world.refuses = ends
    made.run()
    assert job.pending() == job.tasks
    assert accounts.held == {"a": 0}
    assert made.cluster.nodes["a"].used == 0


@pytest.mark.parametrize(
    ("again", "text"),
    [
        pytest.param(
            lambda made, task: made.dispatcher.start(task, made.cluster.nodes["b"]),
            "cannot start: it is not pending",
            id="it runs already",
        ),
        pytest.param(
            lambda made, task: (made.dispatcher.end(task), made.dispatcher.end(task)),
            "cannot end: it is not running",
            id="it has ended already",
        ),
    ],
)
def test_what_cannot_be_between_sessions_is_refused_and_reported_to_nobody(
    again: Callable[[Bench, Task], object], text: str
) -> None:
    accounts = Accounts()
    made = Bench(accounts, nodes=[room("a"), room("b")])
    task = made.job("job").tasks[0]
    made.dispatcher.start(task, made.cluster.nodes["a"])
    with pytest.raises(ValueError, match=text):
        again(made, task)
    assert sum(accounts.held.values()) == len(made.cluster.nodes["a"].tasks)
    assert made.cluster.nodes["b"].used == 0


def test_a_task_that_only_an_open_statement_has_placed_cannot_end() -> None:
    made = Bench(nodes=[room("a")])
    task = made.job("job").tasks[0]
    statement = in_session(made).statement()
    statement.allocate(task, made.cluster.nodes["a"])
    with pytest.raises(ValueError, match="cannot end: it is not running"):
        made.dispatcher.end(task)
    statement.discard()
    assert task.node is None


def test_a_statement_that_cannot_be_undone_does_not_keep_plugins_from_closing() -> None:
    class Vandal(Raising):
        def execute(self, ssn: Session) -> None:
            (task,) = next(iter(ssn.cluster.jobs.values())).tasks
            ssn.statement().allocate(task, ssn.cluster.nodes["a"])
            ssn.cluster.nodes["a"].remove(task)

    notes: list[str] = []
    made = Bench(
        Diary("x", notes),
        Plugin(lambda ssn: ssn.add_predicate_fn(lambda task, job, node: "once")),
        nodes=[room("a")],
    )
    made.job("job")
    made.dispatcher.actions = (Vandal(),)
    with pytest.raises(StatementError, match="has no node"):
        made.run()
    assert notes == ["open x", "close x"]
    assert made.dispatcher.points.predicates == []


def test_two_plugins_of_one_name_are_refused() -> None:
    with pytest.raises(PluginError, match="there are two session plugins named 'x'; rename one"):
        Bench(Diary("x", []), Diary("x", []))


def test_a_plugin_that_cannot_configure_itself_is_named() -> None:
    class Bad(Diary):
        def on_configure(self, dispatcher: ExtensionPoints) -> None:
            raise KeyError("weight")

    with pytest.raises(PluginError) as caught:
        Bench(Bad("bad", []))
    assert str(caught.value) == "session plugin 'bad' failed in on_configure: KeyError: 'weight'"


def test_queues_and_nodes_come_and_go() -> None:
    band = Queue("band")
    tenant = Queue("tenant", parent=band)
    made = Bench(nodes=[room("a"), room("b")], queues=[band, tenant])
    job = made.job("job", queue="tenant")
    made.cluster.remove_node(made.cluster.nodes["a"])
    assert made.run() == {"job": "b"}
    with pytest.raises(ValueError, match=r"'band' has queues below it \('tenant'\)"):
        made.cluster.remove_queue(band)
    version = made.cluster.version
    made.cluster.remove_job(job)
    made.cluster.remove_queue(tenant)
    made.cluster.remove_queue(band)
    assert made.cluster.version == version + 3
    assert not made.cluster.queues
    made.cluster.add_queue(Queue("tenant"))


class Closing(SessionPlugin):
    """Overrides ``on_session_close`` only."""

    name = "closing"

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def on_session_close(self, ssn: Session) -> None:
        self.notes.append("close closing")


def test_a_plugin_that_only_closes_is_closed_in_its_turn() -> None:
    notes: list[str] = []
    made = Bench(Diary("x", notes), Closing(notes), Diary("y", notes))
    made.run()
    assert notes == ["open x", "open y", "close y", "close closing", "close x"]


def test_a_plugin_that_only_configures_itself_is_not_opened() -> None:
    accounts = Accounts()
    made = Bench(accounts, nodes=[room("a")])
    made.job("job")
    opened: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionPlugin, "on_session_open", lambda *_: opened.append("open"))
        patch.setattr(SessionPlugin, "on_session_close", lambda *_: opened.append("close"))
        assert made.run() == {"job": "a"}
    assert (accounts.held, opened) == ({"a": 1}, [])


class Served(SessionPlugin):
    """Registers only a page."""

    name = "served"

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_http_handler("page", dict)


def opened_by_its_object() -> SessionPlugin:
    plugin = Served()
    plugin.on_session_open = lambda ssn: None  # type: ignore[method-assign]
    return plugin


@pytest.mark.parametrize(
    ("plugin", "needs_session", "has_functions"),
    [
        pytest.param(None, False, False, id="no plugin"),
        pytest.param(Served(), False, False, id="a plugin with a page only"),
        pytest.param(Accounts(), False, True, id="handlers registered once"),
        pytest.param(Plugin(lambda ssn: None), True, False, id="a plugin that is opened"),
        pytest.param(Closing([]), True, False, id="a plugin that is closed"),
        pytest.param(opened_by_its_object(), True, False, id="opened by an attribute"),
    ],
)
def test_a_dispatcher_knows_whether_plugins_need_a_session_or_have_functions_without_one(
    plugin: SessionPlugin | None, needs_session: bool, has_functions: bool
) -> None:
    made = Bench(*([] if plugin is None else [plugin]), nodes=[room("a")])
    made.job("job")
    for _ in range(2):  # before a session and after one
        assert made.dispatcher.needs_session is needs_session
        assert made.dispatcher.has_functions is has_functions
        made.run()


def test_a_session_runs_the_actions_it_is_given() -> None:
    made = Bench(nodes=[room("a")])
    made.job("job")
    assert made.dispatcher.run(()).unreached == "no action tried it in this session"
    assert made.world.bound == {}
    with pytest.raises(RuntimeError, match="no more"):
        made.dispatcher.run([Raising()])
    assert made.run() == {"job": "a"}  # the actions of the dispatcher, as before


def test_a_policy_of_its_own_decides_where_a_task_goes() -> None:
    class Last(DefaultPolicy):
        def best_node(self, ssn: CombinedPoints, task: Task, nodes: Sequence[Node]) -> Node | None:
            fitting = ssn.fitting(task, nodes)
            return fitting[-1] if fitting else None

    made = Bench(policy=Last(), nodes=[room("a"), room("b"), room("c", 0)])
    made.job("job")
    assert made.run() == {"job": "b"}


class Labels(dict[str, str]):
    """Labels that support weak references, which tasks do not."""


def test_nothing_keeps_a_job_that_is_forgotten() -> None:
    """All kinds of reasons exist: of a job, a node, an eviction and a victim."""

    def register(ssn: Session) -> None:
        ssn.add_predicate_fn(lambda task, job, node: "not here" if job.priority else None)
        ssn.add_pre_predicate_fn(lambda task, job: "not now" if "late" in job.name else None)
        ssn.add_is_job_over_capacity_fn(
            lambda job, tasks: Verdict(allowed="much" not in job.name, reason="too much")
        )
        ssn.add_can_reclaim_resources_fn(lambda job: "picky" not in job.name)
        ssn.add_reclaimable_fn(lambda job, victim: "spare it")

    made = Bench(
        Plugin(register),
        nodes=[room("a", 9)],
        queues=[Queue("here"), Queue("there")],
        actions=("allocate", "reclaim"),
    )
    runs = made.job("runs", queue="there", preemptible=True)
    made.dispatcher.start(runs.tasks[0], made.cluster.nodes["a"])

    def wait(name: str) -> weakref.ref[Labels]:
        labels = Labels()
        made.job(name, Task(name, labels=labels), queue="here", priority=1)
        return weakref.ref(labels)

    waiting = [wait(name) for name in ("node", "late", "much", "picky")]
    made.run()
    explanations = made.explanations
    assert all(
        (
            explanations.jobs,
            explanations.tasks,
            explanations.nodes,
            explanations.evictions,
            explanations.victims,
        )
    )
    for name in ("node", "late", "much", "picky"):
        made.dispatcher.forget(made.cluster.jobs[name])
        made.cluster.remove_job(made.cluster.jobs[name])
    gc.collect()
    assert [each() for each in waiting] == [None] * 4
    assert not any(
        (
            explanations.jobs,
            explanations.tasks,
            explanations.nodes,
            explanations.evictions,
            explanations.victims,
        )
    )

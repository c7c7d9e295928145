"""Runs sessions: opens one on the live cluster, executes the actions and closes it."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from epp.flow_control.sessions.actions import Action
from epp.flow_control.sessions.cluster import Cluster
from epp.flow_control.sessions.combined_points import DefaultPolicy, Fault
from epp.flow_control.sessions.contracts import PLUGIN_FAULTS, Binder
from epp.flow_control.sessions.explanations import Explanations
from epp.flow_control.sessions.model import Gpu, Job, Node, Task, TaskStatus
from epp.flow_control.sessions.plugin import PluginError, SessionPlugin
from epp.flow_control.sessions.points import (
    ExtensionPoints,
    RegistrationError,
    Timer,
    no_timer,
    timed,
)
from epp.flow_control.sessions.session import Session

TIMED_SESSIONS: Final = 8
"""Calls of plugins are timed in one session out of this many. Timing adds 0.3 us to a call of 1 us,
so sessions with plugins would take a fifth longer if all were timed."""


class _Member(NamedTuple):
    """A plugin that overrides a method called per session, and these methods."""

    plugin: SessionPlugin
    opens: Callable[[Session], None] | None
    closes: Callable[[Session], None] | None


class Dispatcher:
    """The plugins and actions of one configuration, and the cluster that they work on.

    One session runs at a time. Between sessions, event handlers registered in ``on_configure`` are
    called for tasks that start, end or move.
    """

    def __init__(
        self,
        cluster: Cluster,
        binder: Binder,
        *,
        plugins: Sequence[SessionPlugin],
        actions: Sequence[Action],
        fault: Fault,
        policy: DefaultPolicy | None = None,
        timer: Timer = no_timer,
    ) -> None:
        """Configure the plugins.

        Args:
            cluster: The live cluster.
            binder: Carries out commits.
            plugins: In the order in which ``on_session_open`` is called.
            actions: In the order in which they are executed.
            fault: Receives each exception of a plugin.
            policy: Chooses nodes and breaks ties; KAI-Scheduler's by default.
            timer: Returns callbacks for the durations of plugin calls: of the calls per session,
                and of all calls in one session out of :data:`TIMED_SESSIONS`.

        Raises:
            PluginError: Two plugins have the same name, or one fails to configure itself.
            RegistrationError: Two plugins register a function that only one may provide.
        """
        self.cluster = cluster
        self.plugins = tuple(plugins)
        self.actions = tuple(actions)
        self._fault = fault
        self._session = Session(cluster, binder, fault, policy or DefaultPolicy(), timer)
        self._is_running = False
        self._sessions = 0
        names: set[str] = set()
        for plugin in self.plugins:
            if plugin.name in names:
                raise PluginError(
                    f"there are two session plugins named {plugin.name!r}; rename one"
                )
            names.add(plugin.name)
            self._session.registering = plugin.name
            try:
                plugin.on_configure(self._session)
            except RegistrationError:
                raise
            except PLUGIN_FAULTS as error:
                raise PluginError(
                    f"session plugin {plugin.name!r} failed in on_configure:"
                    f" {type(error).__name__}: {error}"
                ) from error
        self._session.registering = None
        self._configured = self._session.mark()
        self.has_functions = self._configured[0] > 0
        """Whether a plugin registered functions other than pages in ``on_configure``."""
        members = (
            _Member(
                plugin,
                _method(plugin, "on_session_open", timer),
                _method(plugin, "on_session_close", timer),
            )
            for plugin in self.plugins
        )
        self._members = tuple(
            each for each in members if each.opens is not None or each.closes is not None
        )

    def rebind(self, binder: Binder, fault: Fault, policy: DefaultPolicy) -> None:
        """Use another binder, fault handler and policy; plugins keep their registrations."""
        self._fault = self._session.fault = fault
        self._session.binder = binder
        self._session.policy = policy

    @property
    def needs_session(self) -> bool:
        """Whether a plugin overrides a method that is called per session."""
        return bool(self._members)

    @property
    def points(self) -> ExtensionPoints:
        """The registered functions; between sessions, those that apply to all sessions."""
        return self._session

    def run(self, actions: Sequence[Action] | None = None) -> Explanations:
        """Run one session; return why jobs were not placed.

        If an action raises an exception, open statements are discarded and plugins are closed (in
        reverse order) as usual, and the exception is raised again.

        Args:
            actions: The actions of this session; by default those of the dispatcher.

        Raises:
            RuntimeError: Another session is running.
        """
        if self._is_running:
            raise RuntimeError("a session runs already; begin the next one when it has ended")
        self._is_running = True
        try:
            return self._run(self.actions if actions is None else actions)
        finally:
            self._is_running = False

    def _run(self, actions: Sequence[Action]) -> Explanations:
        session = self._session
        session.forget_pages(self._configured)
        self._sessions += 1
        session.time_calls(is_on=self._sessions % TIMED_SESSIONS == 1)
        session.begin()
        opened: list[_Member] = []
        try:
            for member in self._members:
                self._open(member, opened)
            for action in actions:
                action.execute(session)
        finally:
            try:
                session.discard_open()
            finally:
                self._close(opened)
        return session.explanations

    def _open(self, member: _Member, opened: list[_Member]) -> None:
        session = self._session
        mark = session.mark()
        session.registering = member.plugin.name
        try:
            if member.opens is not None:
                member.opens(session)
        except PLUGIN_FAULTS as error:
            self._fault(member.plugin.name, "on_session_open", error)
            session.forget_functions(mark)
            session.forget_pages(mark)
        else:
            opened.append(member)
        finally:
            session.registering = None

    def _close(self, opened: Sequence[_Member]) -> None:
        session = self._session
        for member in reversed(opened):
            session.registering = member.plugin.name
            try:
                if member.closes is not None:
                    member.closes(session)
            except PLUGIN_FAULTS as error:
                self._fault(member.plugin.name, "on_session_close", error)
        session.registering = None
        session.forget_functions(self._configured)

    def replay(self) -> None:
        """Call the allocation handlers for all tasks that run already."""
        for job in self.cluster.jobs.values():
            for task in job.tasks:
                if task.node is not None:
                    self._session.allocated(task, task.node, task.gpu)

    def start(self, task: Task, node: Node, gpu: Gpu | None = None) -> None:
        """Start a pending task without a session.

        Raises:
            ValueError: It is not pending.
        """
        if task.status is not TaskStatus.PENDING:
            raise ValueError(f"{task!r} cannot start: it is not pending")
        node.add(task, gpu)
        task.note_status(TaskStatus.RUNNING)
        self.cluster.version += 1
        self._session.allocated(task, node, gpu)

    def end(self, task: Task) -> None:
        """End a running task; it is pending again.

        Raises:
            ValueError: It is not running, or its statement is not committed yet.
        """
        node, gpu = task.node, task.gpu
        if node is None or task.status is not TaskStatus.RUNNING:
            raise ValueError(f"{task!r} cannot end: it is not running")
        node.remove(task)
        task.note_status(TaskStatus.PENDING)
        self.cluster.version += 1
        self._session.deallocated(task, node, gpu)

    def move(self, task: Task, node: Node, gpu: Gpu | None = None) -> None:
        """Move a running task to another place."""
        self.end(task)
        self.start(task, node, gpu)

    def forget(self, job: Job) -> None:
        """Drop the explanations of a job, which otherwise live until the next session."""
        self._session.explanations.forget(job)


def _method(plugin: SessionPlugin, name: str, timer: Timer) -> Callable[[Session], None] | None:
    """Return a method of a plugin, timed; None if the plugin does not override it."""
    method: Callable[[Session], None] = getattr(plugin, name)
    if getattr(method, "__func__", None) is getattr(SessionPlugin, name):
        return None
    return timed(method, timer(plugin.name, name))

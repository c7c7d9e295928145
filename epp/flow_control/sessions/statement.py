"""Changes of a session that are committed together, or not at all."""

from abc import abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from epp.flow_control.sessions.cluster import Cluster
from epp.flow_control.sessions.contracts import Binder, Binding, Eviction
from epp.flow_control.sessions.model import Gpu, Node, Task, TaskStatus


class StatementSession(Protocol):
    """The part of a session that its statements use."""

    cluster: Cluster
    binder: Binder

    def allocated(self, task: Task, node: Node, gpu: Gpu | None) -> None:
        """Call the event handlers for a task that was placed."""

    def deallocated(self, task: Task, node: Node, gpu: Gpu | None) -> None:
        """Call the event handlers for a task that was removed from its place."""

    @abstractmethod
    def attributes_of(self, task: Task) -> Mapping[str, str]:
        """Return the attributes that plugins send with ``task``."""


class StatementError(RuntimeError):
    """An operation is not possible in this state; a bug of an action."""


class CommitError(Exception):
    """The binder refused a commit; everything is undone."""


class _Kind(StrEnum):
    ALLOCATE = "allocate"
    EVICT = "evict"


class _Operation(NamedTuple):
    kind: _Kind
    task: Task
    node: Node
    gpu: Gpu | None
    reason: str = ""


class Statement:
    """Allocations and evictions of one session, with undo.

    Each operation takes effect in the queues, jobs and nodes of the session immediately, and the
    event handlers are called; undoing it calls the opposite handlers. Only :meth:`commit` reaches
    the binder.
    """

    __slots__ = ("_is_open", "_operations", "_session")

    def __init__(self, session: StatementSession) -> None:
        self._session = session
        self._operations: list[_Operation] = []
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether it is neither committed nor discarded."""
        return self._is_open

    def allocate(self, task: Task, node: Node, gpu: Gpu | None = None) -> None:
        """Place a pending task.

        Raises:
            StatementError: The task is not pending, or the statement has ended.
        """
        self._check(task, TaskStatus.PENDING, "allocated")
        self._place(task, node, gpu, TaskStatus.ALLOCATED)
        self._operations.append(_Operation(_Kind.ALLOCATE, task, node, gpu))

    def evict(self, task: Task, reason: str) -> None:
        """Evict a running task.

        Raises:
            StatementError: The task is not running, or the statement has ended.
        """
        self._check(task, TaskStatus.RUNNING, "evicted")
        node, gpu = task.node, task.gpu
        if node is None:
            raise StatementError(f"{task!r} cannot be evicted: it has no node")
        self._displace(task, TaskStatus.RELEASING)
        self._operations.append(_Operation(_Kind.EVICT, task, node, gpu, reason))

    def checkpoint(self) -> int:
        """Return a checkpoint for :meth:`rollback`."""
        return len(self._operations)

    def rollback(self, checkpoint: int) -> None:
        """Undo the operations since ``checkpoint``, the last one first.

        Raises:
            StatementError: There is no such checkpoint, or the statement has ended.
        """
        self._check_open()
        if not 0 <= checkpoint <= len(self._operations):
            raise StatementError(
                f"there is no checkpoint {checkpoint}: {len(self._operations)} operations were done"
            )
        while len(self._operations) > checkpoint:
            self._undo(self._operations.pop())

    def discard(self) -> None:
        """Undo everything and end the statement."""
        self.rollback(0)
        self._is_open = False

    def commit(self) -> None:
        """Pass everything to the binder and end the statement.

        Raises:
            CommitError: The binder refused it; everything is undone.
        """
        self._check_open()
        evictions: list[Eviction] = []
        bindings: list[Binding] = []
        for kind, task, node, gpu, reason in self._operations:
            if kind is _Kind.ALLOCATE:
                bindings.append(Binding(task, node, gpu, self._session.attributes_of(task)))
            else:
                evictions.append(Eviction(task, node, reason))
        # Before the binder is called, because a task may end during the call.
        for kind, task, *_ in self._operations:
            task.note_status(TaskStatus.RUNNING if kind is _Kind.ALLOCATE else TaskStatus.PENDING)
        try:
            self._session.binder.commit(evictions, bindings)
        except Exception as error:
            self.discard()
            raise CommitError(f"nothing of the statement was done: {error}") from error
        self._is_open = False
        self._operations = []

    def _undo(self, operation: _Operation) -> None:
        if operation.kind is _Kind.ALLOCATE:
            self._displace(operation.task, TaskStatus.PENDING)
        else:
            self._place(operation.task, operation.node, operation.gpu, TaskStatus.RUNNING)

    def _place(self, task: Task, node: Node, gpu: Gpu | None, status: TaskStatus) -> None:
        node.add(task, gpu)
        task.note_status(status)
        self._session.cluster.version += 1
        self._session.allocated(task, node, gpu)

    def _displace(self, task: Task, status: TaskStatus) -> None:
        node, gpu = task.node, task.gpu
        if node is None:
            raise StatementError(f"{task!r} has no node")
        node.remove(task)
        task.note_status(status)
        self._session.cluster.version += 1
        self._session.deallocated(task, node, gpu)

    def _check(self, task: Task, status: TaskStatus, done: str) -> None:
        self._check_open()
        if task.status is not status:
            raise StatementError(f"{task!r} cannot be {done}: it is not {status.value}")

    def _check_open(self) -> None:
        if not self._is_open:
            raise StatementError("the statement was committed or discarded; begin another one")

"""The objects of sessions: queues, jobs, tasks, nodes and their GPUs.

In a GPU cluster they have their usual meaning. In a request dispatcher a queue is a tenant, a job
one request or a group of requests, a task a request, a node an endpoint, and a GPU one of its
data-parallel ranks. Sessions work on the live objects, without copies, and change them through a
:class:`~epp.flow_control.sessions.statement.Statement`.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf


class TaskStatus(StrEnum):
    """The state of a task."""

    PENDING = "pending"
    ALLOCATED = "allocated"
    """It was given a place by a statement that is not committed yet."""
    RUNNING = "running"
    RELEASING = "releasing"
    """It was evicted by a statement that is not committed yet; its place counts as free."""


class Queue:
    """A tenant, or a group of tenants, that shares the nodes; only leaves of the tree have jobs."""

    __slots__ = ("children", "created", "deserved", "limit", "name", "over_quota_weight", "parent",
                 "priority")  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        parent: "Queue | None" = None,
        priority: int = 0,
        deserved: float | None = None,
        limit: float | None = None,
        over_quota_weight: float = 1.0,
        created: float = 0.0,
    ) -> None:
        """Create a queue, and add it to the children of ``parent``.

        Args:
            name: Unique among the queues.
            parent: The queue whose share is divided among its children.
            priority: Queues of a higher priority get the capacity beyond ``deserved`` first.
            deserved: The quota, in units of :attr:`Task.size`; None for none.
            limit: The most that the queue may have; None for no limit.
            over_quota_weight: Weight in the division of the capacity beyond all quotas.
            created: Breaks ties: older queues are first.
        """
        self.name = name
        self.parent = parent
        self.priority = priority
        self.deserved = deserved
        self.limit = limit
        self.over_quota_weight = over_quota_weight
        self.created = created
        self.children: dict[Queue, None] = {}
        if parent is not None:
            parent.children[self] = None

    @property
    def tenant(self) -> str:
        """The tenant that the queue belongs to; ``preempt`` evicts within a tenant."""
        return self.name

    def path(self) -> Iterator["Queue"]:
        """Yield the queue and its ancestors, from the bottom up."""
        queue: Queue | None = self
        while queue is not None:
            yield queue
            queue = queue.parent

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"


class Task:
    """The unit that runs in one place: on a node, or on one of its GPUs."""

    __slots__ = ("_status", "created", "gpu", "job", "labels", "name", "namespace", "node",
                 "requires_gpu", "size")  # fmt: skip

    job: "Job"

    def __init__(
        self,
        name: str,
        *,
        namespace: str = "default",
        requires_gpu: bool = False,
        size: float = 1.0,
        labels: Mapping[str, str] | None = None,
        created: float = 0.0,
    ) -> None:
        """Create a pending task.

        Args:
            name: Unique within its namespace.
            namespace: The namespace.
            requires_gpu: Whether it needs a GPU of its node.
            size: The capacity it takes of its node and of its queue's share.
            labels: Labels for plugins.
            created: Breaks ties: older tasks are first.
        """
        self.name = name
        self.namespace = namespace
        self.requires_gpu = requires_gpu
        self.size = size
        self.labels: Mapping[str, str] = labels or {}
        self.created = created
        self._status = TaskStatus.PENDING
        self.node: Node | None = None
        self.gpu: Gpu | None = None

    @property
    def status(self) -> TaskStatus:
        """The state; statements and the dispatcher change it."""
        return self._status

    @status.setter
    def status(self, status: TaskStatus) -> None:
        # A plugin that set it would break the session in a distant place.
        raise AttributeError(
            "a task's status is set by statements: ssn.statement().allocate() and evict(), then"
            " commit()"
        )

    def note_status(self, status: TaskStatus) -> None:
        """Set the state; for statements and the dispatcher."""
        self._status = status

    @property
    def uid(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    def __repr__(self) -> str:
        return f"Task({self.namespace}/{self.name} {self._status.value})"


class Job:
    """A group of tasks, of which at least ``min_available`` run, or none."""

    __slots__ = ("created", "min_available", "name", "preemptible", "priority", "queue", "tasks")

    def __init__(
        self,
        name: str,
        *,
        queue: Queue,
        tasks: Sequence[Task],
        priority: int = 0,
        min_available: int = 1,
        preemptible: bool | None = None,
        created: float = 0.0,
    ) -> None:
        """Create a job of ``tasks``.

        Args:
            name: Unique among the jobs.
            queue: The queue; it must have no children.
            tasks: At least ``min_available`` of them.
            priority: Jobs of a higher priority are first, if a plugin orders by it.
            min_available: The number of tasks that are placed together, or not at all.
            preemptible: Whether it can be evicted; None means: if its priority is negative.
            created: Breaks ties: older jobs are first.
        """
        self.name = name
        self.queue = queue
        self.tasks = list(tasks)
        self.priority = priority
        self.min_available = min_available
        self.preemptible = preemptible
        self.created = created
        for task in self.tasks:
            task.job = self

    def is_preemptible(self) -> bool:
        """Return whether it can be evicted."""
        return self.priority < 0 if self.preemptible is None else self.preemptible

    def pending(self) -> list[Task]:
        """Return the tasks without a place."""
        return [task for task in self.tasks if task._status is TaskStatus.PENDING]  # noqa: SLF001 - hot

    def active(self) -> list[Task]:
        """Return the tasks that have a place."""
        return [
            task for task in self.tasks if task.status in {TaskStatus.ALLOCATED, TaskStatus.RUNNING}
        ]

    def next_count(self) -> int:
        """Return how many tasks are placed next: as many as ``min_available`` lacks, or one."""
        return max(1, self.min_available - len(self.active()))

    def next_size(self) -> float:
        """Return the size of the tasks that are placed next; 0.0 if none is pending."""
        if len(self.tasks) == 1:  # no list: ordering 5 000 queues calls this 100 000 times
            (task,) = self.tasks
            return task.size if task._status is TaskStatus.PENDING else 0.0  # noqa: SLF001 - hot
        return sum(task.size for task in self.pending()[: self.next_count()])

    def __repr__(self) -> str:
        return f"Job({self.name!r})"


class Gpu:
    """A GPU of a node; it runs the tasks that require one."""

    __slots__ = ("capacity", "index", "used")

    def __init__(self, index: int, *, capacity: float = 1.0, used: float = 0.0) -> None:
        self.index = index
        self.capacity = capacity
        """The capacity, in units of :attr:`Task.size`."""
        self.used = used
        """The used capacity, by the tasks of the cluster and by others."""

    def fits(self, task: Task) -> bool:
        """Return whether ``task`` fits."""
        return self.used + task.size <= self.capacity + _ROUNDING


class Node:
    """A machine, or an endpoint, on which tasks run."""

    __slots__ = ("capacity", "gpus", "labels", "name", "tasks", "used")

    def __init__(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        gpus: Sequence[Gpu] = (),
        capacity: float | None = None,
        used: float = 0.0,
    ) -> None:
        """Create a node.

        Args:
            name: Unique among the nodes.
            labels: Labels for plugins.
            gpus: The GPUs.
            capacity: Capacity for tasks that need no GPU, in units of :attr:`Task.size`; None for
                no limit.
            used: The part of ``capacity`` that others use.
        """
        self.name = name
        self.labels: Mapping[str, str] = labels or {}
        self.gpus = list(gpus)
        self.capacity = capacity
        self.used = used
        self.tasks: dict[Task, None] = {}

    def has_available_gpus(self) -> bool:
        """Return whether a GPU has free capacity."""
        return any(gpu.used < gpu.capacity for gpu in self.gpus)

    def gpu_utilization(self) -> float:
        """Return the used fraction of its GPUs, 0.0 to 1.0; 0.0 without GPUs."""
        capacity = sum(gpu.capacity for gpu in self.gpus)
        return sum(gpu.used for gpu in self.gpus) / capacity if capacity else 0.0

    def fits(self, task: Task) -> bool:
        """Return whether ``task`` fits."""
        if task.requires_gpu:
            return any(gpu.fits(task) for gpu in self.gpus)
        return self.capacity is None or self.used + task.size <= self.capacity + _ROUNDING

    def room(self, requires_gpu: bool) -> float:
        """Return the free capacity for tasks that need a GPU, or for those that do not."""
        if requires_gpu:
            return sum(max(0.0, gpu.capacity - gpu.used) for gpu in self.gpus)
        return inf if self.capacity is None else max(0.0, self.capacity - self.used)

    def unfit(self, task: Task) -> str:
        """Return why ``task`` does not fit; "" if it does."""
        if self.fits(task):
            return ""
        if task.requires_gpu or self.capacity is None:
            return f"node {self.name} has no available GPUs"
        left = self.capacity - self.used
        return f"node {self.name} has room for {left:g}, the task takes {task.size:g}"

    def add(self, task: Task, gpu: Gpu | None) -> None:
        """Place ``task`` here, on ``gpu`` if it needs one."""
        self.tasks[task] = None
        task.node, task.gpu = self, gpu
        if gpu is None:
            self.used += task.size
        else:
            gpu.used += task.size

    def remove(self, task: Task) -> None:
        """Remove ``task``."""
        del self.tasks[task]
        if task.gpu is None:
            self.used -= task.size
        else:
            task.gpu.used -= task.size
        task.node = task.gpu = None

    def __repr__(self) -> str:
        return f"Node({self.name!r})"


_ROUNDING = 1e-9
"""Tolerance for rounding errors: sizes are added and subtracted."""

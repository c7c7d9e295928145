"""What a session decides about: queues, jobs, tasks, nodes and their GPUs.

Of a GPU cluster these are what their names say. Of a request dispatcher a queue is a tenant, a job
one request or a group of them, a task a request, a node an endpoint and a GPU one of its
data-parallel ranks. They are live: a session sees them as they are and changes them through a
:class:`~epp.flow_control.sessions.statement.Statement`; nothing is copied.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf


class TaskStatus(StrEnum):
    """Where a task stands."""

    PENDING = "pending"
    ALLOCATED = "allocated"
    """It has a place, by a statement that is not committed yet."""
    RUNNING = "running"
    RELEASING = "releasing"
    """Evicted, by a statement that is not committed yet; its place counts as free."""


class Queue:
    """Who shares the nodes: a tree, of which the leaves have jobs."""

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
        """Make a queue, a child of ``parent`` if there is one.

        Args:
            name: Unique among the queues.
            parent: The queue whose share it has a part of.
            priority: Higher ones are served first with what is left over their ``deserved``.
            deserved: What it is owed, its quota, in units of tasks' :attr:`Task.size`; None if it
                has none.
            limit: The most it may have, None for no limit.
            over_quota_weight: Its part of what is left once everybody has what they deserve.
            created: Older ones go first where nothing else decides.
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
        """Name of the tenant that the queue belongs to: ``preempt`` stays within a tenant."""
        return self.name

    def path(self) -> Iterator["Queue"]:
        """Yield the queue and all above it, itself first."""
        queue: Queue | None = self
        while queue is not None:
            yield queue
            queue = queue.parent

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"


class Task:
    """The smallest thing that has a place."""

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
        """Make a pending task.

        Args:
            name: Unique within its namespace.
            namespace: Whose it is.
            requires_gpu: Whether it needs one of its node's GPUs.
            size: What it takes of its node, and of its queue's share.
            labels: What plugins tell it by.
            created: Older ones go first where nothing else decides.
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
        """Where it stands; a statement changes it, or the dispatcher."""
        return self._status

    @status.setter
    def status(self, status: TaskStatus) -> None:
        # A plugin that could set it would break the session far from where it did so.
        raise AttributeError(
            "a task's status is set by statements: ssn.statement().allocate() and evict(), then"
            " commit()"
        )

    def note_status(self, status: TaskStatus) -> None:
        """Take note of where it stands; for statements, and for whoever runs tasks."""
        self._status = status

    @property
    def uid(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    def __repr__(self) -> str:
        return f"Task({self.namespace}/{self.name} {self._status.value})"


class Job:
    """Tasks that belong together; at least ``min_available`` of them run, or none."""

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
        """Make a job of ``tasks``, which then belong to it.

        Args:
            name: Unique among the jobs.
            queue: Where it waits; one without children.
            tasks: At least ``min_available`` of them.
            priority: Higher ones go first, if a plugin orders by it.
            min_available: How many tasks must have a place before any has.
            preemptible: Whether it may lose its place to others; by default if its priority is
                negative.
            created: Older ones go first where nothing else decides.
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
        """Whether it may lose its place to others."""
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
        """Return how many tasks get places together next: all it lacks to run at all, or one."""
        return max(1, self.min_available - len(self.active()))

    def next_size(self) -> float:
        """Return what these take; 0.0 if nothing of it waits."""
        if len(self.tasks) == 1:  # without a list: an order of 5 000 queues asks 100 000 times
            (task,) = self.tasks
            return task.size if task._status is TaskStatus.PENDING else 0.0  # noqa: SLF001 - hot
        return sum(task.size for task in self.pending()[: self.next_count()])

    def __repr__(self) -> str:
        return f"Job({self.name!r})"


class Gpu:
    """A part of a node that takes tasks of its own."""

    __slots__ = ("capacity", "index", "used")

    def __init__(self, index: int, *, capacity: float = 1.0, used: float = 0.0) -> None:
        self.index = index
        self.capacity = capacity
        """What it can take, in units of :attr:`Task.size`."""
        self.used = used
        """What is taken of it, by the tasks here and by others."""

    def fits(self, task: Task) -> bool:
        """Whether there is room for ``task``."""
        return self.used + task.size <= self.capacity + _ROUNDING


class Node:
    """Where tasks run."""

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
        """Make a node.

        Args:
            name: Unique among the nodes.
            labels: What plugins tell it by.
            gpus: Its GPUs; none for a node without.
            capacity: What it can take besides its GPUs, in units of :attr:`Task.size`; None for no
                limit.
            used: What is taken of that by others.
        """
        self.name = name
        self.labels: Mapping[str, str] = labels or {}
        self.gpus = list(gpus)
        self.capacity = capacity
        self.used = used
        self.tasks: dict[Task, None] = {}

    def has_available_gpus(self) -> bool:
        """Whether one of its GPUs has room left."""
        return any(gpu.used < gpu.capacity for gpu in self.gpus)

    def gpu_utilization(self) -> float:
        """Return how much of its GPUs is taken, from 0.0 to 1.0; 0.0 without GPUs."""
        capacity = sum(gpu.capacity for gpu in self.gpus)
        return sum(gpu.used for gpu in self.gpus) / capacity if capacity else 0.0

    def fits(self, task: Task) -> bool:
        """Whether there is room for ``task``."""
        if task.requires_gpu:
            return any(gpu.fits(task) for gpu in self.gpus)
        return self.capacity is None or self.used + task.size <= self.capacity + _ROUNDING

    def room(self, requires_gpu: bool) -> float:
        """Return what it can still take, of tasks that need a GPU or of the others."""
        if requires_gpu:
            return sum(max(0.0, gpu.capacity - gpu.used) for gpu in self.gpus)
        return inf if self.capacity is None else max(0.0, self.capacity - self.used)

    def unfit(self, task: Task) -> str:
        """Return why there is no room for ``task``; "" if there is."""
        if self.fits(task):
            return ""
        if task.requires_gpu or self.capacity is None:
            return f"node {self.name} has no available GPUs"
        left = self.capacity - self.used
        return f"node {self.name} has room for {left:g}, the task takes {task.size:g}"

    def add(self, task: Task, gpu: Gpu | None) -> None:
        """Give ``task`` a place here, on ``gpu`` if it needs one."""
        self.tasks[task] = None
        task.node, task.gpu = self, gpu
        if gpu is None:
            self.used += task.size
        else:
            gpu.used += task.size

    def remove(self, task: Task) -> None:
        """Take its place from ``task``."""
        del self.tasks[task]
        if task.gpu is None:
            self.used -= task.size
        else:
            task.gpu.used -= task.size
        task.node = task.gpu = None

    def __repr__(self) -> str:
        return f"Node({self.name!r})"


_ROUNDING = 1e-9
"""Sizes are fractions that are added and taken off again."""

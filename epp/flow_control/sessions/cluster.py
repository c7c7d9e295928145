"""The queues, jobs and nodes of a session, by name."""

from typing import TypeVar

from epp.flow_control.sessions.model import Job, Node, Queue

_Member = TypeVar("_Member")


class Cluster:
    """Queues, jobs and nodes by name.

    ``version`` grows with each change, ``membership`` with each added or removed object.
    """

    __slots__ = ("jobs", "membership", "nodes", "queues", "version")

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.jobs: dict[str, Job] = {}
        self.nodes: dict[str, Node] = {}
        self.version = 0
        self.membership = 0

    def add_queue(self, queue: Queue) -> None:
        """Add a queue.

        Raises:
            ValueError: The name is taken.
        """
        _add(self.queues, queue.name, queue, "queue")
        self._changed()

    def add_node(self, node: Node) -> None:
        """Add a node.

        Raises:
            ValueError: The name is taken.
        """
        _add(self.nodes, node.name, node, "node")
        self._changed()

    def add_job(self, job: Job) -> None:
        """Add a job.

        Raises:
            ValueError: The name is taken, the queue is unknown or has children, or
                ``min_available`` is not from 1 to the number of tasks.
        """
        if self.queues.get(job.queue.name) is not job.queue:
            raise ValueError(
                f"job {job.name!r}: there is no queue {job.queue.name!r}; add it first"
            )
        if job.queue.children:
            below = ", ".join(repr(child.name) for child in job.queue.children)
            raise ValueError(
                f"job {job.name!r}: queue {job.queue.name!r} has queues below it ({below});"
                " put the job into one of these"
            )
        if not 1 <= job.min_available <= len(job.tasks):
            raise ValueError(
                f"job {job.name!r}: min_available is {job.min_available}; it must be from 1 to the"
                f" number of its tasks, {len(job.tasks)}"
            )
        _add(self.jobs, job.name, job, "job")
        self._changed()

    def remove_job(self, job: Job) -> None:
        """Remove a job; its tasks keep their places."""
        del self.jobs[job.name]
        self._changed()

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue without jobs.

        Raises:
            ValueError: It has children.
        """
        if queue.children:
            below = ", ".join(repr(child.name) for child in queue.children)
            raise ValueError(
                f"queue {queue.name!r} has queues below it ({below}); remove these first"
            )
        del self.queues[queue.name]
        if queue.parent is not None:
            del queue.parent.children[queue]
        self._changed()

    def remove_node(self, node: Node) -> None:
        """Remove a node; its tasks keep their places until they end."""
        del self.nodes[node.name]
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self.membership += 1


def _add(held: dict[str, _Member], name: str, member: _Member, kind: str) -> None:
    if name in held:
        raise ValueError(f"there are two {kind}s named {name!r}; rename one")
    held[name] = member

"""The order of jobs: a tree of queues with jobs in its leaves."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from epp.flow_control.sessions.combined_points import CombinedPoints
from epp.flow_control.sessions.model import Job, Queue, Task


class JobTree:
    """Jobs in the order of their queues, level by level, then in their own order.

    Allocations and evictions for a job change the accounts of its queues. So when the next job is
    popped, the queues on the path of the last one are sorted again.
    """

    def __init__(
        self, points: CombinedPoints, jobs: Iterable[Job], *, last_first: bool = False
    ) -> None:
        """Build the tree of ``jobs``.

        Args:
            points: Compares queues and jobs.
            jobs: The jobs; their queues are leaves.
            last_first: Pop them in reverse order, as victims.
        """
        self._points = points
        self._sign = -1 if last_first else 1
        self._root = _Branch(self, None)
        branches: dict[Queue | None, _Branch] = {None: self._root}
        for job in jobs:
            self._branch(job.queue, branches).jobs.append(_Entry(self, job))
        self._root.put_in_order()

    def pop(self) -> Job | None:
        """Remove and return the next job; None if there is none."""
        branch = self._root
        branch.settle()
        while branch.children:
            branch = branch.children[0]
            branch.is_stale = True
        return heappop(branch.jobs).job if branch.jobs else None

    def put_back(self, job: Job) -> None:
        """Put back the job that was popped last."""
        branch = self._root
        while branch.children:
            branch = branch.children[0]
        heappush(branch.jobs, _Entry(self, job))

    def took(self, victim: Task) -> None:
        """Note a victim of the job that was popped last, for the order of queues."""
        branch = self._root
        while branch.children:
            branch = branch.children[0]
            branch.victims.append(victim)

    def _branch(self, queue: Queue | None, branches: dict[Queue | None, "_Branch"]) -> "_Branch":
        branch = branches.get(queue)
        if branch is None:
            branch = branches[queue] = _Branch(self, queue)
            above = None if queue is None else queue.parent
            self._branch(above, branches).children.append(branch)
        return branch

    def is_before(self, left: Job, right: Job) -> bool:
        """Return whether ``left`` is before ``right``, a job of the same queue."""
        return self._sign * self._points.compare_jobs(left, right) < 0

    def is_branch_before(self, left: "_Branch", right: "_Branch") -> bool:
        """Return whether the best job of ``left`` is before the best job of ``right``."""
        assert left.queue is not None  # noqa: S101 - only the root has none, and it is not compared
        assert right.queue is not None  # noqa: S101
        decided = self._points.compare_queues(
            left.queue, right.queue, left.best(), right.best(), left.victims, right.victims
        )
        return self._sign * decided < 0


class _Entry:
    """A job in a heap."""

    __slots__ = ("_tree", "job")

    def __init__(self, tree: JobTree, job: Job) -> None:
        self._tree = tree
        self.job = job

    def __lt__(self, other: "_Entry") -> bool:
        return self._tree.is_before(self.job, other.job)


class _Branch:
    """A queue in a heap: either its jobs or the queues below it, as a heap."""

    __slots__ = ("_tree", "children", "is_stale", "jobs", "queue", "victims")

    def __init__(self, tree: JobTree, queue: Queue | None) -> None:
        self._tree = tree
        self.queue = queue
        self.children: list[_Branch] = []
        self.jobs: list[_Entry] = []
        self.victims: list[Task] = []
        self.is_stale = False

    def best(self) -> Job:
        """Return the next job; there must be one."""
        branch = self
        while branch.children:
            branch = branch.children[0]
        return branch.jobs[0].job

    def put_in_order(self) -> None:
        """Make heaps, from the leaves up: a queue is compared by its best job."""
        for child in self.children:
            child.put_in_order()
        heapify(self.children)
        heapify(self.jobs)

    def settle(self) -> None:
        """Sort the path of the job that was popped last."""
        if not self.children or not (top := self.children[0]).is_stale:
            return
        top.settle()
        top.is_stale = False
        if top.children or top.jobs:
            heapreplace(self.children, top)
        else:
            heappop(self.children)

    def __lt__(self, other: "_Branch") -> bool:
        return self._tree.is_branch_before(self, other)

"""The order in which ``allocate`` tries the waiting jobs."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Protocol

from epp.flow_control.sessions.job_tree import JobTree
from epp.flow_control.sessions.model import Job, Task
from epp.flow_control.sessions.session import Session
from epp.flow_control.sessions.statement import CommitError, Statement


class DispatchOrder(Protocol):
    """The waiting jobs of one session, the next one first.

    :class:`ComparedOrder` compares all jobs with the functions of plugins, as KAI-Scheduler does.
    ``BandedOrder`` of :mod:`epp.flow_control.dispatch` takes heads of queues that stay sorted from
    session to session, in O(log n).
    """

    @abstractmethod
    def next_job(self) -> Job | None:
        """Return the next job to try; None ends the action."""

    @abstractmethod
    def dispatch(self, job: Job, statement: Statement) -> None:
        """Commit ``statement``, which places ``job``."""

    @abstractmethod
    def skip(self, job: Job) -> None:
        """Pass over ``job``: there is no place for it in this session."""

    @abstractmethod
    def fail(self, job: Job, error: Exception) -> None:
        """Handle an exception, not one of a plugin, that was raised while ``job`` was tried.

        Raises:
            Exception: ``error``, to end the session.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all references: the action has ended."""


class ComparedOrder(DispatchOrder):
    """All waiting jobs, by the comparison functions of queues and jobs.

    It ends as soon as no node has room for any waiting task.
    """

    def __init__(self, ssn: Session) -> None:
        waiting = waiting_jobs(ssn)
        self._ssn = ssn
        self._smallest = _smallest_tasks(waiting)
        self._tree = JobTree(ssn, waiting)
        self._is_full = False
        self._pending = 0
        """Pending tasks of the job that is being tried."""

    def next_job(self) -> Job | None:
        job = None if self._is_full else self._tree.pop()
        self._pending = 0 if job is None else len(job.pending())
        return job

    def dispatch(self, job: Job, statement: Statement) -> None:
        before = self._pending
        # A job that lost its place at once, because its client is gone, must not be tried forever.
        if committed(self._ssn, statement, job) and 0 < len(job.pending()) < before:
            self._tree.put_back(job)

    def skip(self, job: Job) -> None:
        nodes = self._ssn.cluster.nodes.values()
        # With 5 000 jobs and room for one, trying each of them took 200 ms.
        if not any(node.fits(task) for task in self._smallest for node in nodes):
            self._ssn.explanations.unreached = "no node has room for any task that waits"
            self._is_full = True

    def fail(self, job: Job, error: Exception) -> None:
        raise error

    def close(self) -> None:
        """Do nothing: the order is not part of a reference cycle."""


def waiting_jobs(ssn: Session) -> list[Job]:
    """Return the jobs of the cluster that have pending tasks."""
    return [job for job in ssn.cluster.jobs.values() if job.pending()]


def committed(ssn: Session, statement: Statement, job: Job) -> bool:
    """Commit ``statement`` and return whether that worked; if not, explain it for ``job``."""
    try:
        statement.commit()
    except CommitError as error:
        ssn.explanations.of_job(job, str(error))
        return False
    return True


def _smallest_tasks(jobs: Iterable[Job]) -> list[Task]:
    """Return the smallest pending task that needs a GPU, and the smallest that needs none."""
    smallest: dict[bool, Task] = {}
    for job in jobs:
        for task in job.pending():
            known = smallest.get(task.requires_gpu)
            if known is None or task.size < known.size:
                smallest[task.requires_gpu] = task
    return [*smallest.values()]

"""The actions: what a session does, one after another in configured order."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Protocol

from epp.flow_control.sessions.job_tree import JobTree
from epp.flow_control.sessions.model import Job, Task
from epp.flow_control.sessions.placing import place
from epp.flow_control.sessions.session import Session
from epp.flow_control.sessions.solver import Solver, committed


class Action(Protocol):
    """One step of a session."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""

    @abstractmethod
    def execute(self, ssn: Session) -> None:
        """Do it; a statement left open is discarded when the session closes."""


class Allocate:
    """Places waiting jobs in order, where there is room; takes nothing from anybody."""

    name = "allocate"

    def execute(self, ssn: Session) -> None:
        """Place what can be placed; end as soon as there is no room for anybody who waits."""
        waiting = _waiting(ssn)
        smallest = _smallest_tasks(waiting)
        tree = JobTree(ssn, waiting)
        while job := tree.pop():
            waited = len(job.pending())
            statement = ssn.statement()
            if place(ssn, statement, job):
                # Not again what has lost its place already, as when a client is gone: for ever.
                if committed(ssn, statement, job) and 0 < len(job.pending()) < waited:
                    tree.put_back(job)
                continue
            statement.discard()
            # With 5 000 jobs and room for one, asking each of them took 200 ms.
            if not any(node.fits(task) for task in smallest for node in ssn.cluster.nodes.values()):
                ssn.explanations.unreached = "no node has room for any task that waits"
                break


class Reclaim:
    """Takes places from preemptible jobs of other queues, for a job that its queue is owed."""

    name = "reclaim"

    def execute(self, ssn: Session) -> None:
        """Try each waiting job once, in order."""
        tree = JobTree(ssn, _waiting(ssn))
        preemptible = _preemptible(ssn)
        while preemptible and (job := tree.pop()):
            if not ssn.may_reclaim(job):
                continue
            ssn.solution_started()
            victims = [
                other
                for other in preemptible
                if other.queue is not job.queue and ssn.reclaims_from(job, other)
            ]
            solver = Solver(ssn, job, f"reclaimed by job {job.name}", ssn.accepts_reclaim)
            if solver.take_from(victims):
                preemptible = _preemptible(ssn)


class Preempt:
    """Takes places from preemptible jobs of the same queue that have a lower priority."""

    name = "preempt"

    def execute(self, ssn: Session) -> None:
        """Try each waiting job once, in order."""
        tree = JobTree(ssn, _waiting(ssn))
        preemptible = _preemptible(ssn)
        while preemptible and (job := tree.pop()):
            victims = [
                other
                for other in preemptible
                if other.queue is job.queue
                and other.priority < job.priority
                and ssn.preempts(job, other)
            ]
            solver = Solver(ssn, job, f"preempted by job {job.name}", ssn.accepts_preemption)
            if solver.take_from(victims):
                preemptible = _preemptible(ssn)


def _waiting(ssn: Session) -> list[Job]:
    return [job for job in ssn.cluster.jobs.values() if job.pending()]


def _smallest_tasks(jobs: Iterable[Job]) -> list[Task]:
    """Return the smallest pending task that needs a GPU, and the smallest that needs none."""
    smallest: dict[bool, Task] = {}
    for job in jobs:
        for task in job.pending():
            known = smallest.get(task.requires_gpu)
            if known is None or task.size < known.size:
                smallest[task.requires_gpu] = task
    return [*smallest.values()]


def _preemptible(ssn: Session) -> list[Job]:
    """Return the jobs that have places and may lose them."""
    return [job for job in ssn.cluster.jobs.values() if job.is_preemptible() and job.active()]

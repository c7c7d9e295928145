"""The actions: what a session does, one after another in configured order."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Protocol

from epp.flow_control.sessions.job_tree import JobTree
from epp.flow_control.sessions.model import Job
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
        """Place what can be placed."""
        tree = JobTree(ssn, _waiting(ssn))
        while job := tree.pop():
            statement = ssn.statement()
            if not place(ssn, statement, job):
                statement.discard()
            elif committed(ssn, statement, job) and job.pending():
                tree.put_back(job)


class Reclaim:
    """Takes places from preemptible jobs of other queues, for a job that its queue is owed."""

    name = "reclaim"

    def execute(self, ssn: Session) -> None:
        """Try each waiting job once, in order."""
        tree = JobTree(ssn, _waiting(ssn))
        while job := tree.pop():
            if not ssn.may_reclaim(job):
                continue
            ssn.solution_started()
            victims = [
                other
                for other in _victims(ssn, job)
                if other.queue is not job.queue and ssn.reclaims_from(job, other)
            ]
            solver = Solver(ssn, job, f"reclaimed by job {job.name}", ssn.accepts_reclaim)
            solver.take_from(victims)


class Preempt:
    """Takes places from preemptible jobs of the same queue that have a lower priority."""

    name = "preempt"

    def execute(self, ssn: Session) -> None:
        """Try each waiting job once, in order."""
        tree = JobTree(ssn, _waiting(ssn))
        while job := tree.pop():
            victims = [
                other
                for other in _victims(ssn, job)
                if other.queue is job.queue
                and other.priority < job.priority
                and ssn.preempts(job, other)
            ]
            Solver(ssn, job, f"preempted by job {job.name}", ssn.accepts_preemption).take_from(
                victims
            )


def _waiting(ssn: Session) -> list[Job]:
    return [job for job in ssn.cluster.jobs.values() if job.pending()]


def _victims(ssn: Session, job: Job) -> Iterator[Job]:
    for other in ssn.cluster.jobs.values():
        if other is not job and other.is_preemptible() and other.active():
            yield other

"""Finds who has to give up a place so that a job has one."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from epp.flow_control.sessions.explanations import Explanations
from epp.flow_control.sessions.job_tree import JobTree
from epp.flow_control.sessions.model import Job, Task, TaskStatus
from epp.flow_control.sessions.placing import place
from epp.flow_control.sessions.plugin import Scenario
from epp.flow_control.sessions.session import Session
from epp.flow_control.sessions.statement import CommitError, Statement

_ROUNDED = 1 - 1e-9
_SPARE = 1e-6
"""Sums of sizes are not exact."""


class Solver:
    """Takes victims one after another until a job fits, then spares those it can do without."""

    def __init__(
        self, ssn: Session, job: Job, reason: str, accepts: Callable[[Scenario], bool]
    ) -> None:
        """Look for places for ``job``.

        Args:
            ssn: The session.
            job: Who waits.
            reason: What victims are told.
            accepts: Whether a scenario is acceptable as a whole.
        """
        self._ssn = ssn
        self._job = job
        self._reason = reason
        self._accepts = accepts
        self._statement = ssn.statement()
        self._was_tried = False

    def take_from(self, victims: Iterable[Job]) -> bool:
        """Place the job where some of ``victims`` run, the last in order first.

        Returns:
            Whether it was done; if not, everything is as it was.
        """
        told, attempt = self._ssn.explanations, Explanations()
        # What is tried here shows free places that are none: only the outcome is told.
        self._ssn.explanations = attempt
        try:
            is_done = self._search(victims)
        finally:
            self._ssn.explanations = told
        if is_done:
            for task in self._job.active():
                told.placed(task)
        else:
            told.failed(self._job, attempt)
        return is_done

    def _search(self, victims: Iterable[Job]) -> bool:
        units: list[list[Task]] = []
        tree = JobTree(self._ssn, victims, last_first=True)
        while victim := tree.pop():
            for unit in _units(self._ssn, victim):
                self._evict([unit])
                for task in unit:
                    tree.took(task)
                units.append(unit)
                if self._fits(units):
                    return self._spare(units) and committed(self._ssn, self._statement, self._job)
        self._statement.discard()
        return False

    def _evict(self, units: Iterable[list[Task]]) -> None:
        for unit in units:
            for task in unit:
                self._statement.evict(task, self._reason)

    def _fits(self, units: Iterable[list[Task]]) -> bool:
        # With 128 victims for 128 tasks, placing them after each victim took seconds.
        if self._was_tried and not self._has_room():
            return False
        self._was_tried = True  # once at least, for the reasons
        checkpoint = self._statement.checkpoint()
        if not place(self._ssn, self._statement, self._job):
            return False
        if self._accepts(Scenario(self._job, [task for unit in units for task in unit])):
            return True
        self._statement.rollback(checkpoint)
        return False

    def _has_room(self) -> bool:
        """Whether the nodes together have the room that the job lacks; it may be too scattered."""
        pending = self._job.pending()
        count = self._job.next_count()
        nodes = self._ssn.cluster.nodes.values()
        for requires_gpu in (True, False):
            sizes = sorted(task.size for task in pending if task.requires_gpu is requires_gpu)
            # Whichever tasks go next, so many of this kind are among them.
            least = sum(sizes[: max(0, count - len(pending) + len(sizes))])
            if least and least * _ROUNDED > sum(node.room(requires_gpu) for node in nodes) + _SPARE:
                return False
        return True

    def _spare(self, units: list[list[Task]]) -> bool:
        """Leave alone everyone without whose place the job has one as well; whether it still has.

        It has, unless a plugin answers the same question otherwise than before. Those that come
        before the others are spared before them; the last one made it fit. Many are tried at a
        time, and half of them where that is too many.
        """
        needed, is_placed = units, True
        groups = [units[:-1]]
        while groups:
            group = groups.pop()
            spared = {id(unit) for unit in group}
            fewer = [unit for unit in needed if id(unit) not in spared]
            if group and _leaves_enough(group, fewer):
                is_placed = self._fits_anew(fewer)
                if is_placed:
                    needed = fewer
                    continue
            if len(group) > 1:
                half = len(group) // 2
                groups += [group[:half], group[half:]]
        if not is_placed and not self._fits_anew(needed):
            self._statement.discard()
            return False
        return True

    def _fits_anew(self, units: list[list[Task]]) -> bool:
        self._statement.rollback(0)
        self._evict(units)
        return self._fits(units)


def _leaves_enough(spared: Iterable[list[Task]], units: Iterable[list[Task]]) -> bool:
    """Whether each job of ``spared`` loses nothing by ``units``, or keeps its minimum."""
    lost = Counter(task.job for unit in units for task in unit)
    for job in {unit[0].job for unit in spared}:
        had = sum(task.status in {TaskStatus.RUNNING, TaskStatus.RELEASING} for task in job.tasks)
        if lost[job] and had - lost[job] < job.min_available:
            return False
    return True


def _units(ssn: Session, victim: Job) -> Iterator[list[Task]]:
    """Yield what of a job can go at a time: what it can do without one by one, then the rest."""
    running = ssn.ordered_tasks(task for task in victim.tasks if task.status is TaskStatus.RUNNING)
    needed = min(victim.min_available, len(running))
    yield from ([task] for task in reversed(running[needed:]))
    if rest := running[:needed]:
        yield rest[::-1]


def committed(ssn: Session, statement: Statement, job: Job) -> bool:
    """Commit; where the world outside does not take it, the job's explanation says so."""
    try:
        statement.commit()
    except CommitError as error:
        ssn.explanations.of_job(job, str(error))
        return False
    return True

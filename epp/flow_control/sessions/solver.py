"""Searches the smallest set of victims that makes room for a job, by simulation."""

from collections import Counter
from collections.abc import Iterable, Iterator

from epp.flow_control.sessions.contracts import Scenario
from epp.flow_control.sessions.dispatch_order import committed, waiting_jobs
from epp.flow_control.sessions.explanations import Explanations
from epp.flow_control.sessions.job_tree import JobTree
from epp.flow_control.sessions.model import Job, Task, TaskStatus
from epp.flow_control.sessions.placing import place
from epp.flow_control.sessions.session import Session
from epp.flow_control.sessions.victims import EvictionRule, VictimSearch

_ROUNDED = 1 - 1e-9
_SPARE = 1e-6
"""Sums of sizes are not exact."""


class Solver(VictimSearch):
    """Tries each waiting job once, in order; a job gets its place in the same statement."""

    def __init__(self, ssn: Session) -> None:
        self._ssn = ssn
        self._tree = JobTree(ssn, waiting_jobs(ssn))
        self._preemptible = _preemptible_jobs(ssn)

    def next_job(self) -> Job | None:
        return self._tree.pop() if self._preemptible else None

    def make_room(self, job: Job, rule: EvictionRule) -> bool:
        victims = [
            other
            for other in self._preemptible
            if rule.concerns(job, other) and rule.permits(job, other)
        ]
        return _Simulation(self._ssn, job, rule).run(victims)

    def tried(self, job: Job, *, has_room: bool) -> None:
        if has_room:
            self._preemptible = _preemptible_jobs(self._ssn)


class _Simulation:
    """Evicts one victim after another until a job fits, then spares those that are not needed."""

    def __init__(self, ssn: Session, job: Job, rule: EvictionRule) -> None:
        self._ssn = ssn
        self._job = job
        self._reason = rule.reason(job)
        self._accepts = rule.accepts
        self._statement = ssn.statement()
        self._was_tried = False

    def run(self, victims: Iterable[Job]) -> bool:
        """Place the job where some of ``victims`` run, the last in order first.

        Returns:
            Whether it was placed; if not, nothing has changed.
        """
        explanations, attempt = self._ssn.explanations, Explanations()
        # Reasons noted during the simulation are about evictions that may be undone.
        self._ssn.explanations = attempt
        try:
            is_done = self._search(victims)
        finally:
            self._ssn.explanations = explanations
        if is_done:
            for task in self._job.active():
                explanations.placed(task)
        else:
            explanations.failed(self._job, attempt)
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
        self._was_tried = True  # at least once, for the explanations
        checkpoint = self._statement.checkpoint()
        if not place(self._ssn, self._statement, self._job):
            return False
        if self._accepts(Scenario(self._job, [task for unit in units for task in unit])):
            return True
        self._statement.rollback(checkpoint)
        return False

    def _has_room(self) -> bool:
        """Whether all nodes together have the capacity that the job lacks, perhaps in fragments."""
        pending = self._job.pending()
        count = self._job.next_count()
        nodes = self._ssn.cluster.nodes.values()
        for requires_gpu in (True, False):
            sizes = sorted(task.size for task in pending if task.requires_gpu is requires_gpu)
            # Whichever tasks come next, at least this many of this kind are among them.
            least = sum(sizes[: max(0, count - len(pending) + len(sizes))])
            if least and least * _ROUNDED > sum(node.room(requires_gpu) for node in nodes) + _SPARE:
                return False
        return True

    def _spare(self, units: list[list[Task]]) -> bool:
        """Spare the victims that are not needed; return whether the job still fits.

        It does, unless a plugin answers the same question differently the second time. Victims are
        spared in their order, except the last one, which made the job fit: all at once, then half
        of them if that is too many, and so on.
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
    """Whether each job of ``spared`` loses nothing with ``units``, or keeps its minimum."""
    lost = Counter(task.job for unit in units for task in unit)
    for job in {unit[0].job for unit in spared}:
        had = sum(task.status in {TaskStatus.RUNNING, TaskStatus.RELEASING} for task in job.tasks)
        if lost[job] and had - lost[job] < job.min_available:
            return False
    return True


def _units(ssn: Session, victim: Job) -> Iterator[list[Task]]:
    """Yield the tasks evicted at a time: one by one down to the minimum, then the rest."""
    running = ssn.ordered_tasks(task for task in victim.tasks if task.status is TaskStatus.RUNNING)
    needed = min(victim.min_available, len(running))
    yield from ([task] for task in reversed(running[needed:]))
    if rest := running[:needed]:
        yield rest[::-1]


def _preemptible_jobs(ssn: Session) -> list[Job]:
    """Return the jobs that have places and may lose them."""
    return [job for job in ssn.cluster.jobs.values() if job.is_preemptible() and job.active()]

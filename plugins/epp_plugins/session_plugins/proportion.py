"""``proportion``: every queue its fair share.

When a session opens, what the nodes can take is divided: each queue gets what it deserves, as far
as it wants it, and the rest goes by priority of the queues, then by ``over_quota_weight``; the
queues below one divide its share. Then

* queues go first that stay within their fair share, then those within what they deserve, then those
  of a higher priority, then those that have the smaller part of their fair share;
* a job waits whose queue, or a queue above it, would be over its limit, and one that is not
  preemptible where its queue would be over what it deserves;
* a job may reclaim if its queue stays within its fair share (within what it deserves, if the job is
  not preemptible), from queues that have more than theirs.

Sizes are those of tasks; nodes without a limit count as able to take all that is wanted.
"""

from collections.abc import Iterable, Sequence

from epp.flow_control.sessions import (
    ALLOWED,
    Arguments,
    Event,
    Job,
    Queue,
    Scenario,
    Session,
    SessionPlugin,
    Task,
    Verdict,
)
from epp_plugins.session_plugins.fair_share import Share, divide

_ROUNDING = 1e-9
_NO_SHARE = 1000.0
"""How much worse a place is that a queue has no share of."""


class Proportion(SessionPlugin):
    """Fair shares between queues."""

    name = "proportion"

    def __init__(self, arguments: Arguments) -> None:
        self._shares: dict[Queue, Share] = {}

    def on_session_open(self, ssn: Session) -> None:
        self._shares = {queue: Share() for queue in ssn.cluster.queues.values()}
        for job in ssn.cluster.jobs.values():
            self._count(job, size_of(job.active()), size_of(job.pending()))
        roots = [queue for queue in self._shares if queue.parent is None]
        divide(roots, self._shares, self._total(ssn, roots))
        ssn.add_queue_order_fn(self._order)
        ssn.add_is_job_over_capacity_fn(self._within_limits)
        ssn.add_is_non_preemptible_job_over_queue_quota_fn(self._within_quota)
        ssn.add_can_reclaim_resources_fn(self._may_reclaim)
        ssn.add_reclaim_scenario_validator_fn(self._is_fair)
        ssn.add_event_handler(allocate=self._allocated, deallocate=self._deallocated)
        ssn.add_queue_amount_fn("allocated", lambda queue: self._shares[queue].allocated)
        ssn.add_queue_amount_fn("deserved", lambda queue: queue.deserved or 0.0)
        ssn.add_queue_amount_fn("fair_share", lambda queue: self._shares[queue].fair)

    def _total(self, ssn: Session, roots: Iterable[Queue]) -> float:
        total = 0.0
        for node in ssn.cluster.nodes.values():
            if node.capacity is None and not node.gpus:
                return sum(self._shares[queue].requested for queue in roots)
            total += (node.capacity or 0.0) + sum(gpu.capacity for gpu in node.gpus)
        return total

    def _count(self, job: Job, allocated: float, pending: float = 0.0) -> None:
        for queue in job.queue.path():
            share = self._shares[queue]
            share.allocated += allocated
            share.requested += allocated + pending
            if not job.is_preemptible():
                share.allocated_non_preemptible += allocated

    def _allocated(self, event: Event) -> None:
        self._count(event.task.job, event.task.size, -event.task.size)

    def _deallocated(self, event: Event) -> None:
        self._count(event.task.job, -event.task.size, event.task.size)

    # --- order --------------------------------------------------------------------------------

    def _order(
        self, left: Queue, right: Queue, left_job: Job, right_job: Job, *_victims: Sequence[Task]
    ) -> float:
        mine, other = self._rank(left, left_job), self._rank(right, right_job)
        return (mine > other) - (mine < other)

    def _rank(self, queue: Queue, job: Job) -> tuple[bool, bool, int, float, float]:
        share = self._shares[queue]
        # Victims are evicted when they are taken: what is allocated has them off already.
        would_have = share.allocated + job.next_size()
        return (
            would_have > share.fair + _ROUNDING,
            would_have > (queue.deserved or 0.0) + _ROUNDING,
            -queue.priority,
            _part(would_have, share.fair),
            _part(share.allocated, share.fair),
        )

    # --- limits -------------------------------------------------------------------------------

    def _within_limits(self, job: Job, tasks: Sequence[Task]) -> Verdict:
        size = size_of(tasks)
        for queue in job.queue.path():
            has = self._shares[queue].allocated
            if queue.limit is not None and has + size > queue.limit + _ROUNDING:
                return Verdict(
                    allowed=False,
                    reason=f"queue {queue.name} has {has:g} of at most {queue.limit:g},"
                    f" job {job.name} wants {size:g} more",
                )
        return ALLOWED

    def _within_quota(self, job: Job, tasks: Sequence[Task]) -> Verdict:
        size = size_of(tasks)
        for queue in job.queue.path():
            has = self._shares[queue].allocated_non_preemptible
            if queue.deserved is not None and has + size > queue.deserved + _ROUNDING:
                return Verdict(
                    allowed=False,
                    reason=f"queue {queue.name} deserves {queue.deserved:g} and has {has:g} of that"
                    f" for jobs that are not preemptible, job {job.name} wants {size:g} more",
                )
        return ALLOWED

    # --- reclaim ------------------------------------------------------------------------------

    def _may_reclaim(self, job: Job) -> bool:
        size = job.next_size()
        for queue in job.queue.path():
            share = self._shares[queue]
            owed = share.fair
            if not job.is_preemptible() and queue.deserved is not None:
                owed = min(owed, queue.deserved)
            if share.allocated + size > owed + _ROUNDING:
                return False
        return True

    def _is_fair(self, scenario: Scenario) -> bool:
        """Whether every queue that loses had more than its share until the last one it loses."""
        taken: dict[Queue, list[Task]] = {}
        own = set(scenario.preemptor.queue.path())
        for victim in scenario.victims:
            for queue in victim.job.queue.path():
                if queue not in own:
                    taken.setdefault(queue, []).append(victim)
        return all(
            self._shares[queue].allocated + tasks[-1].size > self._shares[queue].fair + _ROUNDING
            for queue, tasks in taken.items()
        )


def size_of(tasks: Iterable[Task]) -> float:
    """Return what ``tasks`` take together."""
    return sum(task.size for task in tasks)


def _part(amount: float, share: float) -> float:
    return amount / share if share > _ROUNDING else amount * _NO_SHARE

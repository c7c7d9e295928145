"""``proportion``: each queue gets its fair share.

When a session opens, the capacity of the nodes is divided. Each queue gets what it deserves, as far
as it requests it. The rest is divided by the priority of the queues, then by ``over_quota_weight``.
The children of a queue divide its share. Then:

* Queues that stay within their fair share are first, then those within what they deserve, then
  those of a higher priority, then those that use a smaller part of their fair share.
* A job waits if its queue, or an ancestor, would exceed its limit. A job that is not preemptible
  also waits if its queue would exceed what it deserves.
* A job may reclaim if its queue stays within its fair share (for a job that is not preemptible:
  within what it deserves). Its victims are in queues that exceed their fair share.

The resource is the size of tasks. If a node has no limit, the capacity is all that is requested.

With ``usageHalfLife``, past use reduces the share of a queue; ``kValue`` (1.0) sets by how much.
``usage`` is the initial past use by queue, as a fraction of the capacity.

Example::

    featureGates: [flowControl]
    extensions:
      sessions:
        plugins:
          proportion:
            arguments: {kValue: 1.0, usageHalfLife: 10m}
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from epp.flow_control.sessions import (
    ALLOWED,
    Event,
    ExtensionPoints,
    Job,
    Queue,
    Scenario,
    Seconds,
    Session,
    SessionPlugin,
    Task,
    Verdict,
)
from epp_plugins.fair_shares import ROUNDING, divide, part_of
from epp_plugins.session_plugins.queue_accounts import QueueAccounts

_AtLeast0 = Annotated[float, msgspec.Meta(ge=0)]

_DUMPED_QUEUES: Final = 50


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``proportion``."""

    k_value: _AtLeast0 = 1.0
    """Influence of past use on the shares."""
    usage_half_life: Seconds = 0.0
    """Half-life of past use; 0 to ignore past use."""
    usage: dict[str, _AtLeast0] = {}
    """Initial past use by queue, as a fraction of the capacity."""


class Proportion(SessionPlugin):
    """Orders and limits queues by their fair shares."""

    name = "proportion"

    def __init__(self, params: Params, clock: Callable[[], float] = time.monotonic) -> None:
        self._k = params.k_value
        self._accounts = QueueAccounts(
            half_life_seconds=params.usage_half_life, usage=params.usage, clock=clock
        )

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_event_handler(allocate=self._allocated, deallocate=self._deallocated)

    def on_session_open(self, ssn: Session) -> None:
        accounts = self._accounts
        accounts.bring_up_to_date(ssn.cluster)
        roots = [accounts[queue] for queue in ssn.cluster.queues.values() if queue.parent is None]
        total = _total(ssn, sum(share.requested[0] for share in roots))
        accounts.write_usage(total)
        divide(roots, [total], k=self._k)
        ssn.add_queue_order_fn(self._order)
        ssn.add_is_job_over_capacity_fn(self._within_limits)
        ssn.add_is_non_preemptible_job_over_queue_quota_fn(self._within_quota)
        ssn.add_can_reclaim_resources_fn(self._may_reclaim)
        ssn.add_reclaim_scenario_validator_fn(self._is_fair)
        ssn.add_queue_amount_fn("allocated", lambda queue: accounts[queue].allocated[0])
        ssn.add_queue_amount_fn("deserved", lambda queue: queue.deserved or 0.0)
        ssn.add_queue_amount_fn("fair_share", lambda queue: accounts[queue].fair[0])

    def dump_state(self) -> Mapping[str, object]:
        return self._accounts.state(_DUMPED_QUEUES)

    def _allocated(self, event: Event) -> None:
        self._accounts.count(event.task.job, event.task.size)

    def _deallocated(self, event: Event) -> None:
        self._accounts.count(event.task.job, -event.task.size)

    # --- order --------------------------------------------------------------------------------

    def _order(
        self, left: Queue, right: Queue, left_job: Job, right_job: Job, *_victims: Sequence[Task]
    ) -> float:
        mine, other = self._rank(left, left_job), self._rank(right, right_job)
        return (mine > other) - (mine < other)

    def _rank(self, queue: Queue, job: Job) -> tuple[bool, bool, int, float, float]:
        share = self._accounts[queue]
        has, fair = share.allocated[0], share.fair[0]
        # Victims are already evicted at this point, so `allocated` does not include them.
        would_have = has + job.next_size()
        return (
            would_have > fair + ROUNDING,
            would_have > share.deserved[0] + ROUNDING,
            -queue.priority,
            part_of(would_have, fair),
            part_of(has, fair),
        )

    # --- limits -------------------------------------------------------------------------------

    def _within_limits(self, job: Job, tasks: Sequence[Task]) -> Verdict:
        size = sum(task.size for task in tasks)
        for queue in job.queue.path():
            has = self._accounts[queue].allocated[0]
            if queue.limit is not None and has + size > queue.limit + ROUNDING:
                return Verdict(
                    allowed=False,
                    reason=f"queue {queue.name} has {has:g} of at most {queue.limit:g},"
                    f" job {job.name} wants {size:g} more",
                )
        return ALLOWED

    def _within_quota(self, job: Job, tasks: Sequence[Task]) -> Verdict:
        size = sum(task.size for task in tasks)
        for queue in job.queue.path():
            has = self._accounts[queue].allocated_non_preemptible
            if queue.deserved is not None and has + size > queue.deserved + ROUNDING:
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
            share = self._accounts[queue]
            owed = share.fair[0]
            if not job.is_preemptible() and queue.deserved is not None:
                owed = min(owed, queue.deserved)
            if share.allocated[0] + size > owed + ROUNDING:
                return False
        return True

    def _is_fair(self, scenario: Scenario) -> bool:
        """Return whether every victim's queue exceeded its fair share until its last eviction."""
        taken: dict[Queue, list[Task]] = {}
        own = set(scenario.preemptor.queue.path())
        for victim in scenario.victims:
            for queue in victim.job.queue.path():
                if queue not in own:
                    taken.setdefault(queue, []).append(victim)
        shares = [(self._accounts[queue], tasks[-1].size) for queue, tasks in taken.items()]
        return all(share.allocated[0] + last > share.fair[0] + ROUNDING for share, last in shares)


def _total(ssn: Session, requested: float) -> float:
    """Return the capacity of the nodes; ``requested`` if a node has no limit."""
    total = 0.0
    for node in ssn.cluster.nodes.values():
        if node.capacity is None and not node.gpus:
            return requested
        total += (node.capacity or 0.0) + sum(gpu.capacity for gpu in node.gpus)
    return total

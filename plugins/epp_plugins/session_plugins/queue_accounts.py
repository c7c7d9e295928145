"""Allocation, past use and request of each queue of a cluster, updated by events.

Counting in each session would walk over all jobs and tasks. So a task is counted when it is placed
or removed, and a job when it is added or removed.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from math import inf

from epp.flow_control.sessions import ArgumentError, Cluster, Job, Queue
from epp_plugins.fair_shares import Claim


class QueueAccount(Claim):
    """Claim of a queue on the only resource, the size of tasks."""

    __slots__ = ("allocated_non_preemptible", "mean", "since")

    def __init__(self, queue: Queue) -> None:
        super().__init__(
            deserved=(queue.deserved or 0.0,),
            limit=(inf if queue.limit is None else queue.limit,),
            weight=queue.over_quota_weight,
            priority=queue.priority,
        )
        self.allocated_non_preemptible = 0.0
        self.mean = 0.0
        """Exponentially decayed mean of its allocation."""
        self.since = 0.0
        """Time of the last update of ``mean``."""


class _Counted:
    """The counted amounts of one job."""

    __slots__ = ("allocated", "job", "preemptible", "requested")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.preemptible = job.is_preemptible()
        self.requested = sum(task.size for task in job.tasks)
        self.allocated = 0.0


class QueueAccounts:
    """The accounts of all queues of a cluster."""

    def __init__(
        self,
        *,
        half_life_seconds: float,
        usage: Mapping[str, float],
        clock: Callable[[], float],
    ) -> None:
        """Create empty accounts.

        Args:
            half_life_seconds: Half-life of past use; 0.0 to ignore past use.
            usage: Initial past use by queue name, as a fraction of the total.
            clock: Returns seconds.
        """
        self._half_life = half_life_seconds
        self._usage = dict(usage)
        self._clock = clock
        self._accounts: dict[Queue, QueueAccount] = {}
        self._jobs: dict[Job, _Counted] = {}
        self._seen = -1
        self._has_begun = False

    def __getitem__(self, queue: Queue) -> QueueAccount:
        return self._accounts[queue]

    def bring_up_to_date(self, cluster: Cluster) -> None:
        """Add new queues and jobs, and remove those that no longer exist.

        Raises:
            ArgumentError: ``usage`` names a queue that does not exist.
        """
        for name in self._usage:
            if not self._has_begun and name not in cluster.queues:
                raise ArgumentError(f"argument 'usage': there is no queue {name!r}")
        if cluster.membership == self._seen:
            return
        gone = self._jobs.keys() - cluster.jobs.values()
        for job in gone:
            counted = self._jobs[job]
            self._add(counted, -counted.allocated, -counted.requested)
            del self._jobs[job]
        self._match_queues(cluster)
        for job in cluster.jobs.values():
            if job not in self._jobs:
                counted = self._jobs[job] = _Counted(job)
                has = sum(task.size for task in job.active())
                self._add(counted, has, counted.requested)
        self._seen = cluster.membership

    def _match_queues(self, cluster: Cluster) -> None:
        known, self._accounts = self._accounts, {}
        now = self._clock()
        for queue in cluster.queues.values():
            account = known.get(queue)
            if account is None:
                account = QueueAccount(queue)
                account.since = now
            account.below = []
            self._accounts[queue] = account
        for queue, account in self._accounts.items():
            if queue.parent is not None:
                self._accounts[queue.parent].below.append(account)

    def count(self, job: Job, size: float) -> None:
        """Add ``size`` to the allocation of ``job``; a new job is counted in the next update."""
        if (counted := self._jobs.get(job)) is not None:
            self._add(counted, size, 0.0)

    def write_usage(self, total: float) -> None:
        """Write each account's past use as a fraction of ``total``."""
        if not self._has_begun:
            self._has_begun = True
            for queue, account in self._accounts.items():
                account.mean = self._usage.get(queue.name, 0.0) * total
        now = self._clock()
        for account in self._accounts.values():
            self._advance(account, now)
            account.usage[0] = account.mean / total if total else 0.0

    def state(self, count: int) -> Mapping[str, object]:
        """Return the first ``count`` accounts."""
        return {
            "jobs": len(self._jobs),
            "queues": {
                queue.name: {
                    "allocated": account.allocated[0],
                    "requested": account.requested[0],
                    "fair_share": account.fair[0],
                    "past_use": round(account.mean, 6),
                }
                for queue, account in islice(self._accounts.items(), count)
            },
        }

    def _add(self, counted: _Counted, allocated: float, requested: float) -> None:
        counted.allocated += allocated
        now = self._clock()
        for queue in counted.job.queue.path():
            account = self._accounts[queue]
            self._advance(account, now)
            account.allocated[0] += allocated
            account.requested[0] += requested
            if not counted.preemptible:
                account.allocated_non_preemptible += allocated

    def _advance(self, account: QueueAccount, now: float) -> None:
        if self._half_life:
            kept = 0.5 ** ((now - account.since) / self._half_life)
            account.mean = account.mean * kept + account.allocated[0] * (1.0 - kept)
            account.since = now

"""``priority``, ``leader-first``, ``strict-priority``: order jobs, tasks and queues.

``priority``
    In each queue, jobs of a higher priority are first.
``leader-first``
    In each job, leaders are first: the tasks whose label ``leaderLabel`` (by default ``role``) is
    ``leaderValue`` (by default ``leader``).
``strict-priority``
    Queues of a higher priority are first while they have waiting jobs.

``leader-first`` has no effect in the endpoint picker, where a job is a single task.

Example::

    sessions:               # of a cluster file; below `extensions` in the endpoint picker's
      plugins:
        strict-priority: {}
        priority: {}
        leader-first:
          arguments: {leaderLabel: role, leaderValue: leader}
"""

import msgspec

from epp.flow_control.sessions import ExtensionPoints, Job, Queue, SessionPlugin, Task


class Priority(SessionPlugin):
    """Orders jobs by priority, highest first."""

    name = "priority"

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_job_order_fn(_higher_priority)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``leader-first``."""

    leader_label: str = "role"
    """Label of tasks."""
    leader_value: str = "leader"
    """Value of the label in leaders."""


class LeaderFirst(SessionPlugin):
    """Orders the leaders of a job before its other tasks."""

    name = "leader-first"

    def __init__(self, params: Params) -> None:
        self._label = params.leader_label
        self._value = params.leader_value

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_task_order_fn(self._order)

    def _order(self, left: Task, right: Task) -> float:
        return self._leads(right) - self._leads(left)

    def _leads(self, task: Task) -> bool:
        return task.labels.get(self._label) == self._value


class StrictPriority(SessionPlugin):
    """Orders queues by priority, highest first."""

    name = "strict-priority"

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_queue_order_fn(_queue_of_higher_priority)


def _higher_priority(left: Job, right: Job) -> float:
    return right.priority - left.priority


def _queue_of_higher_priority(left: Queue, right: Queue, *_: object) -> float:
    return right.priority - left.priority

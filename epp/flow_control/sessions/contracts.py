"""Signatures of the functions that plugins register, and the interface to the world outside."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from epp.flow_control.sessions.model import Gpu, Job, Node, Queue, Task

PLUGIN_FAULTS: Final = (Exception, SystemExit)
"""Exceptions that a plugin may raise without ending the session or, by ``sys.exit()``, the
program."""

PluginFault = Exception | SystemExit


class Event(NamedTuple):
    """A task was placed, or removed from its place."""

    task: Task
    node: Node
    gpu: Gpu | None


class Verdict(NamedTuple):
    """The result of a capacity check."""

    allowed: bool
    reason: str = ""
    """Why not; shown for the waiting job."""


ALLOWED = Verdict(allowed=True)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The plan of an action: place ``preemptor`` and evict the victims."""

    preemptor: Job
    victims: Sequence[Task]


QueueOrder = Callable[[Queue, Queue, Job, Job, Sequence[Task], Sequence[Task]], float]
"""Negative if the first queue is first, positive if the second one is, 0 if equal.

The jobs are the best waiting jobs in or below each queue. The tasks are the victims of each queue
so far, which are already evicted; empty if the action does not evict.
"""
JobOrder = Callable[[Job, Job], float]
"""Negative if the first job is first, positive if the second one is, 0 if equal."""
TaskOrder = Callable[[Task, Task], float]
"""As :data:`JobOrder`."""
NodePreOrder = Callable[[Task, Sequence[Node]], None]
"""Prepares node scores, once per task and set of nodes."""
NodeOrder = Callable[[Task, Node], float]
"""The node's score, higher is better. An exception drops the node for this task."""
GpuOrder = Callable[[Task, Node, Gpu], float]
"""The GPU's score, higher is better. An exception drops the GPU for this task."""
PrePredicate = Callable[[Task, Job], str | None]
"""Returns why the task cannot be placed on any node, or None. An exception is a refusal."""
Predicate = Callable[[Task, Job, Node], str | None]
"""Returns why the task cannot be placed on the node, or None. An exception is a refusal."""
SubsetNodes = Callable[[Job, Sequence[Task], Sequence[Node]], Sequence[Sequence[Node]]]
"""Returns sets of nodes to be tried in this order; none to refuse the job."""
JobCapacity = Callable[[Job, Sequence[Task]], Verdict]
"""Returns whether these tasks of the job may be placed in addition."""
NodeCapacity = Callable[[Task, Job, Node], Verdict]
"""Returns whether the task may be placed on the node in addition."""
CanReclaim = Callable[[Job], bool]
"""Returns whether the job may evict jobs of other tenants."""
VictimFilter = Callable[[Job, Job], bool]
"""Returns whether the first job, which waits, may evict the second."""
Reclaimable = Callable[[Job, Job], str | None]
"""Returns why the first job, which waits, may not evict the second, or None."""
SolutionStart = Callable[[], None]
ScenarioValidator = Callable[[Scenario], bool]
"""Returns whether all evictions of a scenario together are acceptable."""
QueueAmount = Callable[[Queue], float]
"""An amount of a queue, in units of tasks' size."""
BindRequestMutate = Callable[[Task, str], Mapping[str, str] | None]
"""Returns attributes that are sent with the task to the node of this name."""
HttpHandler = Callable[[], object]
"""Returns the response to a GET, encoded as JSON."""
EventFunction = Callable[[Event], None]
JobHook = Callable[[Job], None]


class Binder(Protocol):
    """Carries out the commits of statements."""

    @abstractmethod
    def commit(self, evictions: Sequence["Eviction"], bindings: Sequence["Binding"]) -> None:
        """Carry out all evictions and bindings, or raise an exception and do nothing."""


class Binding(NamedTuple):
    """A task that was placed."""

    task: Task
    node: Node
    gpu: Gpu | None
    attributes: Mapping[str, str]
    """The attributes of the plugins' ``bind_request_mutate`` functions."""


class Eviction(NamedTuple):
    """A task that was evicted."""

    task: Task
    node: Node
    reason: str

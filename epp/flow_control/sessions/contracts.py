"""Signatures of the functions that plugins register, and the interface to the world outside."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from epp.flow_control.sessions.model import Gpu, Job, Node, Queue, Task

PLUGIN_FAULTS: Final = (Exception, SystemExit)
"""What a plugin may raise without ending a session; `sys.exit()` shall not end the program."""

PluginFault = Exception | SystemExit


class Event(NamedTuple):
    """A task has a place, or has it no more."""

    task: Task
    node: Node
    gpu: Gpu | None


class Verdict(NamedTuple):
    """What a capacity check says."""

    allowed: bool
    reason: str = ""
    """Why not, for whoever waits."""


ALLOWED = Verdict(allowed=True)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What an action would do: give ``preemptor`` a place and take theirs from the victims."""

    preemptor: Job
    victims: Sequence[Task]


QueueOrder = Callable[[Queue, Queue, Job, Job, Sequence[Task], Sequence[Task]], float]
"""Less than 0 if the first queue goes first, more than 0 if the second does, else 0.

The jobs are the best ones that wait in or below each queue. The tasks are the victims taken from
each so far, where an action looks for some; they are evicted already.
"""
JobOrder = Callable[[Job, Job], float]
"""Less than 0 if the first one goes first, more than 0 if the second does, else 0."""
TaskOrder = Callable[[Task, Task], float]
"""As :data:`JobOrder`."""
NodePreOrder = Callable[[Task, Sequence[Node]], None]
"""Prepares what the order of nodes needs, once per task and set of nodes."""
NodeOrder = Callable[[Task, Node], float]
"""The node's score, higher is better. An exception drops the node for this task."""
GpuOrder = Callable[[Task, Node, Gpu], float]
"""The GPU's score, higher is better. An exception drops the GPU for this task."""
PrePredicate = Callable[[Task, Job], str | None]
"""Why the task cannot have any place now; nothing if it can. An exception is a refusal too."""
Predicate = Callable[[Task, Job, Node], str | None]
"""Why the task cannot have a place on the node; nothing if it can. An exception is a refusal."""
SubsetNodes = Callable[[Job, Sequence[Task], Sequence[Node]], Sequence[Sequence[Node]]]
"""Sets of nodes to be tried in this order; an empty sequence says that there is no place."""
JobCapacity = Callable[[Job, Sequence[Task]], Verdict]
"""Whether the job's queue may have these tasks of it too."""
NodeCapacity = Callable[[Task, Job, Node], Verdict]
"""Whether the node may have the task too."""
CanReclaim = Callable[[Job], bool]
"""Whether the job may take places from other queues."""
VictimFilter = Callable[[Job, Job], bool]
"""Whether the first job, which waits, may take places from the second."""
Reclaimable = Callable[[Job, Job], str | None]
"""Why the first job, which waits, may not take places from the second; nothing if it may."""
SolutionStart = Callable[[], None]
ScenarioValidator = Callable[[Scenario], bool]
"""Whether a whole scenario is acceptable."""
QueueAmount = Callable[[Queue], float]
"""An amount of a queue, in units of tasks' size."""
BindRequestMutate = Callable[[Task, str], Mapping[str, str] | None]
"""What is sent along with the task to the node of this name."""
HttpHandler = Callable[[], object]
"""The answer to a GET, as JSON."""
EventFunction = Callable[[Event], None]
JobHook = Callable[[Job], None]


class Binder(Protocol):
    """The world outside, which a commit reaches."""

    @abstractmethod
    def commit(self, evictions: Sequence["Eviction"], bindings: Sequence["Binding"]) -> None:
        """Do all of it, or raise and do nothing."""


class Binding(NamedTuple):
    """A task that got a place."""

    task: Task
    node: Node
    gpu: Gpu | None
    attributes: Mapping[str, str]
    """What the plugins' ``bind_request_mutate`` functions give along."""


class Eviction(NamedTuple):
    """A task that loses its place."""

    task: Task
    node: Node
    reason: str

"""Small clusters, and a binder that records commits."""

from collections.abc import Callable, Sequence

from epp.flow_control.sessions import (
    Action,
    Binding,
    Cluster,
    DefaultPolicy,
    Dispatcher,
    Eviction,
    Explanations,
    Gpu,
    Job,
    Node,
    Queue,
    Session,
    SessionPlugin,
    Task,
    build_actions,
)
from epp.flow_control.sessions.contracts import PluginFault
from epp.flow_control.sessions.points import Timer, no_timer


class World:
    """A binder that records commits, or refuses them if ``refuses`` returns True."""

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}
        self.attributes: dict[str, dict[str, str]] = {}
        self.evicted: list[tuple[str, str]] = []
        self.commits = 0
        self.refuses: Callable[[], bool] = lambda: False

    def commit(self, evictions: Sequence[Eviction], bindings: Sequence[Binding]) -> None:
        if self.refuses():
            raise ConnectionError("nobody answers")
        self.commits += 1
        for eviction in evictions:
            self.evicted.append((eviction.task.name, eviction.reason))
            del self.bound[eviction.task.name]
        for binding in bindings:
            self.bound[binding.task.name] = binding.node.name
            self.attributes[binding.task.name] = dict(binding.attributes)


class Faults:
    """Records the faults of plugins."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def __call__(self, plugin: str, point: str, error: PluginFault) -> None:
        self.seen.append((plugin, point, str(error)))


class Plugin(SessionPlugin):
    """Registers functions of a test in each session."""

    def __init__(self, register: Callable[[Session], object], name: str = "test") -> None:
        self.name = name
        self._register = register

    def on_session_open(self, ssn: Session) -> None:
        self._register(ssn)


class Bench:
    """A cluster with a dispatcher."""

    def __init__(
        self,
        *plugins: SessionPlugin,
        actions: Sequence[str] = ("allocate",),
        nodes: Sequence[Node] = (),
        queues: Sequence[Queue] = (),
        policy: DefaultPolicy | None = None,
        timer: Timer = no_timer,
    ) -> None:
        self.cluster = Cluster()
        for queue in queues or [Queue("all")]:
            self.cluster.add_queue(queue)
        for node in nodes:
            self.cluster.add_node(node)
        self.world = World()
        self.faults = Faults()
        made: list[Action] = build_actions(actions)
        self.explanations = Explanations()
        self.dispatcher = Dispatcher(
            self.cluster,
            self.world,
            plugins=plugins,
            actions=made,
            fault=self.faults,
            policy=policy,
            timer=timer,
        )

    def job(self, name: str, *tasks: Task, queue: str = "", **said: object) -> Job:
        """Add a job; by default with one task of the same name."""
        where = self.cluster.queues[queue or next(iter(self.cluster.queues))]
        made = Job(name, queue=where, tasks=tasks or [Task(name)], **said)  # type: ignore[arg-type]
        self.cluster.add_job(made)
        return made

    def run(self) -> dict[str, str]:
        """Run a session; return the bound nodes by task."""
        self.explanations = self.dispatcher.run()
        return self.world.bound


def room(name: str, capacity: float = 1.0, **labels: str) -> Node:
    """Return a node with capacity for tasks of size 1."""
    return Node(name, labels=labels, capacity=capacity)


def gpus(name: str, count: int, *, used: float = 0.0, **labels: str) -> Node:
    """Return a node with GPUs that are partly used."""
    return Node(name, labels=labels, gpus=[Gpu(index, used=used) for index in range(count)])

"""Reads CLUSTER.yaml: queues, jobs and nodes of a session, its plugins and actions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from epp.config import ConfigError
from epp.config.document import Document, parse
from epp.config.errors import ConfigProblem, in_order
from epp.config.fault_texts import suggestion
from epp.config.structs import read
from epp.flow_control.sessions import (
    Cluster,
    Gpu,
    Job,
    Node,
    PluginSetting,
    Queue,
    Task,
    TaskStatus,
)
from epp.inputs import why_unreadable

DEFAULT_ACTIONS: Final = ("allocate", "reclaim", "preempt")

Name = Annotated[str, msgspec.Meta(min_length=1)]
_MOST = 1e15
"""The largest amount: floats are exact up to 9e15, so sums stay exact."""

Amount = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
Size = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]


class ClusterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rejects unknown fields; fields have the names of the object model."""


class QueueEntry(ClusterSection, frozen=True):
    """A queue."""

    name: Name
    parent: str = ""
    priority: int = 0
    deserved: Amount | None = None
    limit: Amount | None = None
    over_quota_weight: Amount = 1.0


class TaskEntry(ClusterSection, frozen=True):
    """A task; if ``node`` is set, it is already running."""

    name: Name
    namespace: Name = "default"
    requires_gpu: bool = False
    size: Size = 1.0
    labels: dict[str, str] = {}
    node: str = ""
    gpu: int | None = None


class JobEntry(ClusterSection, frozen=True):
    """A job."""

    name: Name
    queue: Name
    tasks: Annotated[list[TaskEntry], msgspec.Meta(min_length=1)]
    priority: int = 0
    min_available: Annotated[int, msgspec.Meta(ge=1)] = 1
    preemptible: bool | None = None


class GpuEntry(ClusterSection, frozen=True):
    """A GPU."""

    capacity: Size = 1.0
    used: Amount = 0.0


class NodeEntry(ClusterSection, frozen=True):
    """A node; without ``capacity`` there is no limit on tasks that need no GPU."""

    name: Name
    labels: dict[str, str] = {}
    capacity: Amount | None = None
    gpus: list[GpuEntry] = []


class ClusterPluginEntry(ClusterSection, frozen=True):
    """The configuration of a session plugin."""

    enabled: bool = True
    priority: int = 0
    arguments: dict[str, Any] = {}


class SessionsSection(ClusterSection, frozen=True):
    """The plugins by name, and the actions in order."""

    actions: tuple[str, ...] = DEFAULT_ACTIONS
    plugins: dict[str, ClusterPluginEntry] = {}


class ClusterEntry(ClusterSection, frozen=True):
    """The whole file."""

    queues: Annotated[list[QueueEntry], msgspec.Meta(min_length=1)]
    nodes: list[NodeEntry] = []
    jobs: list[JobEntry] = []
    sessions: SessionsSection = SessionsSection()


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """A cluster, and the actions and plugins of its sessions."""

    cluster: Cluster
    actions: tuple[str, ...]
    plugins: Mapping[str, PluginSetting]


def load_cluster(path: Path) -> ClusterFile:
    """Read a cluster file.

    Raises:
        ConfigError: The file cannot be read or is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the cluster file {path}: {why_unreadable(error)}"
        ) from error
    return read_cluster(text, str(path))


def read_cluster(text: str, source: str) -> ClusterFile:
    """Parse and check a cluster.

    Raises:
        ConfigError: The cluster is invalid; the error lists all problems in the order of the file.
    """
    document = parse(text)
    if not document.is_whole:
        raise ConfigError.of(source, document.problems)
    reading = read(document.root.value, ClusterEntry)
    problems = [
        *document.problems,
        *(document.problem(each.path, each.message, on_key=each.on_key) for each in reading.faults),
    ]
    if problems or reading.value is None:
        raise ConfigError.of(source, in_order(problems))
    builder = _ClusterBuilder(document)
    builder.add(reading.value)
    if builder.problems:
        raise ConfigError.of(source, in_order(builder.problems))
    sessions = reading.value.sessions
    plugins = {
        name: PluginSetting(entry.enabled, entry.priority, entry.arguments)
        for name, entry in sessions.plugins.items()
    }
    return ClusterFile(builder.cluster, sessions.actions, plugins)


class _ClusterBuilder:
    """Builds the cluster and collects inconsistencies."""

    def __init__(self, document: Document) -> None:
        self.cluster = Cluster()
        self.problems: list[ConfigProblem] = []
        self._document = document
        self._tasks: set[tuple[str, str]] = set()

    def add(self, file: ClusterEntry) -> None:
        for place, queue in enumerate(file.queues):
            self._add_queue(queue, f"queues[{place}]")
        for place, node in enumerate(file.nodes):
            self._add_node(node, f"nodes[{place}]")
        for place, job in enumerate(file.jobs):
            self._add_job(job, f"jobs[{place}]", age=float(place))

    def _add_queue(self, entry: QueueEntry, path: str) -> None:
        parent = self.cluster.queues.get(entry.parent)
        if entry.parent and parent is None:
            known = suggestion(entry.parent, self.cluster.queues, "queues before it")
            self._report(f"{path}.parent", f"there is no queue `{entry.parent}` before it; {known}")
            return
        made = Queue(
            entry.name,
            parent=parent,
            priority=entry.priority,
            deserved=entry.deserved,
            limit=entry.limit,
            over_quota_weight=entry.over_quota_weight,
            created=float(len(self.cluster.queues)),
        )
        try:
            self.cluster.add_queue(made)
        except ValueError as error:
            self._report(f"{path}.name", str(error))

    def _add_node(self, entry: NodeEntry, path: str) -> None:
        gpus = [
            Gpu(index, capacity=gpu.capacity, used=gpu.used) for index, gpu in enumerate(entry.gpus)
        ]
        try:
            self.cluster.add_node(
                Node(entry.name, labels=entry.labels, gpus=gpus, capacity=entry.capacity)
            )
        except ValueError as error:
            self._report(f"{path}.name", str(error))

    def _add_job(self, entry: JobEntry, path: str, age: float) -> None:
        queue = self.cluster.queues.get(entry.queue)
        if queue is None:
            known = suggestion(entry.queue, self.cluster.queues)
            self._report(f"{path}.queue", f"there is no queue `{entry.queue}`; {known}")
            return
        tasks = [
            Task(
                task.name,
                namespace=task.namespace,
                requires_gpu=task.requires_gpu,
                size=task.size,
                labels=task.labels,
                created=age,
            )
            for task in entry.tasks
        ]
        made = Job(
            entry.name,
            queue=queue,
            tasks=tasks,
            priority=entry.priority,
            min_available=entry.min_available,
            preemptible=entry.preemptible,
            created=age,
        )
        try:
            self.cluster.add_job(made)
        except ValueError as error:
            self._report(path, str(error))
        for place, (said, task) in enumerate(zip(entry.tasks, tasks, strict=True)):
            if task.uid in self._tasks:
                self._report(
                    f"{path}.tasks[{place}].name",
                    f"there are two tasks named {task.name!r} in namespace {task.namespace!r};"
                    " rename one",
                )
            self._tasks.add(task.uid)
            if said.node:
                self._place(said, task, f"{path}.tasks[{place}]")

    def _place(self, entry: TaskEntry, task: Task, path: str) -> None:
        node = self.cluster.nodes.get(entry.node)
        if node is None:
            known = suggestion(entry.node, self.cluster.nodes)
            self._report(f"{path}.node", f"there is no node `{entry.node}`; {known}")
            return
        gpu = None
        if task.requires_gpu:
            if entry.gpu is None or not 0 <= entry.gpu < len(node.gpus):
                self._report(
                    path,
                    f"the task runs on a GPU of node {node.name}: `gpu` must say which, from 0 to"
                    f" {len(node.gpus) - 1}",
                )
                return
            gpu = node.gpus[entry.gpu]
        refusal = node.unfit(task)
        if gpu is not None and not gpu.fits(task):
            refusal = f"GPU {gpu.index} of node {node.name} has no room for it"
        if refusal:
            self._report(f"{path}.node", refusal)
            return
        node.add(task, gpu)
        task.note_status(TaskStatus.RUNNING)

    def _report(self, path: str, message: str) -> None:
        self.problems.append(self._document.problem(path, message))

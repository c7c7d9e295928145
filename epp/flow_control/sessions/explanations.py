"""Why something did not happen in a session."""

from epp.flow_control.sessions.model import Job, Node, Task


class Explanations:
    """The reasons of one session; the last word on each job, task and node counts."""

    __slots__ = ("jobs", "nodes", "tasks", "victims")

    def __init__(self) -> None:
        self.jobs: dict[Job, str] = {}
        """Why a job was not placed."""
        self.tasks: dict[Task, str] = {}
        """Why a task could have no place on any node."""
        self.nodes: dict[Task, dict[str, str]] = {}
        """Why a task could have no place on a node, by the node's name."""

        self.victims: dict[Job, dict[str, str]] = {}
        """Why a job could not take the place of another, by the other's name."""

    def of_job(self, job: Job, reason: str) -> None:
        """Note why ``job`` was not placed."""
        self.jobs[job] = reason

    def of_task(self, task: Task, reason: str) -> None:
        """Note why ``task`` could have no place at all."""
        self.tasks[task] = reason

    def of_node(self, task: Task, node: Node, reason: str) -> None:
        """Note why ``task`` could have no place on ``node``."""
        self.nodes.setdefault(task, {})[node.name] = reason

    def of_victim(self, job: Job, victim: Job, reason: str) -> None:
        """Note why ``job`` may not take the place of ``victim``."""
        self.victims.setdefault(job, {})[victim.name] = reason

    def placed(self, task: Task) -> None:
        """Forget why ``task`` had no place: it has one."""
        self.tasks.pop(task, None)
        self.nodes.pop(task, None)

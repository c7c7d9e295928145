"""Why something did not happen in a session."""

from epp.flow_control.sessions.model import Job, Node, Task


class Explanations:
    """The reasons of one session; the last word on each job, task and node counts."""

    __slots__ = ("jobs", "nodes", "takings", "tasks", "unreached", "victims")

    def __init__(self) -> None:
        self.jobs: dict[Job, str] = {}
        """Why a job was not placed."""
        self.tasks: dict[Task, str] = {}
        """Why a task could have no place on any node."""
        self.nodes: dict[Task, dict[str, str]] = {}
        """Why a task could have no place on a node, by the node's name."""
        self.takings: dict[Job, str] = {}
        """Why a job may not take places from others, whoever they are."""
        self.unreached = "no action tried it in this session"
        """The reason of what was not tried."""
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

    def of_taking(self, job: Job, reason: str) -> None:
        """Note why ``job`` may not take places from others."""
        self.takings[job] = reason

    def failed(self, job: Job, attempt: "Explanations") -> None:
        """Note of an attempt to make room for ``job``, which is undone, what was not known."""
        if job in attempt.jobs:
            self.jobs.setdefault(job, attempt.jobs[job])
        for task in job.pending():
            if task in attempt.tasks:
                self.tasks.setdefault(task, attempt.tasks[task])
            if task in attempt.nodes:
                self.nodes.setdefault(task, attempt.nodes[task])
        if job in attempt.takings:
            self.takings[job] = attempt.takings[job]
        if job in attempt.victims:
            self.victims.setdefault(job, {}).update(attempt.victims[job])

    def of(self, job: Job) -> list[str]:
        """Return why ``job`` waits, each reason once; nothing if it was not tried."""
        reasons = [self.jobs.get(job, "")]
        for task in job.pending():
            reasons.append(self.tasks.get(task, ""))
            reasons += self.nodes.get(task, {}).values()
        reasons.append(self.takings.get(job, ""))
        reasons += self.victims.get(job, {}).values()
        return [reason for reason in dict.fromkeys(reasons) if reason]

    def placed(self, task: Task) -> None:
        """Forget why ``task`` had no place: it has one."""
        self.tasks.pop(task, None)
        self.nodes.pop(task, None)

    def forget(self, job: Job) -> None:
        """Forget a job that is gone, so that nothing here keeps it alive."""
        self.jobs.pop(job, None)
        self.takings.pop(job, None)
        self.victims.pop(job, None)
        for task in job.tasks:
            self.placed(task)

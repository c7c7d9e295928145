"""Why jobs were not placed in a session."""

from epp.flow_control.sessions.model import Job, Node, Task


class Explanations:
    """The reasons of one session; for each job, task and node the last one counts."""

    __slots__ = ("evictions", "jobs", "nodes", "tasks", "unreached", "victims")

    def __init__(self) -> None:
        self.jobs: dict[Job, str] = {}
        """Why a job was not placed."""
        self.tasks: dict[Task, str] = {}
        """Why a task could not be placed on any node."""
        self.nodes: dict[Task, dict[str, str]] = {}
        """Why a task could not be placed on a node, by the node's name."""
        self.evictions: dict[Job, str] = {}
        """Why a job may not evict any other job."""
        self.unreached = "no action tried it in this session"
        """The reason for jobs that were not tried."""
        self.victims: dict[Job, dict[str, str]] = {}
        """Why a job may not evict another, by the other's name."""

    def of_job(self, job: Job, reason: str) -> None:
        """Note why ``job`` was not placed."""
        self.jobs[job] = reason

    def of_task(self, task: Task, reason: str) -> None:
        """Note why ``task`` could not be placed on any node."""
        self.tasks[task] = reason

    def of_node(self, task: Task, node: Node, reason: str) -> None:
        """Note why ``task`` could not be placed on ``node``."""
        self.nodes.setdefault(task, {})[node.name] = reason

    def of_victim(self, job: Job, victim: Job, reason: str) -> None:
        """Note why ``job`` may not evict ``victim``."""
        self.victims.setdefault(job, {})[victim.name] = reason

    def of_evicting(self, job: Job, reason: str) -> None:
        """Note why ``job`` may not evict any other job."""
        self.evictions[job] = reason

    def failed(self, job: Job, attempt: "Explanations") -> None:
        """Add the reasons of a failed search for victims of ``job``."""
        if job in attempt.jobs:
            self.jobs.setdefault(job, attempt.jobs[job])
        for task in job.pending():
            if task in attempt.tasks:
                self.tasks.setdefault(task, attempt.tasks[task])
            if task in attempt.nodes:
                self.nodes.setdefault(task, attempt.nodes[task])
        if job in attempt.evictions:
            self.evictions[job] = attempt.evictions[job]
        if job in attempt.victims:
            self.victims.setdefault(job, {}).update(attempt.victims[job])

    def of(self, job: Job) -> list[str]:
        """Return why ``job`` waits, each reason once; none if it was not tried."""
        reasons = [self.jobs.get(job, "")]
        for task in job.pending():
            reasons.append(self.tasks.get(task, ""))
            reasons += self.nodes.get(task, {}).values()
        reasons.append(self.evictions.get(job, ""))
        reasons += self.victims.get(job, {}).values()
        return [reason for reason in dict.fromkeys(reasons) if reason]

    def placed(self, task: Task) -> None:
        """Drop the reasons of ``task``: it was placed."""
        self.tasks.pop(task, None)
        self.nodes.pop(task, None)

    def forget(self, job: Job) -> None:
        """Drop a job, so that no reference keeps it alive."""
        self.jobs.pop(job, None)
        self.evictions.pop(job, None)
        self.victims.pop(job, None)
        for task in job.tasks:
            self.placed(task)

"""Places the tasks of one job."""

from collections.abc import Sequence

from epp.flow_control.sessions.model import Gpu, Job, Node, Task
from epp.flow_control.sessions.session import Session
from epp.flow_control.sessions.statement import Statement


def place(session: Session, statement: Statement, job: Job) -> bool:
    """Place the next tasks of ``job``: as many as ``min_available`` lacks, or one.

    Returns:
        Whether they were placed; if not, ``statement`` is unchanged, and the session's explanations
        have the reasons.
    """
    session.placing(job)
    tasks = session.ordered_tasks(job.pending())[: job.next_count()]
    if refusal := session.refusal_of_job(job, tasks):
        session.explanations.of_job(job, refusal)
        return False
    checkpoint = statement.checkpoint()
    for nodes in session.subsets(job, tasks):
        for task in tasks:
            if not _place_task(session, statement, task, nodes):
                statement.rollback(checkpoint)
                break
        else:
            return True
    return False


def _place_task(session: Session, statement: Statement, task: Task, nodes: Sequence[Node]) -> bool:
    while node := session.best_node(task, nodes):
        gpu: Gpu | None = None
        if task.requires_gpu:
            gpu = session.best_gpu(task, node)
            if gpu is None:
                nodes = [other for other in nodes if other is not node]
                continue
        statement.allocate(task, node, gpu)
        session.explanations.placed(task)
        return True
    return False

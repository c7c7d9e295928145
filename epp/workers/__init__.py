"""Several processes of one host that behave as one endpoint picker (``epp serve --workers``).

The supervisor starts the workers and answers for them on the health and metrics ports. Each worker
is a complete endpoint picker on the ext_proc port. The workers share requests in flight, in shared
memory (:mod:`.flight_rows`); scrapes, in messages from the worker that leads (:mod:`.links`); and
the queues of flow control, which that worker owns (:mod:`.shared_flow`).
"""

from epp.workers.errors import WorkerError
from epp.workers.place import Place
from epp.workers.sharing import WorkerSharing
from epp.workers.suitability import check_workers
from epp.workers.supervisor import Supervisor
from epp.workers.worker import run_worker
from epp.workers.worker_metrics import LinksCollector, SupervisorMetrics

__all__ = [
    "LinksCollector",
    "Place",
    "Supervisor",
    "SupervisorMetrics",
    "WorkerError",
    "WorkerSharing",
    "check_workers",
    "run_worker",
]

"""Several processes of one host that behave as one endpoint picker (``epp serve --workers``).

The supervisor starts the workers and answers for them on the health and metrics ports. Each worker
is a whole endpoint picker on the ext_proc port. What they share: requests in flight, in shared
memory (:mod:`.flight_rows`); scrapes, by messages from the one that leads (:mod:`.links`); the
queues of flow control, which the same worker owns (:mod:`.shared_flow`).
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

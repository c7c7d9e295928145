"""What several workers cannot do together."""

from epp.kubernetes.source import PoolsSource
from epp.settings import ServeSettings
from epp.workers.errors import WorkerError


def check_workers(settings: ServeSettings) -> None:
    """Refuse settings that need one process.

    Flow control, which a reload may turn on, is refused with the configuration
    (:class:`~epp.graph_switch.GraphSwitch`).

    Raises:
        WorkerError: There are some.
    """
    why = ""
    if isinstance(settings.pods, PoolsSource):
        why = (
            "one process serves several pools; run one endpoint picker for each pool, with"
            " --pool-name"
        )
    elif settings.elects_leader and settings.pods is not None:
        why = (
            "--ha-enable-leader-election lets one process serve, and all workers do; turn it off,"
            " or leave --workers out"
        )
    elif settings.transport == "grpcio":
        why = "--transport grpcio cannot share its port; leave it out"
    if why:
        raise WorkerError(f"--workers {settings.workers}: {why}")

"""Checks for features that several workers cannot provide together."""

from collections.abc import Iterator

from epp.flow_control import FlowControlError, FlowSettings
from epp.kubernetes.source import PoolsSource
from epp.request_control.plugins import ResponseBodyStart, ResponseHeader
from epp.scheduling import StateKey
from epp.settings import ServeSettings
from epp.workers.errors import WorkerError


def check_workers(settings: ServeSettings) -> None:
    """Refuse settings that need one process.

    The configuration, which a reload may change, is checked by :func:`check_flow_control`.

    Raises:
        WorkerError: A setting needs one process.
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


def check_flow_control(settings: FlowSettings, workers: int) -> None:
    """Refuse plugins of flow control that must see the requests of all workers.

    The worker that owns the queues knows when a request of another worker is sent and ends, and how
    many tokens it uses, but neither its endpoint nor the results of data producers.

    Raises:
        FlowControlError: There is such a plugin.
    """
    why = next(_unsuitable(settings), "")
    if why:
        raise FlowControlError(
            f"flow control with --workers {workers}: {why}, and of another worker's requests it"
            " does not know that; remove it, or leave --workers out"
        )


def _unsuitable(settings: FlowSettings) -> Iterator[str]:
    for plugin in settings.plugins:
        yield (
            f"extensions.sessions: session plugin {plugin.name!r} decides where each request goes"
        )
    for action in settings.actions:
        if action != "allocate":
            yield f"extensions.sessions: action {action!r} decides by where each request is"
    for guard in settings.listeners:
        name = guard.plugin.name
        yield f"plugin {name!r} compares all endpoints for each request that waits"
    bands = (settings.default_band, settings.negative_band, *settings.bands.values())
    policies = (settings.detector.plugin, *(band.ordering.plugin for band in bands))
    for policy in policies:
        keys = [key for key in getattr(policy, "reads", ()) if isinstance(key, StateKey)]
        if keys:
            yield f"plugin {policy.name!r} reads {keys[0].name!r}, which a data producer computes"
    fairness = (band.fairness.plugin for band in bands)
    for policy in (*policies, settings.limits.plugin, *fairness):
        if isinstance(policy, ResponseHeader | ResponseBodyStart):
            yield f"plugin {policy.name!r} is called when each response begins"

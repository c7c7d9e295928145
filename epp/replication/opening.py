"""Creates the replica of a process from its settings."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from epp.replication.carrier import Carrier
from epp.replication.errors import ReplicaStateError
from epp.replication.replica import Replica
from epp.replication.settings import ReplicaSettings, SocketFolder, replica_state_of
from epp.replication.sockets import SocketCarrier


def open_replica(
    settings: ReplicaSettings,
    *,
    group: str,
    grpc_port: int,
    socket_file: Path | None,
    clock: Callable[[], float] = time.monotonic,
) -> Replica | None:
    """Return this process as a replica; None if it shares no state.

    Args:
        settings: The settings.
        group: Replicas of one group share their state, unless the URL names another group.
        grpc_port: The ext_proc port, 0 for any.
        socket_file: The ext_proc socket in place of the port.
        clock: The clock of the endpoints' loads, monotonic seconds.

    Raises:
        ReplicaStateError: The settings cannot be used.
    """
    if not settings.replica_state:
        return None
    name = settings.name_of(grpc_port=grpc_port, socket_file=socket_file)
    return Replica(
        name,
        _carrier(settings, name, group),
        lease_seconds=settings.replica_lease_seconds,
        clock=clock,
    )


def _carrier(settings: ReplicaSettings, name: str, group: str) -> Carrier:
    where = replica_state_of(settings.replica_state)
    if isinstance(where, SocketFolder):
        return SocketCarrier(where.path, name)
    try:
        from epp.replication.redis_channel import RedisCarrier  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise ReplicaStateError(
            "--replica-state: the client of Redis is not installed; pip install"
            " 'endpoint-picker[redis]'"
        ) from error
    return RedisCarrier(
        where,
        settings,
        name=name,
        group=where.group or group,
        rng=random.Random(),  # noqa: S311 - jitter
    )

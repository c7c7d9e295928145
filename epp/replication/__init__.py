"""Active-active replicas: endpoint pickers that share their state with one another."""

from epp.replication.carrier import Carrier, Inbox
from epp.replication.errors import ReplicaStateError, ReplicationError
from epp.replication.metrics import ReplicaCollector
from epp.replication.opening import open_replica
from epp.replication.pool_share import PoolShare
from epp.replication.replica import Replica
from epp.replication.settings import ReplicaSettings

__all__ = [
    "Carrier",
    "Inbox",
    "PoolShare",
    "Replica",
    "ReplicaCollector",
    "ReplicaSettings",
    "ReplicaStateError",
    "ReplicationError",
    "open_replica",
]

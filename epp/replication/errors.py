"""Errors of the exchange between replicas."""


class ReplicationError(Exception):
    """Root of the errors of this package."""


class ReplicaStateError(ReplicationError, ValueError):
    """The settings of ``--replica-state`` are invalid or cannot be used."""

"""Where the endpoints are in a cluster."""

from dataclasses import dataclass
from typing import Final

POOL_GROUP: Final = "inference.networking.k8s.io"
FORMER_POOL_GROUP: Final = "inference.networking.x-k8s.io"


@dataclass(frozen=True, slots=True)
class PoolRef:
    """The identity of a pool, within its namespace."""

    name: str
    group: str = POOL_GROUP


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Which pods are endpoints, and at which ports."""

    label_selector: str
    """As in the API; empty for all pods of the namespace."""
    ports: tuple[int, ...]
    """One for each rank of a pod, in order."""


@dataclass(frozen=True, slots=True)
class PodSource:
    """A pool, or a fixed selection of pods."""

    namespace: str
    pool: PoolRef | None = None
    selection: PodSelection | None = None
    """The pods, if there is no pool."""

"""The pools and pods of a cluster whose endpoints are served."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

POOL_GROUP: Final = "inference.networking.k8s.io"
FORMER_POOL_GROUP: Final = "inference.networking.x-k8s.io"

_MAX_TITLE: Final = 128
"""Characters of a title; it is part of the name of a Lease, which may have 253."""


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
class PoolsSource:
    """Several pools of a namespace."""

    namespace: str
    group: str = POOL_GROUP
    """API group of the pools."""
    names: tuple[str, ...] = ()
    """Their names; empty for all."""

    @property
    def title(self) -> str:
        """A name for all of them together: two sources with different pools have different ones."""
        if not self.names:
            return "all-pools"
        title = "-".join(sorted(self.names))
        if len(title) <= _MAX_TITLE:
            return title
        return f"{title[:_MAX_TITLE]}-{sha256(title.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class PodSource:
    """A pool, or a fixed selection of pods."""

    namespace: str
    pool: PoolRef | None = None
    selection: PodSelection | None = None
    """The pods, if there is no pool."""

"""InferencePools: which pods are the endpoints of a pool, and at which ports."""

from collections.abc import Mapping
from typing import Annotated, Final, Protocol

import msgspec

from epp.kubernetes.api import ObjectMeta, Resource
from epp.kubernetes.source import FORMER_POOL_GROUP, POOL_GROUP, PodSelection

_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class _PoolMeta(ObjectMeta, frozen=True, kw_only=True, rename="camel"):
    deletion_timestamp: str | None = None


class Pool(Protocol):
    """A pool, as one of the API groups has it."""

    @property
    def metadata(self) -> _PoolMeta:
        """Its metadata."""

    @property
    def app_protocol(self) -> str:
        """Protocol of its servers: ``http`` or ``kubernetes.io/h2c``."""

    def selection(self) -> PodSelection:
        """Return its pods."""


class _Selector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str]


class _TargetPort(msgspec.Struct, frozen=True):
    number: _Port


class _PoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    selector: _Selector
    target_ports: Annotated[tuple[_TargetPort, ...], msgspec.Meta(min_length=1)]
    app_protocol: str = "http"


class InferencePool(msgspec.Struct, frozen=True):
    """``inference.networking.k8s.io/v1``."""

    metadata: _PoolMeta
    spec: _PoolSpec

    @property
    def app_protocol(self) -> str:
        """Protocol of its servers."""
        return self.spec.app_protocol

    def selection(self) -> PodSelection:
        """Return its pods."""
        numbers = tuple(port.number for port in self.spec.target_ports)
        return PodSelection(_equals(self.spec.selector.match_labels), numbers)


class _FormerPoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    selector: dict[str, str]
    target_port_number: _Port


class FormerInferencePool(msgspec.Struct, frozen=True):
    """``inference.networking.x-k8s.io/v1alpha2``: one port, and no protocol."""

    metadata: _PoolMeta
    spec: _FormerPoolSpec

    @property
    def app_protocol(self) -> str:
        """Protocol of its servers."""
        return "http"

    def selection(self) -> PodSelection:
        """Return its pods."""
        return PodSelection(_equals(self.spec.selector), (self.spec.target_port_number,))


POOLS: Final[Mapping[str, tuple[Resource, type[InferencePool] | type[FormerInferencePool]]]] = {
    POOL_GROUP: (Resource(POOL_GROUP, "v1", "inferencepools", "InferencePool"), InferencePool),
    FORMER_POOL_GROUP: (
        Resource(FORMER_POOL_GROUP, "v1alpha2", "inferencepools", "InferencePool"),
        FormerInferencePool,
    ),
}
"""Where pools are read, and into what, by API group."""


def _equals(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))

"""InferencePools: which pods are the endpoints of a pool, and at which ports."""

from collections.abc import Mapping
from typing import Annotated, Final, Protocol

import msgspec

from epp.kubernetes.api import ObjectMeta, Resource
from epp.kubernetes.source import FORMER_POOL_GROUP, POOL_GROUP, PodSelection

_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


CONFIG_KEY: Final = "llm-d.ai/endpoint-picker-config"
"""Label or annotation of a pool: the name of its configuration."""
HOSTS_KEY: Final = "llm-d.ai/endpoint-picker-hosts"
"""Annotation of a pool: the hosts of its requests, separated by commas."""


class _Labels(msgspec.Struct, frozen=True):
    config: str = msgspec.field(name=CONFIG_KEY, default="")


class _Annotations(_Labels, frozen=True):
    hosts: str = msgspec.field(name=HOSTS_KEY, default="")


class _PoolMeta(ObjectMeta, frozen=True, kw_only=True, rename="camel"):
    deletion_timestamp: str | None = None
    labels: _Labels = _Labels()
    annotations: _Annotations = _Annotations()

    @property
    def config_name(self) -> str:
        """Name of the pool's configuration; "" if it names none."""
        return self.annotations.config or self.labels.config

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts of the pool's requests, in lower case."""
        found = (host.strip().lower() for host in self.annotations.hosts.split(","))
        return tuple(host for host in found if host)


class Pool(Protocol):
    """A pool, as one of the API groups has it."""

    @property
    def metadata(self) -> _PoolMeta:
        """Its metadata."""

    @property
    def app_protocol(self) -> str:
        """Protocol of its servers: ``http`` or ``kubernetes.io/h2c``; "" if it names none."""

    @property
    def service(self) -> str:
        """Name of the Service of its endpoint picker; "" if that is no Service."""

    def selection(self) -> PodSelection:
        """Return its pods."""


class _ServiceRef(msgspec.Struct, frozen=True):
    name: str = ""
    group: str = ""
    kind: str = "Service"

    @property
    def service(self) -> str:
        """Name of the Service; "" if it refers to something else."""
        return self.name if (self.group, self.kind) == ("", "Service") else ""


class _Selector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str]


class _TargetPort(msgspec.Struct, frozen=True):
    number: _Port


class _PoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    selector: _Selector
    target_ports: Annotated[tuple[_TargetPort, ...], msgspec.Meta(min_length=1)]
    app_protocol: str = "http"
    endpoint_picker_ref: _ServiceRef = _ServiceRef()


class InferencePool(msgspec.Struct, frozen=True):
    """``inference.networking.k8s.io/v1``."""

    metadata: _PoolMeta
    spec: _PoolSpec

    @property
    def app_protocol(self) -> str:
        """Protocol of its servers."""
        return self.spec.app_protocol

    @property
    def service(self) -> str:
        """Name of the Service of its endpoint picker."""
        return self.spec.endpoint_picker_ref.service

    def selection(self) -> PodSelection:
        """Return its pods."""
        numbers = tuple(port.number for port in self.spec.target_ports)
        return PodSelection(_equals(self.spec.selector.match_labels), numbers)


class _FormerPoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    selector: dict[str, str]
    target_port_number: _Port
    extension_ref: _ServiceRef = _ServiceRef()


class FormerInferencePool(msgspec.Struct, frozen=True):
    """``inference.networking.x-k8s.io/v1alpha2``: one port, and no protocol."""

    metadata: _PoolMeta
    spec: _FormerPoolSpec

    @property
    def app_protocol(self) -> str:
        """Empty: such a pool names none."""
        return ""

    @property
    def service(self) -> str:
        """Name of the Service of its endpoint picker."""
        return self.spec.extension_ref.service

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
"""The resource of pools and its Struct, by API group."""


def _equals(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))

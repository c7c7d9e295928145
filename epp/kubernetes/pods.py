"""Pods, and their endpoints: one for each port, if the pod is ready."""

import re
from collections.abc import Iterator, Mapping, Sequence
from sys import intern
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from epp.data_layer import EndpointSpec, join_address, share_labels
from epp.kubernetes.api import ObjectMeta, Resource

PODS: Final = Resource("", "v1", "pods", "Pod")

_PREFIX_NUMBER: Final = re.compile(r"\s*\+?(\d+)")
"""The Go EPP reads ``35903x`` as 35903."""


class _Annotations(msgspec.Struct, frozen=True, gc=False):
    active_ports: str | None = msgspec.field(name="llm-d.ai/active-ports", default=None)
    former_active_ports: str | None = msgspec.field(
        name="inference.networking.k8s.io/active-ports", default=None
    )


_NO_ANNOTATIONS: Final = _Annotations()


class _PodMeta(ObjectMeta, frozen=True, kw_only=True, rename="camel", gc=False):
    labels: Mapping[str, str] = {}
    annotations: _Annotations = _NO_ANNOTATIONS
    deletion_timestamp: str | None = None

    def __post_init__(self) -> None:
        # Values that pods have in common are kept once.
        force_setattr(self, "namespace", intern(self.namespace))
        force_setattr(self, "labels", share_labels(self.labels))
        if self.annotations == _NO_ANNOTATIONS:
            force_setattr(self, "annotations", _NO_ANNOTATIONS)


class _Condition(msgspec.Struct, frozen=True, gc=False):
    type: str
    status: str


_READY: Final = (_Condition("Ready", "True"),)


class _PodStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pod_ip: str = msgspec.field(name="podIP", default="")
    host_ip: str = msgspec.field(name="hostIP", default="")
    conditions: tuple[_Condition, ...] = ()

    def __post_init__(self) -> None:
        # Only one of them matters; the others would take half of the pod's memory.
        is_ready = _READY[0] in self.conditions
        force_setattr(self, "conditions", _READY if is_ready else ())
        force_setattr(self, "host_ip", intern(self.host_ip))


class Pod(msgspec.Struct, frozen=True, gc=False):
    """The part of a pod that its endpoints depend on; the rest is not decoded."""

    metadata: _PodMeta
    status: _PodStatus = _PodStatus()

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests: its condition ``Ready`` is True, and it is not ending.

        Unlike in the Go EPP, it also needs an IP address, without which nothing can be sent.
        """
        if self.metadata.deletion_timestamp is not None or not self.status.pod_ip:
            return False
        return bool(self.status.conditions)


def endpoints_of(pod: Pod, ports: Sequence[int]) -> Iterator[EndpointSpec]:
    """Yield the endpoints of a pod: one for each active port, none if it is not ready.

    Args:
        pod: The pod.
        ports: The pool's ports; the position of a port is the rank of its endpoint.
    """
    if not pod.is_ready:
        return
    meta, status = pod.metadata, pod.status
    active = _active_ports(meta.annotations)
    for rank, port in enumerate(ports):
        if active is None or port in active:
            yield EndpointSpec(
                f"{meta.namespace}/{meta.name}-rank-{rank}",
                join_address(status.pod_ip, port),
                meta.labels,
                incarnation=meta.uid,
                node_address=status.host_ip,
            )


def _active_ports(annotations: _Annotations) -> frozenset[int] | None:
    """Return the ports that an annotation names; None without one: all are active."""
    text = annotations.active_ports
    if text is None:
        text = annotations.former_active_ports
    if text is None:
        return None
    found = (_PREFIX_NUMBER.match(each) for each in text.split(","))
    return frozenset(int(match[1]) for match in found if match)

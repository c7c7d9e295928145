"""``topology-extractor``: reads the location of an endpoint from its labels and its pod.

Host, rack, zone and region are the values of the labels that ``hostname``, ``rack``, ``zone`` and
``region`` name. Without the label, the host is the node that the pod runs on (``spec.nodeName``);
the other levels are then unknown. The extractor writes them to the endpoint attribute
``Topology/NAME``, with the name of the extractor, and updates it when the labels or the pod change.
An endpoint of which no level is known has no such attribute.

It needs no entry under ``dataLayer``. The labels are those of the endpoint, as reported by
discovery. The defaults are labels of Kubernetes nodes, which must be copied to the pods. Pods are
read if the endpoints come from the Kubernetes API; otherwise there are labels only. With
``--compat=reference`` the host of a pod without the label is its ``spec.hostname``, as in the Go
EPP: a name of the pod itself, which other pods on the node do not have.

Reads:  ``endpoint.labels``; pods of the pool's namespace.
Writes: ``TOPOLOGY``, for ``topology-affinity-filter`` and ``topology-affinity-scorer``.
Example::

    plugins:
      - type: topology-extractor
        parameters: {rack: example.com/nvlink-domain}
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import msgspec

from epp.data_layer.plugins import EndpointListener, ObjectChange, ObjectEvent, ObjectListener
from epp.scheduling import AttributeKey, Endpoint
from epp_plugins.pods import POD
from epp_plugins.state_keys import Topology, topology_of


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``topology-extractor``; "" stands for the default."""

    hostname: str = "kubernetes.io/hostname"
    """Label that names the host."""
    rack: str = "topology.kubernetes.io/rack"
    """Label that names the rack."""
    zone: str = "topology.kubernetes.io/zone"
    """Label that names the zone."""
    region: str = "topology.kubernetes.io/region"
    """Label that names the region."""


_DEFAULTS = Params()
_UNKNOWN = Topology()
_RANK: Final = re.compile(r"-rank-\d+$")
"""Suffix that the name of an endpoint adds to that of its pod."""


class TopologyExtractor(EndpointListener, ObjectListener):
    """Writes the topology of endpoints.

    Args:
        name: The plugin's name.
        params: Its parameters.
        compat: ``reference`` for the Go EPP's host of pods without the label.
    """

    type: ClassVar[str] = "topology-extractor"
    object_kind = POD
    needs_objects: ClassVar[bool] = False

    def __init__(
        self, name: str, params: Params, *, compat: Literal["none", "reference"] = "none"
    ) -> None:
        self.name = name
        self._host = params.hostname or _DEFAULTS.hostname
        self._rack = params.rack or _DEFAULTS.rack
        self._zone = params.zone or _DEFAULTS.zone
        self._region = params.region or _DEFAULTS.region
        self._host_field = "hostname" if compat == "reference" else "nodeName"
        self.object_fields = (f"spec.{self._host_field}",)
        self._key = topology_of(name)
        self.writes: tuple[AttributeKey[Any], ...] = (self._key,)
        self._written: dict[Endpoint, Topology] = {}
        self._endpoints: dict[str, dict[Endpoint, None]] = {}
        """The endpoints of each pod, by its ``namespace/name``."""
        self._hosts: dict[str, tuple[str, str]] = {}
        """UID and host of each pod with a host, by its ``namespace/name``."""

    def endpoint_added(self, endpoint: Endpoint) -> None:
        self._endpoints.setdefault(_pod_name(endpoint), {})[endpoint] = None
        self._write(endpoint)

    def endpoint_changed(self, endpoint: Endpoint) -> None:
        self._write(endpoint)

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self._written.pop(endpoint, None)
        pod = _pod_name(endpoint)
        endpoints = self._endpoints.get(pod, {})
        endpoints.pop(endpoint, None)
        if not endpoints:
            self._endpoints.pop(pod, None)

    def object_changed(self, event: ObjectEvent) -> None:
        pod = f"{event.namespace}/{event.name}"
        host = event.object.get("spec", {}).get(self._host_field)
        if host and event.change is ObjectChange.UPDATED:
            self._hosts[pod] = event.uid, host
        else:
            self._hosts.pop(pod, None)
        for endpoint in self._endpoints.get(pod, ()):
            self._write(endpoint)

    def dump_state(self) -> Mapping[str, object]:
        return {
            "endpoints": sum(len(each) for each in self._endpoints.values()),
            "endpoints_with_topology": len(self._written),
            "pods_with_host": len(self._hosts),
        }

    def close(self) -> None:
        # After a reload, a new instance of the same name may have overwritten the attribute.
        for endpoint, topology in self._written.items():
            if endpoint.attributes.get(self._key) is topology:
                del endpoint.attributes[self._key]

    def _write(self, endpoint: Endpoint) -> None:
        label = endpoint.labels.get
        topology = Topology(
            label(self._host) or self._host_of_pod(endpoint),
            label(self._rack, ""),
            label(self._zone, ""),
            label(self._region, ""),
        )
        if topology == _UNKNOWN:
            self._written.pop(endpoint, None)
            endpoint.attributes.pop(self._key, None)
        else:
            self._written[endpoint] = endpoint.attributes[self._key] = topology

    def _host_of_pod(self, endpoint: Endpoint) -> str:
        uid, host = self._hosts.get(_pod_name(endpoint), ("", ""))
        # A pod that is recreated with the same name, as in a StatefulSet, may run elsewhere.
        is_same_pod = endpoint.incarnation in {"", uid}
        return host if is_same_pod else ""


def _pod_name(endpoint: Endpoint) -> str:
    """Return the ``namespace/name`` of the pod that an endpoint is a rank of."""
    return _RANK.sub("", endpoint.name)

"""``topology-extractor``: reads the location of an endpoint from its labels.

Host, rack, zone and region are the values of the labels that ``hostname``, ``rack``, ``zone`` and
``region`` name; without the label a level is unknown. The extractor writes them to the endpoint
attribute ``Topology/NAME``, with the name of the extractor, and updates it when labels change. An
endpoint without any of the four labels has no such attribute.

It needs no entry under ``dataLayer``. The labels are those of the endpoint, as reported by
discovery. The defaults are labels of Kubernetes nodes, which must be copied to the pods.

Reads:  ``endpoint.labels``.
Writes: ``TOPOLOGY``, for ``topology-affinity-filter`` and ``topology-affinity-scorer``.
Example::

    plugins:
      - type: topology-extractor
        parameters: {rack: example.com/nvlink-domain}
"""

from typing import Any, ClassVar

import msgspec

from epp.data_layer.plugins import EndpointListener
from epp.scheduling import AttributeKey, Endpoint
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


class TopologyExtractor(EndpointListener):
    """Writes the topology of endpoints."""

    type: ClassVar[str] = "topology-extractor"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._host = params.hostname or _DEFAULTS.hostname
        self._rack = params.rack or _DEFAULTS.rack
        self._zone = params.zone or _DEFAULTS.zone
        self._region = params.region or _DEFAULTS.region
        self._key = topology_of(name)
        self.writes: tuple[AttributeKey[Any], ...] = (self._key,)
        self._written: dict[Endpoint, Topology] = {}

    def endpoint_added(self, endpoint: Endpoint) -> None:
        label = endpoint.labels.get
        topology = Topology(
            label(self._host, ""),
            label(self._rack, ""),
            label(self._zone, ""),
            label(self._region, ""),
        )
        if topology == _UNKNOWN:
            self._written.pop(endpoint, None)
            endpoint.attributes.pop(self._key, None)
        else:
            self._written[endpoint] = endpoint.attributes[self._key] = topology

    def endpoint_changed(self, endpoint: Endpoint) -> None:
        self.endpoint_added(endpoint)

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self._written.pop(endpoint, None)

    def close(self) -> None:
        # After a reload, a new instance of the same name may have overwritten the attribute.
        for endpoint, topology in self._written.items():
            if endpoint.attributes.get(self._key) is topology:
                del endpoint.attributes[self._key]

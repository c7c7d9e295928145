"""``dcgm-data-source``: scrapes the DCGM exporter (GPU metrics) of each endpoint over HTTP.

It scrapes ``scheme://ADDRESS:port path``, where ADDRESS is the endpoint's IP address. The exporter
must run in the endpoint's pod, or on its node if the pod uses the host network. With ``port: 0``
the endpoint's own port is used. The other parameters are those of ``metrics-data-source``,
including ``interval`` and the certificates, which the Go EPP does not have. The servers' own
metrics are scraped as well, unless ``dataLayer.injectDefaults`` is off.

With ``useNodeAddress`` the exporter is scraped at the address of the endpoint's node, which only
discovery from the Kubernetes API knows. Other endpoints are scraped at their own address.

Example::

    plugins:
      - type: dcgm-data-source
        parameters: {interval: 1s}
      - type: dcgm-extractor
    dataLayer:
      sources:
        - pluginRef: dcgm-data-source
          extractors: [{pluginRef: dcgm-extractor}]
"""

from typing import ClassVar

from epp.data_layer.plugins import OpenPage, join_address
from epp.scheduling import Endpoint
from epp_plugins.data_sources.http_sources import HttpSource, MetricsParams, Port


class DcgmParams(MetricsParams, frozen=True):
    """Parameters of ``dcgm-data-source``."""

    port: Port = 9400
    """Port of the exporter; 0 for the endpoint's own."""
    use_node_address: bool = False
    """Whether the exporter is scraped at the address of the endpoint's node, if that is known."""

    def __post_init__(self) -> None:
        if self.use_node_address and not self.port:
            raise ValueError("useNodeAddress needs the exporter's port; remove `port: 0`")


class DcgmDataSource(HttpSource):
    """Scrapes the metrics page of a DCGM exporter."""

    type: ClassVar[str] = "dcgm-data-source"

    def __init__(self, name: str, params: DcgmParams, *, open_page: OpenPage) -> None:
        super().__init__(name, params, open_page=open_page)
        self._node_port = params.port if params.use_node_address else 0

    def address_of(self, endpoint: Endpoint) -> str:
        if self._node_port and endpoint.node_address:
            return join_address(endpoint.node_address, self._node_port)
        return super().address_of(endpoint)

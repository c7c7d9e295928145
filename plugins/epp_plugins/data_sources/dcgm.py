"""``dcgm-data-source``: the page of the DCGM exporter beside each endpoint, over HTTP.

GETs ``scheme://ADDRESS:port path``, ADDRESS being the endpoint's IP address: that is where an
exporter listens that runs in the endpoint's pod, or on its node if the pod uses the node's network.
``port`` 0 is the endpoint's own. All else is as in ``metrics-data-source``; ``interval`` and the
certificates are there too, unlike in the reference. The servers' own metrics are asked for besides,
unless ``dataLayer.injectDefaults`` is off.

``useNodeAddress`` (one exporter for all pods of a node) is refused: the address of an endpoint's
node is known to Kubernetes only, which endpoints do not come from here yet.

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

from epp.data_layer.plugins import OpenPage
from epp_plugins.data_sources.http_sources import HttpSource, MetricsParams, Port


class DcgmParams(MetricsParams, frozen=True):
    """Parameters of ``dcgm-data-source``."""

    port: Port = 9400
    """Port of the exporter; 0 for the endpoint's own."""
    use_node_address: bool = False
    """Whether the exporter is asked at the address of the endpoint's node: not supported yet."""

    def __post_init__(self) -> None:
        if self.use_node_address:
            raise ValueError(
                "useNodeAddress is not supported yet: the address of an endpoint's node is not"
                " known; leave it out, and run the exporter where the endpoint's own address"
                " reaches it, for example as a sidecar"
            )


class DcgmDataSource(HttpSource):
    """Asks for the metrics page of a DCGM exporter."""

    type: ClassVar[str] = "dcgm-data-source"

    def __init__(self, name: str, params: DcgmParams, *, open_page: OpenPage) -> None:
        super().__init__(name, params, open_page=open_page)

"""``dcgm-data-source``: the page of the DCGM exporter beside each endpoint, over HTTP.

GETs ``scheme://ADDRESS:port path``, ADDRESS being the endpoint's IP address: that is where an
exporter listens that runs in the endpoint's pod, or on its node if the pod uses the node's network.
``port`` 0 is the endpoint's own. All else is as in ``metrics-data-source``; ``interval`` and the
certificates are there too, unlike in the reference. The servers' own metrics are asked for besides,
unless ``dataLayer.injectDefaults`` is off.

With ``useNodeAddress`` one exporter is asked for all pods of a node. The address of an endpoint's
node is known to Kubernetes only; an endpoint without one is asked at its own address, as in the
reference, and a warning says so.

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

import structlog

from epp.data_layer.plugins import OpenPage
from epp_plugins.data_sources.http_sources import HttpSource, MetricsParams, Port

_log = structlog.get_logger(__name__)


class DcgmParams(MetricsParams, frozen=True):
    """Parameters of ``dcgm-data-source``."""

    port: Port = 9400
    """Port of the exporter; 0 for the endpoint's own."""
    use_node_address: bool = False
    """Whether the exporter is asked at the address of the endpoint's node, if that is known."""

    def __post_init__(self) -> None:
        if self.use_node_address and not self.port:
            raise ValueError("useNodeAddress needs the exporter's port; leave `port: 0` out")


class DcgmDataSource(HttpSource):
    """Asks for the metrics page of a DCGM exporter."""

    type: ClassVar[str] = "dcgm-data-source"

    def __init__(self, name: str, params: DcgmParams, *, open_page: OpenPage) -> None:
        super().__init__(name, params, open_page=open_page)
        if params.use_node_address:
            _log.warning(
                "addresses of nodes are not known, endpoints are asked at their own", plugin=name
            )

"""``dcgm-data-source``: scrapes the DCGM exporter (GPU metrics) of each endpoint over HTTP.

It scrapes ``scheme://ADDRESS:port path``, where ADDRESS is the endpoint's IP address. The exporter
must run in the endpoint's pod, or on its node if the pod uses the host network. With ``port: 0``
the endpoint's own port is used. The other parameters are those of ``metrics-data-source``,
including ``interval`` and the certificates, which the Go EPP does not have. The servers' own
metrics are scraped as well, unless ``dataLayer.injectDefaults`` is off.

With ``useNodeAddress`` the Go EPP scrapes one exporter per node. Only Kubernetes knows the
addresses of nodes; here each endpoint is scraped at its own address, as in the Go EPP if the
node is unknown, and a warning is logged.

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
    """Whether the exporter is scraped at the address of the endpoint's node, if that is known."""

    def __post_init__(self) -> None:
        if self.use_node_address and not self.port:
            raise ValueError("useNodeAddress needs the exporter's port; remove `port: 0`")


class DcgmDataSource(HttpSource):
    """Scrapes the metrics page of a DCGM exporter."""

    type: ClassVar[str] = "dcgm-data-source"

    def __init__(self, name: str, params: DcgmParams, *, open_page: OpenPage) -> None:
        super().__init__(name, params, open_page=open_page)
        if params.use_node_address:
            _log.warning(
                "node addresses are unknown, endpoint addresses are used instead", plugin=name
            )

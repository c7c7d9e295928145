"""``multicluster-file-discovery``: reads the clusters of the pool from a file.

An endpoint is a cluster: ``address`` and ``port`` are those of its gateway. There are
two differences from ``file-discovery``. ``address`` may be a host name (RFC 1123); it is passed
unchanged to the gateway in front of this EPP, which must support host names: Envoy's ORIGINAL_DST
clusters accept only IP addresses. Two labels locate a cluster's own metrics, if they are not served
at its gateway::

    endpoints:
      - name: east
        address: gateway.east.example.com
        port: 443
        labels:
          metricsAddress: 10.1.0.9      # host name or IP address
          metricsPort: "9090"           # the endpoint's own port without it

Without ``metricsAddress`` the label ``metricsPort`` has no effect. The Go EPP does not specify
the effect of an invalid label; here a ``metricsAddress`` that is not a host, or a ``metricsPort``
that is not a port, makes the file invalid.

Example::

    plugins:
      - type: multicluster-file-discovery
        parameters:
          path: /etc/epp/clusters.yaml
    dataLayer:
      discovery: {pluginRef: multicluster-file-discovery}
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import ClassVar, Final

from epp.data_layer.plugins import join_address, split_address
from epp_plugins.data_sources.endpoints_file import EntryRules, is_host_name
from epp_plugins.data_sources.file_discovery import FileDiscovery

ADDRESS_LABEL: Final = "metricsAddress"
PORT_LABEL: Final = "metricsPort"


def metrics_address(address: str, labels: Mapping[str, str]) -> str | None:
    """Return the metrics address in the labels of a cluster, as ``host:port``, or None.

    Args:
        address: ``host:port`` of the cluster's gateway.
        labels: Labels of the cluster.

    Raises:
        ValueError: A label is not a valid host or port.
    """
    host = labels.get(ADDRESS_LABEL)
    if not host:
        return None
    if not (is_host_name(host) or _is_ip(host)):
        raise ValueError(f"{ADDRESS_LABEL} {host!r} is not an IP address or a host name")
    port = labels.get(PORT_LABEL)
    if not port:
        return join_address(host, split_address(address)[1])
    try:
        return join_address(*split_address(f"{join_address(host, 1)[:-2]}:{port}"))
    except ValueError as error:
        raise ValueError(f"{PORT_LABEL}: {error}") from None


def _is_ip(text: str) -> bool:
    try:
        return "%" not in text and bool(ip_address(text))
    except ValueError:
        return False


class MulticlusterFileDiscovery(FileDiscovery):
    """Reads the clusters of the pool from a file."""

    type: ClassVar[str] = "multicluster-file-discovery"
    rules: ClassVar[EntryRules] = EntryRules(takes_names=True, check=metrics_address)

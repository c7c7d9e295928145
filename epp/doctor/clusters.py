"""Properties of Envoy clusters: how hosts are found, and which protocol is used."""

from epp.doctor.names import DESTINATION
from epp.doctor.tree import ConfigNode

_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_OVERRIDE_HOST = "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost"
_API = "type.googleapis.com"

HTTP2_OPTIONS = {
    _HTTP_OPTIONS: {
        "@type": f"{_API}/{_HTTP_OPTIONS}",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}
"""Value of ``typed_extension_protocol_options`` of a cluster that speaks HTTP/2."""

_ROUND_ROBIN_TYPE = "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"
ROUND_ROBIN = {
    "policies": [
        {
            "typed_extension_config": {
                "name": "envoy.load_balancing_policies.round_robin",
                "typed_config": {"@type": f"{_API}/{_ROUND_ROBIN_TYPE}"},
            }
        }
    ]
}
"""Value of ``fallback_policy``."""

_CLUSTER_TYPES = ("STATIC", "STRICT_DNS", "LOGICAL_DNS", "EDS", "ORIGINAL_DST")


def is_original_dst(cluster: ConfigNode) -> bool:
    """Whether the cluster has the type ORIGINAL_DST."""
    if cluster.get("cluster_type"):
        return cluster.get("cluster_type", "name").text() == "envoy.cluster.original_dst"
    return cluster.get("type").choice(*_CLUSTER_TYPES) == "ORIGINAL_DST"


def original_dst_options(cluster: ConfigNode) -> ConfigNode:
    """Return an ORIGINAL_DST cluster's options, in the form of either API."""
    extension = cluster.get("cluster_type")
    if extension:
        return extension.typed_config().unwrapped()
    return cluster.get("original_dst_lb_config")


def override_host(cluster: ConfigNode) -> ConfigNode:
    """Return the cluster's override_host policy; absent if it has another policy."""
    for policy in cluster.get("load_balancing_policy", "policies").items():
        config = policy.get("typed_extension_config").typed_config()
        if config.type_name() == _OVERRIDE_HOST:
            return config.unwrapped()
    return ConfigNode(None, cluster.get("load_balancing_policy").path)


def reads_header(pool: ConfigNode) -> bool:
    """Whether a cluster takes the destination from the request's header."""
    if is_original_dst(pool):
        options = original_dst_options(pool)
        named = options.get("http_header_name").text().lower()
        return options.get("use_http_header").flag() and named == DESTINATION
    sources = override_host(pool).get("override_host_sources").items()
    return any(each.get("header").text().lower() == DESTINATION for each in sources)


def protocol_options(cluster: ConfigNode) -> ConfigNode:
    """Return the cluster's HttpProtocolOptions, possibly absent."""
    return cluster.get("typed_extension_protocol_options", _HTTP_OPTIONS).unwrapped()


def speaks_http2(cluster: ConfigNode) -> bool:
    """Whether Envoy always uses HTTP/2 with the cluster, whatever the client uses."""
    options = protocol_options(cluster)
    if options.get("auto_config"):  # needs ALPN, which plaintext lacks
        return is_tls(cluster)
    explicit = options.get("explicit_http_config")
    return bool(explicit.get("http2_protocol_options") or cluster.get("http2_protocol_options"))


def is_tls(cluster: ConfigNode) -> bool:
    """Whether a cluster has a transport socket other than plaintext."""
    socket = cluster.get("transport_socket")
    name = socket.get("name").text() if socket else ""
    return bool(socket or cluster.get("transport_socket_matches")) and "raw_buffer" not in name

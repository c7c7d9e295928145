"""Names that the gateway, the endpoint picker and whoever reads the counters agree on.

The destination names are those of the endpoint picker protocol (GIE proposal 004).
"""

DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Request header and metadata key with the picked endpoints, best first."""

DESTINATION_NAMESPACE = "envoy.lb"
"""Metadata namespace of the destination."""

SERVED_KEY = "x-gateway-destination-endpoint-served"
"""Metadata key, in the same namespace, with the endpoint that answered."""

STEERING_HEADERS = (
    DESTINATION_HEADER,
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
)
"""Headers that name servers, to the gateway or to the sidecar of a model server: only the endpoint
picker may set them, so the gateway takes a client's off. With fail-open nobody else would."""

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
"""Metadata namespace of the subset of endpoints to choose from."""

EPP_CLUSTER = "epp"
EPP_LARGE_REQUESTS_CLUSTER = "epp-large-requests"
"""The same address as `EPP_CLUSTER`, reached over other connections."""
MODEL_SERVERS_CLUSTER = "model-servers"
LISTENER = "gateway"

SERVED_HEADER = "x-gateway-served-by"
"""Response header that carries the endpoint which answered from the route to the metadata, where no
load balancer notes it; it is taken off on the way."""

STAT_PREFIX = "gateway"
"""Counters of the listener's HTTP side begin with `http.gateway.`."""

EXT_PROC_STATS = f"http.{STAT_PREFIX}.ext_proc."
"""Prefix of the ext_proc filter's counters; `streams_failed`, `spurious_msgs_received` and
`rejected_header_mutations` stay 0 in a sound set-up."""

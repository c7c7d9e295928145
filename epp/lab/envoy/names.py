"""Names shared by the gateway, the endpoint picker and readers of Envoy's counters.

The destination names are those of the endpoint picker protocol (GIE proposal 004).
"""

DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Request header and metadata key with the picked endpoints, best first."""

DESTINATION_NAMESPACE = "envoy.lb"
"""Metadata namespace of the destination."""

SERVED_KEY = "x-gateway-destination-endpoint-served"
"""Metadata key, in the same namespace, with the endpoint that served the request."""

STEERING_HEADERS = (
    DESTINATION_HEADER,
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
)
"""Headers that tell the gateway or a model server's sidecar which servers to call. Only the
endpoint picker may set them, so the gateway removes those of a client. The endpoint picker cannot
do that when the gateway fails open."""

POOL = "x-gateway-inference-pool"
"""gRPC metadata with the InferencePool of a gateway's requests."""
HEDGING = "x-gateway-hedging"
"""gRPC metadata of a gateway in which the endpoint picker may set the headers for hedging."""

MAX_DESTINATIONS = "x-gateway-max-destination-endpoints"
"""gRPC metadata of ext_proc streams: how many endpoints the gateway can use for one request."""

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
"""Metadata namespace of the subset of endpoints that may be picked."""

EPP_CLUSTER = "epp"
EPP_LARGE_REQUESTS_CLUSTER = "epp-large-requests"
"""Has the same address as `EPP_CLUSTER`, but separate connections."""
MODEL_SERVERS_CLUSTER = "model-servers"
LISTENER = "gateway"

EXT_PROC_FILTER = "envoy.filters.http.ext_proc"
"""Name of the filter in a bootstrap, and of the object in the filter state with its times."""

RESPONSE_DETAILS = "response.code_details"
"""Attribute of a response that says whether Envoy made it itself, and why."""

SERVED_ADDRESS = "upstream.address"
"""Attribute of a response with the endpoint that served the request; while a gateway hedges, the
metadata has the last endpoint that it tried."""

SERVED_HEADER = "x-gateway-served-by"
"""Response header in which the route passes the endpoint that served the request to a filter, which
moves it to the metadata; used if no load-balancing policy writes the metadata."""

STAT_PREFIX = "gateway"
"""The names of the connection manager's counters begin with `http.gateway.`."""

EXT_PROC_STATS = f"http.{STAT_PREFIX}.ext_proc."
"""Prefix of the ext_proc filter's counters; `streams_failed`, `spurious_msgs_received` and
`rejected_header_mutations` are 0 in a correct setup."""

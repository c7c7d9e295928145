"""Names of the endpoint picker protocol (GIE proposal 004) and of the stages' sidecar headers."""

DESTINATION = "x-gateway-destination-endpoint"
"""Request header and metadata key with the picked endpoints."""

NAMESPACE = "envoy.lb"
"""Metadata namespace of the destination and of the endpoint that served."""

SUBSET_NAMESPACE = "envoy.lb.subset_hint"

STAGE_HEADERS = (
    "x-data-parallel-host-port",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
    "x-prefiller-host-port",
)
"""By these the EPP tells a model server's sidecar which other servers to call."""

"""Headers and metadata of the endpoint picker protocol (GIE proposal 004) and of sidecars."""

DESTINATION = "x-gateway-destination-endpoint"
"""Request header and metadata key that hold the picked endpoints."""

MAX_DESTINATIONS = "x-gateway-max-destination-endpoints"
"""gRPC metadata with the number of endpoints that Envoy can use for a request."""

NAMESPACE = "envoy.lb"
"""Metadata namespace of the destination and of the endpoint that served."""

SUBSET_NAMESPACE = "envoy.lb.subset_hint"

STAGE_HEADERS = (
    "x-data-parallel-host-port",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
    "x-prefiller-host-port",
)
"""Headers in which the EPP names the servers that a model server's sidecar calls."""

POLICY_HEADERS = (
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-llm-d-model-name-rewrite",
    "x-gateway-model-name-rewrite",
    "x-llm-d-request-ttl-ms",
)
"""Headers in which a request sets its priority, flow, model and queue timeout."""

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

READINESS_SERVICES = ("", "readiness", EXT_PROC_SERVICE, "inference-extension")
"""Services of the EPP's gRPC health server that are SERVING while it is ready."""

HEALTH_PORT = 9003
"""Default port of the EPP's gRPC health server, which speaks plaintext."""

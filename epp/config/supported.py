"""Names of the reference that mean something here though no plugin of ours has them.

A plugin type that is registered is looked up first, so a type leaves these tables by being built.
"""

from collections.abc import Mapping
from typing import Final

OPENAI_PARSER: Final = "openai-parser"
"""The parser that is built in; an entry of ``plugins`` for it is allowed and builds nothing."""

DEFAULT_DETECTOR: Final = "utilization-detector"
"""The saturation detector that needs no entry in ``plugins``."""

DEFAULT_POLICIES: Final = frozenset(
    {
        "fcfs-ordering-policy",
        "global-strict-fairness-policy",
        "static-usage-limit-policy",
    }
)
"""The flow-control policies that need no entry in ``plugins``."""

FEATURE_GATES: Final[Mapping[str, bool]] = {
    "flowControl": False,
    "haPopulateNonLeaderDatastore": True,
}
"""Every feature gate with its default."""

OLD_TYPES: Final[Mapping[str, str]] = {
    "by-label-selector": "label-selector-filter",
    "tokenizer": "token-producer",
}
"""Plugin types under their deprecated names."""

PARSERS_NOT_YET: Final = frozenset(
    {
        "anthropic-parser",
        "passthrough-parser",
        "sglanghttp-parser",
        "vertexai-parser",
        "vllmgrpc-parser",
        "vllmhttp-parser",
    }
)

NOT_SUPPORTED_YET: Final = PARSERS_NOT_YET | {
    # filters
    "context-length-aware",
    "endpoint-attribute-filter",
    "header-based-testing-filter",
    "multicluster-session-affinity-filter",
    "prefix-cache-affinity-filter",
    "session-affinity-filter",
    "slo-headroom-tier-filter",
    "topology-affinity-filter",
    "utilization-filter",
    # scorers
    "active-request-scorer",
    "endpoint-attribute-scorer",
    "header-label-affinity-scorer",
    "latency-scorer",
    "load-aware-scorer",
    "mm-embeddings-cache-scorer",
    "multicluster-kv-cache-utilization-scorer",
    "multicluster-prefix-cache-scorer",
    "multicluster-queue-scorer",
    "no-hit-lru-scorer",
    "precise-prefix-cache-scorer",
    "session-affinity-scorer",
    "token-load-scorer",
    "topology-affinity-scorer",
    # profile handlers and what they ask
    "always-disagg-multimodal-decider",
    "always-disagg-pd-decider",
    "data-parallel-profile-handler",
    "disagg-headers-handler",
    "disagg-profile-handler",
    "pd-profile-handler",
    "prefill-header-handler",
    "prefix-based-pd-decider",
    # data producers
    "agent-identity",
    "burst-prefix-cache-producer",
    "inflight-load-producer",
    "mm-embeddings-cache-producer",
    "multicluster-approx-prefix-cache-producer",
    "p2p-source-producer",
    "precise-prefix-cache-producer",
    "predicted-latency-producer",
    "session-id-producer",
    # admitters, screeners, reporters
    "destination-endpoint-served-verifier",
    "disaggregatedset-rollout-screener",
    "latency-slo-admitter",
    "probabilistic-admitter",
    "request-attribute-reporter",
    # data layer
    "dcgm-data-source",
    "dcgm-extractor",
    "endpoint-notification-source",
    "k8s-notification-source",
    "multicluster-file-discovery",
    "multicluster-metrics-data-source",
    "multicluster-metrics-extractor",
    "topology-extractor",
    # flow control
    "concurrency-detector",
    "edf-ordering-policy",
    "fcfs-ordering-policy",
    "global-strict-fairness-policy",
    "priority-holdback-policy",
    "priority-then-time-eviction-order-policy",
    "program-aware-fairness",
    "round-robin-fairness-policy",
    "sheddable-eviction-filter",
    "slo-deadline-ordering-policy",
    "soft-reflective-ceiling-policy",
    "static-usage-limit-policy",
    "utilization-detector",
}
"""Plugin types of the reference that do not exist here yet."""


def unsupported_type(plugin_type: str) -> str | None:
    """Return why a plugin type that is not registered is refused by name; None if unknown."""
    if plugin_type in NOT_SUPPORTED_YET:
        return f"plugin type `{plugin_type}` is not supported yet; remove what uses it"
    return None

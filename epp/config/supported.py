"""Tables of names from the Go EPP: defaults, feature gates, renamed and unsupported plugin types.

Registered plugin types take precedence over these tables.
"""

from collections.abc import Mapping
from typing import Final

DEFAULT_PARSERS: Final = (
    "openai-parser",
    "anthropic-parser",
    "vllmhttp-parser",
    "passthrough-parser",
)
"""The parsers if a configuration lists none."""

DEFAULT_DETECTOR: Final = "utilization-detector"
"""The saturation detector that needs no entry in ``plugins``."""

DEFAULT_MEMBERS: Final = frozenset(
    {
        DEFAULT_DETECTOR,
        "max-score-picker",
        "single-profile-handler",
    }
)
"""Default plugins, which a profile may name without an entry in ``plugins``."""

DEFAULT_POLICIES: Final = frozenset(
    {
        "fcfs-ordering-policy",
        "global-strict-fairness-policy",
        "static-usage-limit-policy",
    }
)
"""The flow-control policies that need no entry in ``plugins``."""

DEFAULT_EVICTION_POLICIES: Final = frozenset(
    {"priority-then-time-eviction-order-policy", "sheddable-eviction-filter"}
)
"""The eviction policies that need no entry in ``plugins``."""

FEATURE_GATES: Final[Mapping[str, bool]] = {
    "flowControl": False,
    "haPopulateNonLeaderDatastore": True,
}
"""Every feature gate with its default."""

OLD_TYPES: Final[Mapping[str, str]] = {
    "by-label-selector": "label-selector-filter",
    "prefill-header-handler": "disagg-headers-handler",
    "tokenizer": "token-producer",
}
"""Deprecated names of plugin types, with the current name."""

DEPRECATED_TYPES: Final[Mapping[str, str]] = {
    "by-label": "use `label-selector-filter`",
    "data-parallel-profile-handler": "gateways can send to several ports of an address themselves",
    "disagg-headers-handler": "`disagg-profile-handler` sets the headers itself",
    "pd-profile-handler": "use `disagg-profile-handler`",
}
"""Plugin types that the Go EPP has deprecated, and what to do instead."""

NOT_SUPPORTED_YET: Final = frozenset(
    {
        # filters
        "slo-headroom-tier-filter",
        # scorers
        "latency-scorer",
        "precise-prefix-cache-scorer",
        # data producers
        "p2p-source-producer",
        "precise-prefix-cache-producer",
        "predicted-latency-producer",
        # its newer releases
        "models-responder",
        "multicluster-topology-scorer",
        "outlen-bucket",
        "thunder-agent",
    }
)
"""Plugin types of the Go EPP that are not implemented yet."""

REFERENCE_RELEASE: Final = "v0.10 of the Go EPP"
"""The release that this endpoint picker follows."""

NEWER_TYPES: Final = frozenset(
    {
        "header-phase-profile-handler",
        "latency-observation-scorer-hub",
        "latency-observer-producer-hub",
        "lmetric-scorer",
    }
)
"""Plugin types of releases newer than :data:`REFERENCE_RELEASE`."""

TYPES_WITHOUT_PARAMETERS: Final = frozenset(
    {
        # filters
        "decode-filter",
        "encode-filter",
        "header-based-testing-filter",
        "prefill-filter",
        # scorers
        "kv-cache-utilization-scorer",
        "lora-affinity-scorer",
        "multicluster-kv-cache-utilization-scorer",
        "multicluster-queue-scorer",
        "queue-scorer",
        "running-requests-size-scorer",
        # profile handler and deciders
        "always-disagg-multimodal-decider",
        "always-disagg-pd-decider",
        "single-profile-handler",
        # parsers
        "anthropic-parser",
        "openai-parser",
        "passthrough-parser",
        "sglanghttp-parser",
        "vertexai-parser",
        "vllmgrpc-parser",
        "vllmhttp-parser",
        # data layer and reporter
        "destination-endpoint-served-verifier",
        "dcgm-extractor",
        "endpoint-notification-source",
        "models-data-extractor",
        # flow control
        "edf-ordering-policy",
        "fcfs-ordering-policy",
        "global-strict-fairness-policy",
        "priority-then-time-eviction-order-policy",
        "round-robin-fairness-policy",
        "sheddable-eviction-filter",
        "slo-deadline-ordering-policy",
    }
)
"""Plugin types without parameters, of which the Go EPP ignores any. Its other types refuse unknown
ones."""

ALPHA_TYPES: Final = frozenset(
    {
        "agent-identity",
        "burst-prefix-cache-producer",
        "dcgm-data-source",
        "dcgm-extractor",
        "disaggregatedset-rollout-screener",
        "endpoint-attribute-filter",
        "endpoint-attribute-scorer",
        "header-label-affinity-scorer",
        "header-profile-handler",
        "multicluster-approx-prefix-cache-producer",
        "multicluster-file-discovery",
        "multicluster-kv-cache-utilization-scorer",
        "multicluster-metrics-data-source",
        "multicluster-metrics-extractor",
        "multicluster-prefix-cache-scorer",
        "multicluster-queue-scorer",
        "multicluster-session-affinity-filter",
        "p2p-source-producer",
        "priority-holdback-policy",
        "priority-then-time-eviction-order-policy",
        "session-affinity-filter",
        "session-affinity-scorer",
        "sheddable-eviction-filter",
        "soft-reflective-ceiling-policy",
        "topology-affinity-filter",
        "topology-affinity-scorer",
        "topology-extractor",
        "utilization-filter",
    }
)
"""Plugin types that the Go EPP accepts only with ``--allow-experimental-plugins``."""


def unsupported_type(plugin_type: str) -> str | None:
    """Return why an unregistered plugin type is not supported; None if it is unknown."""
    if plugin_type in NOT_SUPPORTED_YET:
        return f"plugin type `{plugin_type}` is not supported yet; remove what uses it"
    if plugin_type in NEWER_TYPES:
        return f"plugin type `{plugin_type}` is {newer()}; remove what uses it"
    return None


def newer() -> str:
    """Return the predicate of a message about a name of a newer release."""
    return f"newer than {REFERENCE_RELEASE}, which this endpoint picker follows"

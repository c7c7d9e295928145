"""Flow control configurations of the runs: slots per endpoint, and tenants' weights."""

from collections.abc import Mapping

import yaml


def config(
    *,
    slots_per_endpoint: int,
    weights: Mapping[str, float] | None = None,
    floor_share: float = 0.05,
    ttl: str = "0s",
) -> str:
    """Return a configuration.

    Args:
        slots_per_endpoint: Requests in flight at which an endpoint is full.
        weights: Weights of tenants for ``proportion-fairness-policy``; None for the default policy.
        floor_share: Floor share of every band.
        ttl: Maximum waiting time of a request; 0s for no limit.
    """
    plugins: list[dict[str, object]] = [
        {"type": "concurrency-detector", "parameters": {"maxConcurrency": slots_per_endpoint}},
        {"type": "queue-scorer"},
        {"type": "kv-cache-utilization-scorer"},
        {"type": "prefix-cache-scorer"},
        {"type": "metrics-data-source"},
        {"type": "core-metrics-extractor"},
    ]
    band: dict[str, str] = {}
    if weights is not None:
        queues = [{"name": name, "overQuotaWeight": weight} for name, weight in weights.items()]
        fairness = "proportion-fairness-policy"
        plugins.append({"type": fairness, "parameters": {"queues": queues}})
        band["fairnessPolicyRef"] = fairness
    document = {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "featureGates": ["flowControl"],
        "plugins": plugins,
        "schedulingProfiles": [
            {
                "name": "default",
                "plugins": [
                    {"pluginRef": "queue-scorer", "weight": 2},
                    {"pluginRef": "kv-cache-utilization-scorer", "weight": 2},
                    {"pluginRef": "prefix-cache-scorer", "weight": 3},
                ],
            }
        ],
        "dataLayer": {
            "sources": [
                {
                    "pluginRef": "metrics-data-source",
                    "extractors": [{"pluginRef": "core-metrics-extractor"}],
                }
            ]
        },
        "flowControl": {
            "defaultRequestTTL": ttl,
            "defaultPriorityBand": band,
            "saturationDetector": {"pluginRef": "concurrency-detector"},
        },
        "extensions": {"flowControl": {"floorShare": floor_share}},
    }
    return yaml.safe_dump(document, sort_keys=False)

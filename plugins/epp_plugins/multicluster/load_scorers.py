"""``multicluster-queue-scorer``, ``multicluster-kv-cache-utilization-scorer``: free capacity.

Over the clusters whose value is known::

    score = (max - q) / (max - min)    # multicluster-queue-scorer; 1.0 for all when all are equal
    score = 1 - usage                  # multicluster-kv-cache-utilization-scorer

A cluster without the value scores 0, and is ignored in the range. A usage outside of 0.0 to
1.0, and a negative queue, are clamped. Without ``multicluster-metrics-extractor`` the
configuration is refused.

Reads:  the attribute ``llm-d.ai/multicluster-queue-size`` or
        ``llm-d.ai/multicluster-kv-cache-utilization``, both without a producer's name.
Example::

    plugins:
      - type: multicluster-metrics-data-source
      - type: multicluster-metrics-extractor
      - type: multicluster-queue-scorer
      - type: multicluster-kv-cache-utilization-scorer
    dataLayer:
      injectDefaults: false
      sources:
        - pluginRef: multicluster-metrics-data-source
          extractors: [{pluginRef: multicluster-metrics-extractor}]
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from epp.scheduling import AttributeKey, CycleState, Endpoint, LLMRequest, Scorer
from epp_plugins.numbers import numbers_of
from epp_plugins.scorers.least_first import least_first
from epp_plugins.state_keys import MULTICLUSTER_KV_CACHE_UTILIZATION, MULTICLUSTER_QUEUE_SIZE


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``multicluster-queue-scorer`` and its sibling: none."""


class MulticlusterQueueScorer(Scorer):
    """Scores clusters by their waiting queue, relative to the other candidates."""

    type: ClassVar[str] = "multicluster-queue-scorer"
    reads: ClassVar[tuple[AttributeKey[Any], ...]] = (MULTICLUSTER_QUEUE_SIZE,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        queues = numbers_of(endpoints, MULTICLUSTER_QUEUE_SIZE)
        known = [max(queue, 0.0) for queue in queues if queue is not None]
        scores = iter(least_first(known) if known else ())
        return [0.0 if queue is None else next(scores) for queue in queues]


class MulticlusterKvCacheUtilizationScorer(Scorer):
    """Scores clusters by the free share of their KV caches."""

    type: ClassVar[str] = "multicluster-kv-cache-utilization-scorer"
    reads: ClassVar[tuple[AttributeKey[Any], ...]] = (MULTICLUSTER_KV_CACHE_UTILIZATION,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        usages = numbers_of(endpoints, MULTICLUSTER_KV_CACHE_UTILIZATION)
        return [0.0 if usage is None else 1.0 - min(max(usage, 0.0), 1.0) for usage in usages]

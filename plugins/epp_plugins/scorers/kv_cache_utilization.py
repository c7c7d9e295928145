"""``kv-cache-utilization-scorer``: prefers endpoints with free KV cache.

    score = 1 - usage

Reads:  ``endpoint.load.kv_cache_usage``.
Example::

    plugins:
      - type: kv-cache-utilization-scorer
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``kv-cache-utilization-scorer``: none."""


class KvCacheUtilizationScorer(Scorer):
    """Scores endpoints by the free share of their KV cache."""

    type: ClassVar[str] = "kv-cache-utilization-scorer"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        return [1.0 - e.load.kv_cache_usage for e in endpoints]

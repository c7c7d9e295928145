"""``kv-cache-utilization-scorer``: prefers endpoints with free KV cache.

    score = 1 - usage

A usage outside of 0.0 to 1.0 counts as the nearer end; one that is not a number scores 0. An
endpoint that was never scraped counts as the median of the pool, or as empty if none was ever
scraped.

Reads:  ``endpoint.load.kv_cache_usage``.
Example::

    plugins:
      - type: kv-cache-utilization-scorer
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer, load_columns


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``kv-cache-utilization-scorer``: none."""


class KvCacheUtilizationScorer(Scorer):
    """Scores endpoints by the free share of their KV cache."""

    type: ClassVar[str] = "kv-cache-utilization-scorer"
    recomputable = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        if (columns := load_columns(endpoints)) is not None:
            return columns.free_cache.copy()
        return [1.0 - endpoint.load.kv_cache_usage for endpoint in endpoints]

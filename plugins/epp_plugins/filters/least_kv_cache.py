"""``least-kv-cache-filter``: keeps the endpoints with the lowest KV-cache usage.

Of ``n`` endpoints it keeps those in the lowest ``n``-th of the range::

    usage <= min + (max - min) / n

A part of the decision tree of GIE #677.

Reads:  ``endpoint.load.kv_cache_usage``.
Example::

    plugins:
      - type: least-kv-cache-filter
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``least-kv-cache-filter``: none."""


class LeastKvCacheFilter(Filter):
    """Keeps the lowest part of the range of KV-cache usage."""

    type: ClassVar[str] = "least-kv-cache-filter"
    recomputable = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        if not endpoints:
            return []
        usages = [endpoint.load.kv_cache_usage for endpoint in endpoints]
        least = min(usages)
        most = least + (max(usages) - least) / len(usages)
        return [e for e, usage in zip(endpoints, usages, strict=True) if usage <= most]

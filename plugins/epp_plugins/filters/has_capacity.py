"""``has-capacity-filter``: keeps endpoints with capacity for sheddable requests.

Keeps ``waiting requests <= queueThreshold`` and ``KV-cache usage <= kvCacheThreshold``. The
defaults are the environment variables QUEUE_THRESHOLD_CRITICAL and KV_CACHE_THRESHOLD if set, else
5 and 0.8. In the decision tree of GIE #677, a sheddable request is dropped if this filter keeps no
endpoint.

Reads:  ``endpoint.load.waiting_requests`` and ``.kv_cache_usage``.
Example::

    plugins:
      - type: has-capacity-filter
        parameters: {queueThreshold: 5, kvCacheThreshold: 0.8}
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest
from epp_plugins.filters.environment import from_environment


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``has-capacity-filter``."""

    queue_threshold: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        default_factory=from_environment("QUEUE_THRESHOLD_CRITICAL", 5)
    )
    """Maximum waiting requests of an endpoint that is kept."""
    kv_cache_threshold: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = msgspec.field(
        default_factory=from_environment("KV_CACHE_THRESHOLD", 0.8, most=1.0)
    )
    """Maximum KV-cache usage of an endpoint that is kept, as a fraction."""


class HasCapacityFilter(Filter):
    """Keeps the endpoints whose queue and KV cache are within their thresholds."""

    type: ClassVar[str] = "has-capacity-filter"
    recomputable = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._most_waiting = params.queue_threshold
        self._most_usage = params.kv_cache_threshold

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        waiting, usage = self._most_waiting, self._most_usage
        return [
            endpoint
            for endpoint in endpoints
            if endpoint.load.waiting_requests <= waiting and endpoint.load.kv_cache_usage <= usage
        ]

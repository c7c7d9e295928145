"""``lora-affinity-filter``: keeps the endpoints where the request's LoRA adapter is, mostly.

Endpoints are of two groups, others never stay::

    A   the target model is active or waits there
    B   not in A, and active + waiting adapters < the most that fit at once

If there are both, A stays with probability ``threshold``, else B: the small rest spreads an adapter
that is in demand over more servers. If there is one group, it stays. The default of ``threshold``
is the environment variable LORA_AFFINITY_THRESHOLD if set, else 0.999. A part of the decision tree
of GIE #677.

Reads:  ``endpoint.metrics``: ``active_adapters``, ``waiting_adapters``, ``max_adapters``.
Example::

    plugins:
      - type: lora-affinity-filter
        parameters: {threshold: 0.999}
"""

import random
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest
from epp_plugins.filters.environment import from_environment


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``lora-affinity-filter``."""

    threshold: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = msgspec.field(
        default_factory=from_environment("LORA_AFFINITY_THRESHOLD", 0.999, most=1.0)
    )
    """Probability that group A stays where there are both."""


class LoraAffinityFilter(Filter):
    """Keeps the holders of the adapter, or now and then those with room for it."""

    type: ClassVar[str] = "lora-affinity-filter"

    def __init__(self, name: str, params: Params, rng: random.Random | None = None) -> None:
        self.name = name
        self._threshold = params.threshold
        self._random = rng or random.Random()  # noqa: S311 - spreads load, no secret

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        model = request.target_model
        holders: list[Endpoint] = []
        roomy: list[Endpoint] = []
        for endpoint in endpoints:
            page = endpoint.metrics
            active, waiting = page.active_adapters, page.waiting_adapters
            if model in active or model in waiting:
                holders.append(endpoint)
            elif len(active) + len(waiting) < page.max_adapters:
                roomy.append(endpoint)
        if holders and roomy:
            return holders if self._random.random() < self._threshold else roomy
        return holders or roomy

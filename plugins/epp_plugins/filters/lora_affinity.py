"""``lora-affinity-filter``: usually keeps the endpoints that have the request's LoRA adapter.

It keeps one of two groups of endpoints::

    A   the target model is an active or waiting adapter
    B   not in A, and active + waiting adapters < maximum adapters

If both groups have endpoints, A is kept with the probability ``threshold``, otherwise B; the small
remainder spreads an adapter that is in demand over more servers. If only one group has endpoints,
it is kept. Other endpoints are never kept, such as servers without LoRA, so a request for a base
model may be left without any (429): use the filter in a ``decision-tree-filter``, for the decision
tree of Gateway API Inference Extension #677. The default of ``threshold`` is the environment
variable LORA_AFFINITY_THRESHOLD if set, else 0.999.

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
    """Probability that group A is kept if both groups have endpoints."""


class LoraAffinityFilter(Filter):
    """Keeps the endpoints with the adapter, or occasionally those with room for it."""

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

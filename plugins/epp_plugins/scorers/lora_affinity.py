"""``lora-affinity-scorer``: prefers endpoints where the request's LoRA adapter is loaded.

The score is that of the first line that applies to the endpoint::

    1.0   the target model is an active adapter
    0.8   active + waiting adapters < maximum adapters, so it can be loaded
    0.6   the target model is a waiting adapter
    0.0   otherwise

Reads:  ``endpoint.metrics``: ``active_adapters``, ``waiting_adapters``, ``max_adapters``.
Example::

    plugins:
      - type: lora-affinity-scorer
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer

ACTIVE, ROOM, WAITING, NONE = 1.0, 0.8, 0.6, 0.0


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``lora-affinity-scorer``: none."""


class LoraAffinityScorer(Scorer):
    """Scores endpoints by the state of the target model's adapter."""

    type: ClassVar[str] = "lora-affinity-scorer"
    recomputable = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        model = request.target_model
        scores = []
        for endpoint in endpoints:
            page = endpoint.metrics
            active, waiting = page.active_adapters, page.waiting_adapters
            if model in active:
                scores.append(ACTIVE)
            elif len(active) + len(waiting) < page.max_adapters:
                scores.append(ROOM)
            else:
                scores.append(WAITING if model in waiting else NONE)
        return scores

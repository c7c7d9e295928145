"""``low-queue-filter``: keeps endpoints whose queue is short.

Keeps endpoints with at most ``threshold`` waiting requests; if there is none, the request is
answered with 429. The default of ``threshold`` is the environment variable QUEUING_THRESHOLD_LORA
if set, else 128. The filter is part of the decision tree of Gateway API Inference Extension #677,
see ``decision-tree-filter``: up to this queue length, a server that has the request's adapter is
better than one with a shorter queue.

Reads:  ``endpoint.load.waiting_requests``.
Example::

    plugins:
      - type: low-queue-filter
        parameters: {threshold: 128}
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest
from epp_plugins.filters.environment import from_environment


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``low-queue-filter``."""

    threshold: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        default_factory=from_environment("QUEUING_THRESHOLD_LORA", 128)
    )
    """Maximum waiting requests of an endpoint that is kept."""


class LowQueueFilter(Filter):
    """Keeps the endpoints with at most ``threshold`` waiting requests."""

    type: ClassVar[str] = "low-queue-filter"
    recomputable = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._threshold = params.threshold

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        most = self._threshold
        return [endpoint for endpoint in endpoints if endpoint.load.waiting_requests <= most]

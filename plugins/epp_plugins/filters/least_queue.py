"""``least-queue-filter``: keeps the endpoints with the shortest queues.

Of ``n`` endpoints it keeps those whose queue length is in the lowest ``1/n`` of the range from the
shortest to the longest queue::

    waiting <= min + floor((max - min) / n)

Endpoints close to the shortest queue are therefore kept, too, if the spread is at least ``n``; with
a smaller one only the shortest are kept. The filter, its rounding included, is part of the decision
tree of Gateway API Inference Extension #677, see ``decision-tree-filter``.

Reads:  ``endpoint.load.waiting_requests``.
Example::

    plugins:
      - type: least-queue-filter
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``least-queue-filter``: none."""


class LeastQueueFilter(Filter):
    """Keeps the lowest part of the range of queue lengths."""

    type: ClassVar[str] = "least-queue-filter"
    recomputable = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        if not endpoints:
            return []
        waiting = [endpoint.load.waiting_requests for endpoint in endpoints]
        least = min(waiting)
        most = least + (max(waiting) - least) // len(waiting)
        return [e for e, requests in zip(endpoints, waiting, strict=True) if requests <= most]

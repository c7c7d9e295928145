"""``least-queue-filter``: keeps the endpoints with the shortest queues.

Of ``n`` endpoints it keeps those in the lowest ``n``-th of the range::

    waiting <= min + floor((max - min) / n)

So small differences in queue length are ignored. It is a part of the decision tree of GIE #677,
including the integer division.

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

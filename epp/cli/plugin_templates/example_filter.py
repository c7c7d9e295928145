"""``example-filter``: removes endpoints with a long waiting queue.

Reads:  ``endpoint.load.waiting_requests``.
Example::

    plugins:
      - type: file:example_filter.py:ExampleFilter
        parameters: {maxWaitingRequests: 5}
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-filter``."""

    max_waiting_requests: Annotated[int, msgspec.Meta(ge=0)] = 5
    """Maximum waiting requests of an endpoint that is kept."""


class ExampleFilter(Filter):
    """Keeps endpoints with at most ``maxWaitingRequests`` waiting requests."""

    type: ClassVar[str] = "example-filter"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._longest = params.max_waiting_requests

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return [each for each in endpoints if each.load.waiting_requests <= self._longest]

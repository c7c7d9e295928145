"""``example-scorer``: prefers endpoints with few running requests.

::

    score = 1 / (1 + running / scaleRequests)

Reads:  ``endpoint.load.running_requests``.
Example::

    plugins:
      - type: file:example_scorer.py:ExampleScorer
        parameters: {scaleRequests: 8}
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-scorer``."""

    scale_requests: Annotated[float, msgspec.Meta(gt=0)] = 8.0
    """Running requests that halve the score."""


class ExampleScorer(Scorer):
    """Scores endpoints by their running requests."""

    type: ClassVar[str] = "example-scorer"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._scale = params.scale_requests

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        scale = self._scale
        return [1.0 / (1.0 + each.load.running_requests / scale) for each in endpoints]

"""``example-picker``: picks at random among all endpoints that score nearly as well as the best.

Example::

    plugins:
      - type: file:example_picker.py:ExamplePicker
        parameters: {tolerance: 0.1}
"""

import random
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.scheduling import CycleState, LLMRequest, Picker, ScoredEndpoint


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-picker``."""

    tolerance: Annotated[float, msgspec.Meta(ge=0)] = 0.1
    """How far below the best total score an endpoint may be."""


class ExamplePicker(Picker):
    """Picks one of the endpoints within ``tolerance`` of the best."""

    type: ClassVar[str] = "example-picker"

    def __init__(self, name: str, params: Params, rng: random.Random | None = None) -> None:
        self.name = name
        self._tolerance = params.tolerance
        self._random = rng or random.Random()  # noqa: S311 - spreads load, no secret

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        lowest = max(each.score for each in scored) - self._tolerance
        return [self._random.choice([each for each in scored if each.score >= lowest])]

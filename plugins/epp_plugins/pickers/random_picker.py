"""``random-picker``: picks endpoints at random, regardless of their scores.

``maxNumOfEndpoints`` below 1 counts as 1.

Example::

    plugins:
      - type: random-picker
        parameters: {maxNumOfEndpoints: 1}
"""

import random
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, LLMRequest, Picker, ScoredEndpoint


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``random-picker``."""

    max_num_of_endpoints: int = 1
    """Maximum endpoints to pick."""


class RandomPicker(Picker):
    """Picks ``maxNumOfEndpoints`` endpoints, each equally likely."""

    type: ClassVar[str] = "random-picker"

    def __init__(self, name: str, params: Params, rng: random.Random | None = None) -> None:
        self.name = name
        self._count = max(1, params.max_num_of_endpoints)
        self._random = rng or random.Random()  # noqa: S311 - spreads load, no secret

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        if self._count == 1:
            return [scored[int(self._random.random() * len(scored))]]
        return self._random.sample(scored, k=min(self._count, len(scored)))

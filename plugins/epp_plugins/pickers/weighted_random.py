"""``weighted-random-picker``: picks endpoints at random, in proportion to their scores.

It samples without replacement by A-Res (Efraimidis and Spirakis 2006): it picks the endpoints with
the largest ``U ** (1 / score)``, where U is uniform in [0, 1] and drawn for each endpoint. An
endpoint with a score of 0 or less is picked only if no others are left; if all scores are 0 or
less, every endpoint is equally likely.
``maxNumOfEndpoints`` below 1 counts as 1.

Example::

    plugins:
      - type: weighted-random-picker
        parameters: {maxNumOfEndpoints: 1}
"""

import random
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, LLMRequest, Picker, ScoredEndpoint
from epp_plugins.pickers.columns import columns_of


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``weighted-random-picker``."""

    max_num_of_endpoints: int = 1
    """Maximum endpoints to pick."""


class WeightedRandomPicker(Picker):
    """Picks ``maxNumOfEndpoints`` endpoints, with probabilities that grow with their scores."""

    type: ClassVar[str] = "weighted-random-picker"

    def __init__(self, name: str, params: Params, rng: random.Random | None = None) -> None:
        self.name = name
        self._count = max(1, params.max_num_of_endpoints)
        self._random = rng or random.Random()  # noqa: S311 - spreads load, no secret

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        if self._count == 1:
            return [scored[self._one_of(columns_of(scored)[1])]]
        # Shuffled first: sorting is stable, so endpoints of score 0 stay in random order.
        shuffled = self._random.sample(scored, k=len(scored))
        shuffled.sort(key=self._arrival)
        return shuffled[: self._count]

    def _one_of(self, scores: Sequence[float]) -> int:
        """Return the position that A-Res picks first, by one draw for all of them."""
        sums = list(accumulate(max(0.0, score) for score in scores))
        if sums[-1] <= 0:
            return int(self._random.random() * len(sums))
        return self._random.choices(range(len(sums)), cum_weights=sums)[0]

    def _arrival(self, candidate: ScoredEndpoint) -> float:
        """Return ``-log(U) / score``: smallest where the key of A-Res is largest.

        The key itself becomes 0, whatever U, for scores below about 0.001.
        """
        return self._random.expovariate(candidate.score) if candidate.score > 0 else inf

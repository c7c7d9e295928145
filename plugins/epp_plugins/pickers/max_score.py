"""``max-score-picker``: picks the endpoints with the highest scores.

Of endpoints with equal scores it picks the one with the fewest requests (effective waiting +
running), and if these are equal, too, a random one. The Go EPP picks a random one at once; but
``queue-scorer`` scores all endpoints with free slots equally, and a random choice would spread a
burst unevenly over them. ``maxNumOfEndpoints`` below 1 counts as 1.

Reads:  ``endpoint.load.waiting_requests`` and ``.running_requests``, for equal scores only.
Example::

    plugins:
      - type: max-score-picker
        parameters: {maxNumOfEndpoints: 1}
"""

import random
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Picker, ScoredEndpoint
from epp_plugins.pickers.columns import columns_of
from epp_plugins.pickers.highest import highest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``max-score-picker``."""

    max_num_of_endpoints: int = 1
    """Maximum endpoints to pick, best first."""


class MaxScorePicker(Picker):
    """Picks the best ``maxNumOfEndpoints`` endpoints."""

    type: ClassVar[str] = "max-score-picker"
    recomputable = True

    def __init__(self, name: str, params: Params, rng: random.Random | None = None) -> None:
        self.name = name
        self._count = max(1, params.max_num_of_endpoints)
        self._random = rng or random.Random()  # noqa: S311 - spreads ties, no secret

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        if self._count > 1:
            shuffled = self._random.sample(scored, k=len(scored))
            shuffled.sort(key=_rank)
            return shuffled[: self._count]
        endpoints, scores = columns_of(scored)
        position, equals = highest(scores)
        if equals > 1:
            position = self._least_loaded(endpoints, scores, position, equals)
        return [scored[position]]

    def _least_loaded(
        self, endpoints: Sequence[Endpoint], scores: Sequence[float], first: int, equals: int
    ) -> int:
        """Return the position to pick among the ``equals`` with the score of ``first``."""
        high, position = scores[first], first - 1
        least = float("inf")
        idlest: list[int] = []
        for _ in range(equals):
            position = scores.index(high, position + 1)
            load = endpoints[position].load
            requests = load.waiting_requests + load.running_requests
            if requests == least:
                idlest.append(position)
            elif requests < least:
                least = requests
                idlest = [position]
        # 0.12 us; choice() takes 0.21 us.
        return idlest[int(self._random.random() * len(idlest))]


def _rank(candidate: ScoredEndpoint) -> tuple[float, float]:
    """Sort key: the highest score first, then the fewest requests."""
    load = candidate.endpoint.load
    return -candidate.score, load.waiting_requests + load.running_requests

"""``load-aware-scorer``: prefers endpoints with a short waiting queue, at half strength.

For an endpoint with ``q`` waiting requests::

    score = 0.5 * (1 - min(q, threshold) / threshold)

An empty queue scores 0.5; ``threshold`` requests and more score 0. Unlike ``queue-scorer`` it does
not compare the candidates, so a difference of one request has a small effect. An endpoint that was
never scraped counts as the median of the pool, or as idle if none was ever scraped.

Reads:  ``endpoint.load.waiting_requests``.
Example::

    plugins:
      - type: load-aware-scorer
        parameters: {threshold: 64}
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer

DEFAULT_THRESHOLD: Final = 128
EMPTY_QUEUE: Final = 0.5


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``load-aware-scorer``."""

    threshold: int = DEFAULT_THRESHOLD
    """Waiting requests at which an endpoint scores 0; 0 and less count as 128."""


class LoadAwareScorer(Scorer):
    """Scores endpoints by their waiting queue, measured against a fixed length."""

    type: ClassVar[str] = "load-aware-scorer"
    recomputable = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._threshold = params.threshold if params.threshold > 0 else DEFAULT_THRESHOLD

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        threshold = self._threshold
        return [
            0.0
            if (waiting := endpoint.load.waiting_requests) >= threshold
            else EMPTY_QUEUE * (1.0 - waiting / threshold)
            if waiting > 0
            else EMPTY_QUEUE
            for endpoint in endpoints
        ]

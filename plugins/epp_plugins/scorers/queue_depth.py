"""``queue-scorer``: prefers endpoints with a short waiting queue.

For effective queue lengths ``q``, with ``min`` and ``max`` among the candidates::

    score = (max - q) / (max - min)        # 1.0 for all if all are equal

Reads:  ``endpoint.load.waiting_requests``.
Example::

    plugins:
      - type: queue-scorer
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer, load_columns
from epp_plugins.scorers.least_first import least_first


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``queue-scorer``: none."""


class QueueScorer(Scorer):
    """Scores endpoints by their waiting queue, relative to the other candidates."""

    type: ClassVar[str] = "queue-scorer"
    recomputable = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        if (columns := load_columns(endpoints)) is not None:
            return least_first(columns.waiting_requests)
        return least_first([endpoint.load.waiting_requests for endpoint in endpoints])

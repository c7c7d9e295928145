"""``running-requests-size-scorer``: prefers endpoints with few running requests.

For effective running requests ``r``, with ``min`` and ``max`` among the candidates::

    score = (max - r) / (max - min)        # 1.0 for all if all are equal

Reads:  ``endpoint.load.running_requests``.
Example::

    plugins:
      - type: running-requests-size-scorer
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer
from epp_plugins.scorers.least_first import least_first


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``running-requests-size-scorer``: none."""


class RunningRequestsScorer(Scorer):
    """Scores endpoints by their running requests, relative to the other candidates."""

    type: ClassVar[str] = "running-requests-size-scorer"
    recomputable = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        return least_first([endpoint.load.running_requests for endpoint in endpoints])

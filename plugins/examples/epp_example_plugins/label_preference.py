"""``label-preference-scorer``: prefers endpoints by the value of a label, cheap ones for example.

::

    score = scores[value of the label]         # otherScore for any other value, or none

Reads:  ``endpoint.labels``.
Example::

    plugins:
      - type: label-preference-scorer
        parameters: {label: capacity, scores: {spot: 1.0, on-demand: 0.2}}
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer

Score = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``label-preference-scorer``."""

    label: str
    """The label to look at."""
    scores: dict[str, Score]
    """The score of each value."""
    other_score: Score = 0.0
    """The score of endpoints with another value, or without the label."""


class LabelPreferenceScorer(Scorer):
    """Scores endpoints by the value of one label."""

    type: ClassVar[str] = "label-preference-scorer"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._label = params.label
        self._scores = params.scores
        self._other = params.other_score

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        scores, label, other = self._scores, self._label, self._other
        return [scores.get(each.labels.get(label, ""), other) for each in endpoints]

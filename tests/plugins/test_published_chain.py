"""The plugin chain that GIE #677 published as a test; there, weights are 1."""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest, Scorer
from epp.testing import make_endpoint, make_profile, make_request


class Keep(Filter):
    """Keeps the endpoints of those names."""

    type: ClassVar[str] = "keep"

    def __init__(self, *names: str) -> None:
        self.name = f"keep {' '.join(names)}"
        self._names = names

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return [endpoint for endpoint in endpoints if endpoint.name in self._names]


class Same(Scorer):
    """Gives every endpoint the same score, and notes how many it was shown."""

    type: ClassVar[str] = "same"

    def __init__(self, score: float) -> None:
        self.name = f"always {score}"
        self.shown: list[int] = []
        self._score = score

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        self.shown.append(len(endpoints))
        return [self._score] * len(endpoints)


def test_filters_run_in_order_and_scores_add_up() -> None:
    scorers = [Same(0.3), Same(0.8)]
    profile = make_profile(
        filters=[Keep("p1", "p2", "p3"), Keep("p1", "p2")],
        scorers=scorers,
    )
    pool = [make_endpoint(name) for name in ("p1", "p2", "p3", "p4")]
    result = profile.run(make_request(), pool, CycleState())
    assert result.removed == {"keep p1 p2 p3": ["p4"], "keep p1 p2": ["p3"]}
    assert [each.endpoint.name for each in result.scored] == ["p1", "p2"]
    assert [each.score for each in result.scored] == pytest.approx([1.1, 1.1])
    assert [scorer.shown for scorer in scorers] == [[2], [2]]

"""The factor that decided a choice, from the scores of the winner and the runner-up."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling import (
    CycleState,
    DecidedBy,
    Endpoint,
    LLMRequest,
    ProfileResult,
    SchedulerProfile,
    ScoredEndpoint,
    Scorer,
    WeightedScorer,
    decided_by,
)
from epp.scheduling.types import ScoredEndpoints
from epp.testing import make_endpoint, make_request
from epp_plugins.pickers.max_score import MaxScorePicker, Params

PODS = [make_endpoint(f"ns/{name}") for name in "abcd"]


class Column(Scorer):
    """Gives each endpoint its score."""

    type: ClassVar[str] = "column"

    def __init__(self, name: str, scores: Sequence[float]) -> None:
        self.name = name
        self.scores = scores

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        return list(self.scores)


def run(
    columns: Mapping[str, tuple[float, Sequence[float]]],
    preference: Sequence[float] = (),
) -> ProfileResult:
    """Run a profile of scorers: weight and scores by name."""
    count = len(next(iter(columns.values()))[1])
    profile: SchedulerProfile[LLMRequest, Endpoint] = SchedulerProfile(
        name="default",
        picker=MaxScorePicker("picker", Params()),
        scorers=[
            WeightedScorer(Column(name, scores), weight)
            for name, (weight, scores) in columns.items()
        ],
    )
    preferred = dict(zip(PODS, preference, strict=False)) if preference else None
    return profile.run(make_request(), PODS[:count], CycleState(), preferred)


@pytest.mark.parametrize(
    ("columns", "scorer"),
    [
        # a leads b by 2 * 0.5 = 1.0 in queue, by 3 * 0.2 = 0.6 in prefix.
        pytest.param(
            {"queue": (2.0, [1.0, 0.5, 0.0]), "prefix": (3.0, [0.5, 0.3, 0.0])}, "queue", id="lead"
        ),
        # The same with a weight of 6: 1.2 in prefix.
        pytest.param(
            {"queue": (2.0, [1.0, 0.5, 0.0]), "prefix": (6.0, [0.5, 0.3, 0.0])},
            "prefix",
            id="weighted lead",
        ),
        # c has the best queue, but b is the runner-up: 0.9 against a's 1.0.
        pytest.param(
            {"queue": (1.0, [0.1, 0.1, 0.5]), "prefix": (1.0, [0.9, 0.8, 0.0])},
            "prefix",
            id="the runner-up counts",
        ),
        # a is behind in queue by 0.3 and ahead in prefix by 0.4.
        pytest.param(
            {"queue": (1.0, [0.2, 0.5]), "prefix": (1.0, [0.9, 0.5])}, "prefix", id="against one"
        ),
    ],
)
def test_the_scorer_in_which_the_winner_leads_most_decides(
    columns: Mapping[str, tuple[float, Sequence[float]]], scorer: str
) -> None:
    result = run(columns)
    assert result.endpoints[0].endpoint is PODS[0]
    assert decided_by(result) == (DecidedBy.SCORER, scorer)


def test_equal_totals_are_a_tie() -> None:
    assert decided_by(run({"queue": (1.0, [0.5, 0.5, 0.1])})) == (DecidedBy.TIE, "")


def test_without_scorers_all_are_equal() -> None:
    result = ProfileResult(
        "default", [ScoredEndpoint(PODS[0], 0.0)], ScoredEndpoints(PODS[:2], (0.0, 0.0))
    )
    assert decided_by(result) == (DecidedBy.TIE, "")


def test_a_single_candidate_needs_no_scorer() -> None:
    assert decided_by(run({"queue": (1.0, [0.5])})) == (DecidedBy.ONLY_CANDIDATE, "")


def test_a_winner_that_is_not_the_best_is_the_pickers() -> None:
    result = run({"queue": (1.0, [0.5, 0.9])})
    result.endpoints = [result.scored[0]]
    assert decided_by(result) == (DecidedBy.PICKER, "")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda result: [ScoredEndpoint(PODS[3], 1.0)], id="no candidate"),
        pytest.param(lambda result: result.endpoints, id="other candidates"),
    ],
)
def test_what_a_profile_handler_has_changed_is_not_a_scorers(change: object) -> None:
    result = run({"queue": (1.0, [0.9, 0.5, 0.1])})
    assert callable(change)
    result.endpoints = change(result)
    result.scored = result.scored[:2]
    assert decided_by(result) == (DecidedBy.PICKER, "")


@pytest.mark.parametrize(
    ("preference", "kind", "scorer"),
    [
        # The scorer leads by 0.2 of 1.0, which is 2.0 of 10.
        pytest.param([2.5, 0.0], DecidedBy.PREFERENCE, "", id="more than the scorer"),
        pytest.param([1.5, 0.0], DecidedBy.SCORER, "queue", id="less than the scorer"),
    ],
)
def test_the_preference_of_flow_control_is_a_term(
    preference: Sequence[float], kind: DecidedBy, scorer: str
) -> None:
    assert decided_by(run({"queue": (4.0, [0.7, 0.5])}, preference)) == (kind, scorer)


Scores = st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4)


@given(st.lists(st.tuples(st.floats(0.1, 10.0), Scores), min_size=1, max_size=4))
def test_a_scorer_that_decides_gave_the_winner_more(
    columns: Sequence[tuple[float, Sequence[float]]],
) -> None:
    named = {str(number): column for number, column in enumerate(columns)}
    result = run(named)
    kind, scorer = decided_by(result)
    place = PODS.index(result.endpoints[0].endpoint)
    totals = [each.score for each in result.scored]
    assert totals[place] == max(totals)
    if totals.count(totals[place]) > 1:
        assert kind is DecidedBy.TIE
        return
    assert kind is DecidedBy.SCORER
    runner_up = totals.index(sorted(totals)[-2])
    leads = {
        name: weight * (scores[place] - scores[runner_up])
        for name, (weight, scores) in named.items()
    }
    assert leads[scorer] == max(leads.values()) > 0

from collections.abc import Callable, Sequence

import pytest

from epp.scheduling import (
    CycleState,
    Endpoint,
    Filter,
    LLMRequest,
    NoEndpointsError,
    Picker,
    Plugin,
    PluginContractError,
    SchedulerProfile,
    ScoredEndpoint,
    Scorer,
    WeightedScorer,
)
from epp.testing import make_endpoint, make_request

NAN = float("nan")


class Keep(Filter):
    type = "keep"

    def __init__(self, name: str, wanted: Callable[[Endpoint], bool]) -> None:
        self.name = name
        self.wanted = wanted

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return [e for e in endpoints if self.wanted(e)]


class Fixed(Scorer):
    type = "fixed"

    def __init__(self, *scores: float) -> None:
        self.name = "fixed"
        self.scores = list(scores)

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        return self.scores


class Best(Picker):
    type = "best"
    name = "best"

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        return [max(scored, key=lambda s: s.score)]


class Nobody(Picker):
    type = "nobody"
    name = "nobody"

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        return []


class Calls(NullObserver):
    """A plugin observer that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        def timed(seconds: float) -> None:
            assert seconds >= 0
            self.seen.append((extension_point, plugin.name))

        return timed


def pods(*names: str) -> list[Endpoint]:
    return [make_endpoint(name) for name in names]


@pytest.mark.parametrize(
    ("scorers", "want"),
    [
        pytest.param([], [0.0, 0.0], id="no scorer: all zero"),
        pytest.param([(1, Fixed(0.25, 1.0))], [0.25, 1.0], id="one scorer"),
        # 2 * 0.5 + 3 * 0.1, 2 * 0.25 + 3 * 1.0
        pytest.param([(2, Fixed(0.5, 0.25)), (3, Fixed(0.1, 1.0))], [1.3, 3.5], id="weighted sum"),
        pytest.param([(2, Fixed(1.5, -0.5))], [2.0, 0.0], id="clamped to the range"),
        pytest.param([(1, Fixed(float("inf"), float("-inf")))], [1.0, 0.0], id="infinities too"),
        pytest.param([(1, Fixed(NAN, 0.5)), (1, Fixed(0.5, NAN))], [0.5, 0.5], id="NaN is 0"),
    ],
)
def test_totals(scorers: list[tuple[float, Scorer]], want: list[float]) -> None:
    weighted = [WeightedScorer(scorer, weight) for weight, scorer in scorers]
    profile = SchedulerProfile(name="p", scorers=weighted, picker=Best())
    result = profile.run(make_request(), pods("a", "b"), CycleState())
    assert [s.score for s in result.scored] == pytest.approx(want)
    assert result.error is None


def test_filters_run_in_order_and_say_whom_they_removed() -> None:
    profile = SchedulerProfile(
        name="p",
        filters=[Keep("not-a", lambda e: e.name != "a"), Keep("not-c", lambda e: e.name != "c")],
        picker=Best(),
    )
    endpoints = pods("a", "b", "c")
    result = profile.run(make_request(), endpoints, CycleState())
    assert [s.endpoint.name for s in result.scored] == ["b"]
    assert result.removed == {"not-a": ["a"], "not-c": ["c"]}
    assert len(endpoints) == 3


def test_filters_that_leave_nobody_are_an_error_with_reasons() -> None:
    never = Keep("never-asked", lambda e: True)
    filters = [Keep("not-a", lambda e: e.name != "a"), Keep("none", lambda e: False), never]
    result = SchedulerProfile(name="decode", filters=filters, picker=Nobody()).run(
        make_request(), pods("a", "b"), CycleState()
    )
    assert isinstance(result.error, NoEndpointsError)
    assert (result.error.candidates, result.endpoints, result.scored) == (2, (), ())
    assert str(result.error) == (
        "profile 'decode': filters removed all 2 endpoints (not-a removed a; none removed b)"
    )


def test_an_empty_pool_is_an_error_of_its_own() -> None:
    result = SchedulerProfile(name="decode", picker=Best()).run(make_request(), [], CycleState())
    assert str(result.error) == "profile 'decode': there is no endpoint to choose from"


@pytest.mark.parametrize("scores", [(1.0,), (1.0, 1.0, 1.0), ()], ids=["few", "many", "none"])
def test_a_wrong_number_of_scores_is_a_bug_of_the_scorer(scores: tuple[float, ...]) -> None:
    profile = SchedulerProfile(name="p", scorers=[WeightedScorer(Fixed(*scores))], picker=Best())
    with pytest.raises(PluginContractError, match=rf"'fixed' returned {len(scores)} scores for 2"):
        profile.run(make_request(), pods("a", "b"), CycleState())


def test_an_empty_pick_is_a_bug_of_the_picker() -> None:
    profile = SchedulerProfile(name="p", picker=Nobody())
    with pytest.raises(PluginContractError, match="'nobody' picked no endpoint"):
        profile.run(make_request(), pods("a"), CycleState())


def test_every_plugin_call_is_observed() -> None:
    calls = Calls()
    SchedulerProfile(
        name="p",
        filters=[Keep("all", lambda e: True)],
        scorers=[WeightedScorer(Fixed(1.0))],
        picker=Best(),
        observer=calls,
    ).run(make_request(), pods("a"), CycleState())
    assert calls.seen == [("Filter", "all"), ("Scorer", "fixed"), ("Picker", "best")]

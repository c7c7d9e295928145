import random
from collections import Counter

import pytest

from epp.scheduling import CycleState, SchedulerProfile, ScoredEndpoint
from epp.testing import make_endpoint, make_request, make_scored
from epp_plugins.pickers.max_score import MaxScorePicker, Params


def names(scored: list[ScoredEndpoint]) -> list[str]:
    return [s.endpoint.name for s in scored]


def picker(count: int = 1, seed: int = 0) -> MaxScorePicker:
    return MaxScorePicker("pick", Params(max_num_of_endpoints=count), rng=random.Random(seed))


@pytest.mark.parametrize(
    ("count", "want"),
    [
        pytest.param(1, ["b"], id="the best"),
        pytest.param(2, ["b", "c"], id="the best two in order"),
        pytest.param(9, ["b", "c", "a"], id="more than there are"),
        pytest.param(0, ["b"], id="0 counts as 1"),
        pytest.param(-3, ["b"], id="a negative number counts as 1"),
    ],
)
def test_pick(count: int, want: list[str]) -> None:
    scored = make_scored({"a": 0.1, "b": 3.0, "c": 2.0})
    assert names(picker(count).pick(make_request(), scored, CycleState())) == want


@pytest.mark.parametrize("count", [1, 2], ids=["one", "several"])
def test_ties_are_drawn_at_random(count: int) -> None:
    scored = make_scored({"low": 0.0, "a": 1.0, "b": 1.0, "c": 1.0})
    pick = picker(count).pick
    first = Counter(names(pick(make_request(), scored, CycleState()))[0] for _ in range(3000))
    assert set(first) == {"a", "b", "c"}
    assert min(first.values()) > 900  # 1000 expected, standard deviation 26


@pytest.mark.parametrize("count", [1, 2], ids=["one", "several"])
def test_among_equal_scores_the_least_loaded_goes_first(count: int) -> None:
    # Requests: a 2 waiting, b 1 running, c 1 running + 1 in flight, d none but a lower score.
    scored = [
        ScoredEndpoint(make_endpoint("a", waiting_requests=2), 1.0),
        ScoredEndpoint(make_endpoint("b", running_requests=1), 1.0),
        ScoredEndpoint(make_endpoint("c", running_requests=1, in_flight=1), 1.0),
        ScoredEndpoint(make_endpoint("d"), 0.9),
    ]
    for seed in range(20):
        assert names(picker(count, seed).pick(make_request(), scored, CycleState()))[0] == "b"


def test_the_same_seed_draws_the_same() -> None:
    scored = make_scored(dict.fromkeys("abcdef", 1.0))
    runs = []
    for _ in range(2):
        pick = picker(seed=7).pick
        runs.append([names(pick(make_request(), scored, CycleState())) for _ in range(50)])
    assert runs[0] == runs[1]


def test_a_profile_without_scorers_still_picks_one() -> None:
    profile = SchedulerProfile(name="default", picker=picker())
    result = profile.run(make_request(), [make_endpoint("a")], CycleState())
    assert [(s.endpoint.name, s.score) for s in result.endpoints] == [("a", 0.0)]

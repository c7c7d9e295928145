import random
from collections import Counter

import pytest

from epp.scheduling import CycleState, SchedulerProfile, ScoredEndpoints
from epp.testing import make_endpoint, make_plugin, make_request, run_picker
from epp_plugins.pickers.weighted_random import WeightedRandomPicker


def picker(count: int = 1, seed: int = 0) -> WeightedRandomPicker:
    return make_plugin(WeightedRandomPicker, {"maxNumOfEndpoints": count}, rng=random.Random(seed))


@pytest.mark.parametrize(
    ("count", "want"),
    [
        pytest.param(1, 1, id="one"),
        pytest.param(2, 2, id="two"),
        pytest.param(9, 3, id="more than there are"),
        pytest.param(0, 1, id="0 counts as 1"),
        pytest.param(-3, 1, id="a negative number counts as 1"),
    ],
)
def test_number_of_endpoints(count: int, want: int) -> None:
    picked = run_picker(picker(count), {"a": 0.5, "b": 1.0, "c": 0.0})
    assert len(set(picked)) == len(picked) == want


@pytest.mark.parametrize("count", [1, 2], ids=["one", "several"])
def test_the_first_is_drawn_in_proportion_to_the_scores(count: int) -> None:
    plugin = picker(count)
    scores = {"a": 1.0, "none": 0.0, "b": 3.0, "c": 6.0}
    first = Counter(run_picker(plugin, scores)[0] for _ in range(10_000))
    # 1000, 3000 and 6000 expected of 10 000; the standard deviations are 30, 46 and 49.
    assert set(first) == {"a", "b", "c"}
    assert first["a"] == pytest.approx(1000, abs=150)
    assert first["b"] == pytest.approx(3000, abs=230)
    assert first["c"] == pytest.approx(6000, abs=245)


def test_the_second_is_drawn_in_proportion_among_the_rest() -> None:
    plugin = picker(2)
    pairs = Counter(tuple(run_picker(plugin, {"a": 1.0, "b": 2.0, "c": 1.0})) for _ in range(8000))
    # c, then a: 1/4 * 1/3 of 8000 = 667; b, then a: 1/2 * 1/2 = 2000; deviations 25 and 39.
    assert pairs["c", "a"] == pytest.approx(667, abs=125)
    assert pairs["b", "a"] == pytest.approx(2000, abs=195)


@pytest.mark.parametrize("count", [1, 2], ids=["one", "several"])
@pytest.mark.parametrize("score", [0.0, -1.0], ids=["zero", "negative"])
def test_without_a_positive_score_all_are_equally_likely(count: int, score: float) -> None:
    plugin = picker(count)
    first = Counter(run_picker(plugin, dict.fromkeys("abc", score))[0] for _ in range(3000))
    assert set(first) == {"a", "b", "c"}
    assert min(first.values()) > 900  # 1000 expected, standard deviation 26


def test_scores_of_zero_come_last() -> None:
    plugin = picker(2)
    second = set()
    for _ in range(50):
        best, after = run_picker(plugin, {"x": 0.0, "a": 1e-6, "y": 0.0})
        assert best == "a"
        second.add(after)
    assert second == {"x", "y"}


def test_tiny_scores_keep_their_proportions() -> None:
    plugin = picker(2)
    first = Counter(run_picker(plugin, {"a": 1e-6, "b": 3e-6})[0] for _ in range(4000))
    assert first["b"] == pytest.approx(3000, abs=140)  # standard deviation 27


@pytest.mark.parametrize("count", [1, 2], ids=["one", "several"])
def test_the_same_seed_draws_the_same(count: int) -> None:
    scores = dict(zip("abcdef", range(6), strict=True))
    runs = []
    for _ in range(2):
        plugin = picker(count, seed=7)
        runs.append([run_picker(plugin, scores) for _ in range(50)])
    assert runs[0] == runs[1]


def test_the_columns_of_a_profile_are_read_without_making_their_items() -> None:
    scored = ScoredEndpoints([make_endpoint("a"), make_endpoint("b")], [0.0, 2.0])
    assert [s.endpoint.name for s in picker().pick(make_request(), scored, CycleState())] == ["b"]


def test_a_profile_without_scorers_picks_at_random() -> None:
    profile = SchedulerProfile(name="default", picker=picker())
    endpoints = [make_endpoint("a"), make_endpoint("b")]
    picked = {
        profile.run(make_request(), endpoints, CycleState()).endpoints[0].endpoint.name
        for _ in range(50)
    }
    assert picked == {"a", "b"}

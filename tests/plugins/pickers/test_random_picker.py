import random
from collections import Counter

import pytest

from epp.scheduling import CycleState, SchedulerProfile
from epp.testing import make_endpoint, make_request, make_scored
from epp_plugins.pickers.random_picker import Params, RandomPicker


def picker(count: int = 1, seed: int = 0) -> RandomPicker:
    return RandomPicker("pick", Params(max_num_of_endpoints=count), rng=random.Random(seed))


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
    scored = make_scored({"a": 0.0, "b": 1.0, "c": 2.0})
    picked = picker(count).pick(make_request(), scored, CycleState())
    assert len({s.endpoint.name for s in picked}) == len(picked) == want


@pytest.mark.parametrize("count", [1, 2], ids=["one", "several"])
def test_every_endpoint_is_equally_likely_whatever_its_score(count: int) -> None:
    scored = make_scored({"a": 0.0, "b": 0.5, "c": 7.0})
    pick = picker(count).pick
    first = Counter(
        pick(make_request(), scored, CycleState())[0].endpoint.name for _ in range(3000)
    )
    assert set(first) == {"a", "b", "c"}
    assert min(first.values()) > 900  # 1000 expected, standard deviation 26


def test_a_profile_picks_at_random() -> None:
    profile = SchedulerProfile(name="default", picker=picker())
    endpoints = [make_endpoint("a"), make_endpoint("b")]
    picked = {
        profile.run(make_request(), endpoints, CycleState()).endpoints[0].endpoint.name
        for _ in range(50)
    }
    assert picked == {"a", "b"}

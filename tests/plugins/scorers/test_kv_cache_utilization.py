from math import nan

import pytest

from epp.scheduling import CycleState, SchedulerProfile, WeightedScorer
from epp.testing import make_endpoint, make_request
from epp_plugins.pickers import max_score
from epp_plugins.scorers.kv_cache_utilization import KvCacheUtilizationScorer, Params

SCORER = KvCacheUtilizationScorer("kv", Params())


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        pytest.param(0.0, 1.0, id="an empty cache is 1"),
        pytest.param(0.25, 0.75, id="a quarter used leaves three"),
        pytest.param(1.0, 0.0, id="a full cache is 0"),
        pytest.param(1.5, 0.0, id="more than full is full"),
        pytest.param(-0.5, 1.0, id="less than empty is empty"),
        pytest.param(nan, 0.0, id="no number is 0"),
    ],
)
def test_score(usage: float, want: float) -> None:
    endpoints = [make_endpoint(kv_cache_usage=usage)]
    assert SCORER.score(make_request(), endpoints, CycleState()) == pytest.approx([want])


def test_an_endpoint_never_scraped_counts_as_empty() -> None:
    assert SCORER.score(make_request(), [make_endpoint()], CycleState()) == [1.0]


def test_a_profile_picks_the_emptiest_cache() -> None:
    profile = SchedulerProfile(
        name="default",
        scorers=[WeightedScorer(SCORER, 2.0)],
        picker=max_score.MaxScorePicker("pick", max_score.Params()),
    )
    endpoints = [make_endpoint("a", kv_cache_usage=0.5), make_endpoint("b", kv_cache_usage=0.25)]
    (best,) = profile.run(make_request(), endpoints, CycleState()).endpoints
    assert (best.endpoint.name, best.score) == ("b", 1.5)  # 2 * (1 - 0.25)

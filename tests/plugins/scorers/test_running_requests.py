import pytest

from epp.scheduling import CycleState, SchedulerProfile, WeightedScorer
from epp.testing import make_endpoint, make_request
from epp_plugins.pickers import max_score
from epp_plugins.scorers.running_requests import Params, RunningRequestsScorer

SCORER = RunningRequestsScorer("running", Params())


@pytest.mark.parametrize(
    ("running", "want"),
    [
        # max 10, min 0: (10-0)/10, (10-4)/10, (10-10)/10
        pytest.param([0, 4, 10], [1.0, 0.6, 0.0], id="relative to the range"),
        pytest.param([5, 5], [1.0, 1.0], id="all equal is 1"),
        pytest.param([3], [1.0], id="a sole endpoint is 1"),
    ],
)
def test_score(running: list[int], want: list[float]) -> None:
    endpoints = [make_endpoint(f"pod-{i}", running_requests=r) for i, r in enumerate(running)]
    assert SCORER.score(make_request(), endpoints, CycleState()) == pytest.approx(want)


def test_endpoints_never_scraped_are_equal() -> None:
    endpoints = [make_endpoint("a"), make_endpoint("b")]
    assert SCORER.score(make_request(), endpoints, CycleState()) == [1.0, 1.0]


def test_requests_sent_to_free_slots_count_as_running() -> None:
    # a runs 1 of 8 and was sent 4: effective 5; b runs 3.
    endpoints = [
        make_endpoint("a", running_requests=1, slots=8, in_flight=4),
        make_endpoint("b", running_requests=3, slots=8),
    ]
    assert SCORER.score(make_request(), endpoints, CycleState()) == [0.0, 1.0]


def test_a_profile_picks_the_smallest_batch() -> None:
    profile = SchedulerProfile(
        name="default",
        scorers=[WeightedScorer(SCORER)],
        picker=max_score.MaxScorePicker("pick", max_score.Params()),
    )
    endpoints = [make_endpoint("a", running_requests=7), make_endpoint("b", running_requests=2)]
    (best,) = profile.run(make_request(), endpoints, CycleState()).endpoints
    assert (best.endpoint.name, best.score) == ("b", 1.0)

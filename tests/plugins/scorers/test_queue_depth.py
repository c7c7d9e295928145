import pytest

from epp.scheduling import CycleState, SchedulerProfile, WeightedScorer
from epp.testing import make_endpoint, make_request
from epp_plugins.pickers import max_score
from epp_plugins.scorers.queue_depth import Params, QueueScorer

SCORER = QueueScorer("queue", Params())


@pytest.mark.parametrize(
    ("queues", "want"),
    [
        # max 8, min 2: (8-2)/6, (8-5)/6, (8-8)/6
        pytest.param([2, 5, 8], [1.0, 0.5, 0.0], id="the middle of the range is a half"),
        # max 1, min 0: a difference of one is the whole range
        pytest.param([1, 0], [0.0, 1.0], id="one request is the whole range"),
        pytest.param([4, 4, 4], [1.0, 1.0, 1.0], id="all equal is 1"),
        pytest.param([7], [1.0], id="a sole endpoint is 1"),
        pytest.param([3, 9, 0, 9], [2 / 3, 0.0, 1.0, 0.0], id="order is kept"),
    ],
)
def test_score(queues: list[int], want: list[float]) -> None:
    endpoints = [make_endpoint(f"pod-{i}", waiting_requests=q) for i, q in enumerate(queues)]
    assert SCORER.score(make_request(), endpoints, CycleState()) == pytest.approx(want)


def test_endpoints_never_scraped_are_equal() -> None:
    endpoints = [make_endpoint("a"), make_endpoint("b")]
    assert SCORER.score(make_request(), endpoints, CycleState()) == [1.0, 1.0]


def test_requests_sent_since_the_page_count() -> None:
    # Effective queues: a = 1 + 3 in flight = 4, b = 2: the page alone would prefer a.
    endpoints = [
        make_endpoint("a", waiting_requests=1, in_flight=3),
        make_endpoint("b", waiting_requests=2),
    ]
    assert SCORER.score(make_request(), endpoints, CycleState()) == [0.0, 1.0]


def test_a_profile_picks_the_shortest_queue() -> None:
    profile = SchedulerProfile(
        name="default",
        scorers=[WeightedScorer(SCORER, 2.0)],
        picker=max_score.MaxScorePicker("pick", max_score.Params()),
    )
    endpoints = [make_endpoint("a", waiting_requests=7), make_endpoint("b", waiting_requests=2)]
    (best,) = profile.run(make_request(), endpoints, CycleState()).endpoints
    assert (best.endpoint.name, best.score) == ("b", 2.0)

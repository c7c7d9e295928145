import pytest

from epp.scheduling import CycleState, SchedulerProfile, WeightedScorer
from epp.testing import make_endpoint, make_request
from epp_plugins.pickers import max_score
from epp_plugins.scorers.lora_affinity import LoraAffinityScorer, Params

SCORER = LoraAffinityScorer("lora", Params())


@pytest.mark.parametrize(
    ("active", "waiting", "most", "want"),
    [
        pytest.param({"tuned"}, set(), 1, 1.0, id="active is 1 though the server is full"),
        pytest.param({"x"}, set(), 2, 0.8, id="room for one more"),  # 1 + 0 < 2
        pytest.param({"x"}, {"tuned"}, 3, 0.8, id="room goes before waiting"),  # 1 + 1 < 3
        pytest.param({"x"}, {"tuned"}, 2, 0.6, id="waiting in a full server"),  # 1 + 1 = 2
        pytest.param({"x"}, {"y"}, 2, 0.0, id="full of others"),
        pytest.param(set(), set(), 0, 0.0, id="a server without adapters"),
    ],
)
def test_score(active: set[str], waiting: set[str], most: int, want: float) -> None:
    endpoint = make_endpoint(active_adapters=active, waiting_adapters=waiting, max_adapters=most)
    request = make_request(target_model="tuned")
    assert SCORER.score(request, [endpoint], CycleState()) == [want]


def test_endpoints_never_scraped_score_zero() -> None:
    endpoints = [make_endpoint("a"), make_endpoint("b")]
    assert SCORER.score(make_request(), endpoints, CycleState()) == [0.0, 0.0]


def test_a_profile_picks_the_holder_of_the_adapter() -> None:
    profile = SchedulerProfile(
        name="default",
        scorers=[WeightedScorer(SCORER)],
        picker=max_score.MaxScorePicker("pick", max_score.Params()),
    )
    endpoints = [
        make_endpoint("a", max_adapters=4),
        make_endpoint("b", max_adapters=4, active_adapters=["tuned"]),
    ]
    result = profile.run(make_request(target_model="tuned"), endpoints, CycleState())
    assert [(s.endpoint.name, s.score) for s in result.scored] == [("a", 0.8), ("b", 1.0)]
    assert result.endpoints[0].endpoint.name == "b"

import pytest

from epp.scheduling import CycleState
from epp.testing import make_endpoint, make_plugin, make_profile, make_request, score_table
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.scorers.load_aware import LoadAwareScorer


@pytest.mark.parametrize(
    ("parameters", "waiting", "want"),
    [
        pytest.param({}, 0, 0.5, id="an empty queue is a half"),
        pytest.param({}, 32, 0.375, id="a quarter of the threshold"),  # 0.5 * (1 - 32/128)
        pytest.param({}, 128, 0.0, id="the threshold is 0"),
        pytest.param({}, 1000, 0.0, id="above the threshold is 0"),
        pytest.param({}, -3, 0.5, id="a negative queue is an empty one"),
        pytest.param({"threshold": 8}, 2, 0.375, id="a threshold of 8"),  # 0.5 * (1 - 2/8)
        pytest.param({"threshold": 0}, 64, 0.25, id="0 stands for 128"),  # 0.5 * (1 - 64/128)
        pytest.param({"threshold": -5}, 64, 0.25, id="less than 0 stands for 128"),
    ],
)
def test_score(parameters: dict[str, int], waiting: int, want: float) -> None:
    scorer = make_plugin(LoadAwareScorer, parameters)
    endpoints = [make_endpoint("a", waiting_requests=waiting)]
    assert score_table(scorer, make_request(), endpoints) == {"a": want}


def test_endpoints_never_scraped_score_a_half() -> None:
    endpoints = [make_endpoint("a"), make_endpoint("b")]
    scores = score_table(make_plugin(LoadAwareScorer), make_request(), endpoints)
    assert scores == {"a": 0.5, "b": 0.5}


def test_requests_sent_since_the_page_count() -> None:
    # Effective queue: 16 + 16 in flight = 32: 0.5 * (1 - 32/128)
    endpoints = [make_endpoint("a", waiting_requests=16, in_flight=16)]
    scores = score_table(make_plugin(LoadAwareScorer), make_request(), endpoints)
    assert scores == {"a": 0.375}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"threshold": "many"}, r"Expected `int`, got `str` - at `\$\.threshold`"),
        ({"treshold": 8}, "unknown field `treshold`"),
    ],
    ids=["no number", "misspelt"],
)
def test_bad_parameters_are_refused(parameters: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_plugin(LoadAwareScorer, parameters)


def test_a_profile_picks_the_shortest_queue() -> None:
    profile = make_profile(
        scorers=[make_plugin(LoadAwareScorer)], picker=make_plugin(MaxScorePicker)
    )
    endpoints = [make_endpoint("a", waiting_requests=64), make_endpoint("b", waiting_requests=32)]
    (best,) = profile.run(make_request(), endpoints, CycleState()).endpoints
    assert (best.endpoint.name, best.score) == ("b", 0.375)  # 0.5 * (1 - 32/128)

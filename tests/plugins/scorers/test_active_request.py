from collections.abc import Mapping

import pytest

from epp.scheduling import AttributeKey, CycleState, Endpoint
from epp.testing import make_endpoint, make_plugin, make_profile, make_request, score_table
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.scorers.active_request import ActiveRequestScorer
from epp_plugins.state_keys import IN_FLIGHT_LOAD, InFlightLoad, in_flight_load_of


def with_requests(
    counts: Mapping[str, int | None], key: AttributeKey[InFlightLoad] = IN_FLIGHT_LOAD
) -> list[Endpoint]:
    return [
        make_endpoint(
            name, attributes={} if count is None else {key: InFlightLoad(requests=count, tokens=1)}
        )
        for name, count in counts.items()
    ]


@pytest.mark.parametrize(
    ("parameters", "counts", "want"),
    [
        # most 8: (8-8)/8, (8-2)/8, and idle
        pytest.param({}, [8, 2, 0], [0.0, 0.75, 1.0], id="share of the busiest"),
        pytest.param({}, [5, 5], [0.0, 0.0], id="equally busy is 0"),
        pytest.param({}, [0, 0], [1.0, 1.0], id="all idle is 1"),
        pytest.param({}, [4, None], [0.0, 1.0], id="nothing known is none in flight"),
        # 2 <= 2 is idle; (8-4)/8
        pytest.param({"idleThreshold": 2}, [8, 4, 2], [0.0, 0.5, 1.0], id="up to the threshold"),
        pytest.param({"idleThreshold": 8}, [8, 1], [1.0, 1.0], id="the busiest is idle"),
        # (8-4)/8 * 0.5
        pytest.param({"maxBusyScore": 0.5}, [8, 4, 0], [0.0, 0.25, 1.0], id="a gap below idle"),
        pytest.param({"maxBusyScore": 0.0}, [8, 4, 0], [0.0, 0.0, 1.0], id="busy is busy"),
        pytest.param({"maxBusyScore": 1.5}, [8, 4, 0], [0.0, 0.5, 1.0], id="above 1 stands for 1"),
        pytest.param({"maxBusyScore": -1.0}, [8, 4], [0.0, 0.5], id="below 0 stands for 1"),
        pytest.param({"idleThreshold": -1}, [8, 4, 0], [0.0, 0.5, 1.0], id="negative is 0"),
        pytest.param({"requestTimeout": "2m"}, [8, 4], [0.0, 0.5], id="a timeout is ignored"),
    ],
)
def test_score(parameters: dict[str, object], counts: list[int | None], want: list[float]) -> None:
    endpoints = with_requests({f"pod-{i}": count for i, count in enumerate(counts)})
    scores = score_table(make_plugin(ActiveRequestScorer, parameters), make_request(), endpoints)
    assert list(scores.values()) == want


def test_a_named_producer_is_the_only_one_believed() -> None:
    mine = in_flight_load_of("mine")
    scorer = make_plugin(ActiveRequestScorer, {"inFlightLoadProducerName": "mine"})
    assert scorer.reads == (mine,)
    endpoints = with_requests({"a": 4, "b": 0}) + with_requests({"c": 4, "d": 1}, mine)
    scores = score_table(scorer, make_request(), endpoints)
    assert scores == {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.75}  # (4-1)/4


def test_without_a_name_the_default_producer_is_read() -> None:
    assert make_plugin(ActiveRequestScorer).reads == (IN_FLIGHT_LOAD,)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"idleThreshold": 1.5}, r"Expected `int`, got `float` - at `\$\.idleThreshold`"),
        ({"idleTreshold": 1}, "unknown field `idleTreshold`"),
    ],
    ids=["half a request", "misspelt"],
)
def test_bad_parameters_are_refused(parameters: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_plugin(ActiveRequestScorer, parameters)


def test_a_profile_picks_the_idle_endpoint() -> None:
    profile = make_profile(
        scorers=[make_plugin(ActiveRequestScorer)], picker=make_plugin(MaxScorePicker)
    )
    (best,) = profile.run(make_request(), with_requests({"a": 4, "b": 3}), CycleState()).endpoints
    assert (best.endpoint.name, best.score) == ("b", 0.25)  # (4-3)/4

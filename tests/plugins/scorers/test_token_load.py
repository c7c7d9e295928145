from collections.abc import Mapping

import pytest

from epp.scheduling import Endpoint
from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    make_state,
    score_table,
)
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.scorers.token_load import TokenLoadScorer
from epp_plugins.state_keys import (
    IN_FLIGHT_LOAD,
    UNCACHED_TOKENS,
    InFlightLoad,
    UncachedTokens,
    in_flight_load_of,
    uncached_tokens_of,
)


def with_tokens(counts: Mapping[str, int | None]) -> list[Endpoint]:
    return [
        make_endpoint(
            name,
            attributes={}
            if count is None
            else {IN_FLIGHT_LOAD: InFlightLoad(requests=1, tokens=count)},
        )
        for name, count in counts.items()
    ]


@pytest.mark.parametrize(
    ("threshold", "tokens", "uncached", "want"),
    [
        pytest.param(1000, [250, 1000, 5000], None, [0.75, 0.0, 0.0], id="tokens in flight"),
        pytest.param(1000, [0, None], None, [1.0, 1.0], id="nothing known is nothing in flight"),
        # (250 + 500)/1000, (0 + 500)/1000
        pytest.param(1000, [250, None], UncachedTokens(500), [0.25, 0.5], id="its own tokens"),
        # pod-0 holds all but 100: 1 - (250+100)/1000, pod-1 nothing: 1 - (0+500)/1000
        pytest.param(
            1000,
            [250, 0],
            UncachedTokens(500, {"pod-0": 100}),
            [0.65, 0.5],
            id="what is cached needs no work",
        ),
        pytest.param(1000, [0], UncachedTokens(500, {"pod-0": 0}), [1.0], id="all of it is cached"),
        pytest.param(1000, [-250], None, [1.0], id="less than nothing is nothing"),
        # 1048576 / 4194304 = 1/4
        pytest.param(None, [1_048_576], None, [0.75], id="4194304 by default"),
        pytest.param(0, [1_048_576], None, [0.75], id="0 stands for the default"),
        pytest.param(-1, [1_048_576], None, [0.75], id="less than 0 too"),
    ],
)
def test_score(
    threshold: int | None,
    tokens: list[int | None],
    uncached: UncachedTokens | None,
    want: list[float],
) -> None:
    parameters = {} if threshold is None else {"queueThresholdTokens": threshold}
    endpoints = with_tokens({f"pod-{i}": count for i, count in enumerate(tokens)})
    state = make_state({} if uncached is None else {UNCACHED_TOKENS: uncached})
    scorer = make_plugin(TokenLoadScorer, parameters)
    scores = score_table(scorer, make_request(), endpoints, state)
    assert list(scores.values()) == pytest.approx(want)


def test_a_named_producer_is_the_only_one_believed() -> None:
    parameters = {"inFlightLoadProducerName": "mine", "queueThresholdTokens": 1000}
    scorer = make_plugin(TokenLoadScorer, parameters)
    assert scorer.reads == (in_flight_load_of("mine"), uncached_tokens_of("mine"))
    endpoint = make_endpoint(
        "a",
        attributes={
            IN_FLIGHT_LOAD: InFlightLoad(tokens=900),
            in_flight_load_of("mine"): InFlightLoad(tokens=100),
        },
    )
    state = make_state(
        {UNCACHED_TOKENS: UncachedTokens(900), uncached_tokens_of("mine"): UncachedTokens(150)}
    )
    # 1 - (100 + 150)/1000
    assert score_table(scorer, make_request(), [endpoint], state) == {"a": 0.75}


def test_without_a_name_the_default_producer_is_read() -> None:
    assert make_plugin(TokenLoadScorer).reads == (IN_FLIGHT_LOAD, UNCACHED_TOKENS)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"queueThresholdTokens": "4M"}, r"Expected `int`, got `str`"),
        ({"queueThreshold": 1}, "unknown field `queueThreshold`"),
    ],
    ids=["no number", "misspelt"],
)
def test_bad_parameters_are_refused(parameters: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_plugin(TokenLoadScorer, parameters)


def test_a_profile_picks_where_the_least_is_to_be_computed() -> None:
    profile = make_profile(
        scorers=[make_plugin(TokenLoadScorer, {"queueThresholdTokens": 1000})],
        picker=make_plugin(MaxScorePicker),
    )
    # a: 1 - (300 + 500)/1000, b: 1 - (500 + 0)/1000
    state = make_state({UNCACHED_TOKENS: UncachedTokens(500, {"b": 0})})
    (best,) = profile.run(make_request(), with_tokens({"a": 300, "b": 500}), state).endpoints
    assert (best.endpoint.name, best.score) == ("b", 0.5)

import msgspec
import pytest

from epp.scheduling import CycleState, SchedulerProfile, WeightedScorer
from epp.testing import make_endpoint, make_request
from epp_plugins.pickers import max_score
from epp_plugins.scorers.prefix_cache import Params, PrefixCacheScorer
from epp_plugins.state_keys import PREFIX_MATCHES, PrefixMatches, prefix_matches_of


def state_with(held: int, total: int = 4) -> CycleState:
    state = CycleState()
    state.write(PREFIX_MATCHES, PrefixMatches({"a": held}, total_blocks=total, block_size=16))
    return state


@pytest.mark.parametrize(
    ("held", "params", "want"),
    [
        pytest.param(0, Params(), 0.0, id="nothing held"),
        pytest.param(2, Params(), 0.5, id="half held"),  # 2/4
        pytest.param(4, Params(), 1.0, id="all held"),
        # 0.5 * min(1, 4*16/128)**2 + 0.5 * 4/4 = 0.5 * 0.25 + 0.5
        pytest.param(
            4,
            Params(match_length_weight=0.5, match_length_scale_tokens=128),
            0.625,
            id="half the weight on length",
        ),
        # 1.0 * min(1, 2*16/16)**2 = 1: a match longer than the scale counts once
        pytest.param(
            2,
            Params(match_length_weight=1.0, match_length_scale_tokens=16),
            1.0,
            id="length is capped",
        ),
    ],
)
def test_score(held: int, params: Params, want: float) -> None:
    scorer = PrefixCacheScorer("prefix", params)
    scores = scorer.score(make_request(), [make_endpoint("a")], state_with(held))
    assert scores == pytest.approx([want])


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(CycleState(), id="nobody wrote matches"),
        pytest.param(state_with(0, total=0), id="the prompt has no block"),
    ],
)
def test_without_a_signal_all_score_zero(state: CycleState) -> None:
    """An endpoint is never preferred on a signal nobody produced."""
    endpoints = [make_endpoint("a"), make_endpoint("b")]
    scorer = PrefixCacheScorer("prefix", Params(match_length_weight=0.5))
    assert scorer.score(make_request(), endpoints, state) == [0.0, 0.0]


def test_a_named_producer_is_the_only_one_believed() -> None:
    state = state_with(1)
    state.write(prefix_matches_of("precise"), PrefixMatches({"a": 3}, 4, 16))
    named = PrefixCacheScorer("p", Params(prefix_match_info_producer_name="precise"))
    default = PrefixCacheScorer(
        "d", Params(prefix_match_info_producer_name="approx-prefix-cache-producer")
    )
    assert named.reads == (prefix_matches_of("precise"),)
    assert default.reads == (PREFIX_MATCHES,)
    endpoints = [make_endpoint("a")]
    assert named.score(make_request(), endpoints, state) == [0.75]
    assert default.score(make_request(), endpoints, state) == [0.25]


@pytest.mark.parametrize(
    "parameters",
    [
        {"matchLengthWeight": 1.5},
        {"matchLengthWeight": 0.5, "matchLengthScaleTokens": 0},
        {"matchLenghtWeight": 0.5},
    ],
    ids=["weight above 1", "scale of 0 with a weight", "misspelt"],
)
def test_bad_parameters_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(parameters, Params)


def test_without_a_weight_the_scale_does_not_matter() -> None:
    params = msgspec.convert({"matchLengthScaleTokens": 0}, Params)
    scorer = PrefixCacheScorer("prefix", params)
    assert scorer.score(make_request(), [make_endpoint("a")], state_with(2)) == [0.5]  # 2/4


def test_a_profile_picks_the_holder() -> None:
    profile = SchedulerProfile(
        name="default",
        scorers=[WeightedScorer(PrefixCacheScorer("prefix", Params()), 3.0)],
        picker=max_score.MaxScorePicker("pick", max_score.Params()),
    )
    endpoints = [make_endpoint("b"), make_endpoint("a")]
    (best,) = profile.run(make_request(), endpoints, state_with(2)).endpoints
    assert (best.endpoint.name, best.score) == ("a", 1.5)  # 3 * 2/4

"""``predicted-time-scorer``: least cost first, or the default's scores."""

import pytest

from epp.scheduling import Endpoint
from epp.testing import (
    check,
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    make_state,
    run_profile,
    score_table,
)
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.predicted_time import Constants, FleetModel, RequestForecast
from epp_plugins.scorers.kv_cache_utilization import KvCacheUtilizationScorer
from epp_plugins.scorers.predicted_time import PredictedTimeScorer
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer
from epp_plugins.scorers.queue_depth import QueueScorer
from epp_plugins.state_keys import (
    PREDICTED_TIME,
    PREFIX_MATCHES,
    PrefixMatches,
    predicted_time_of,
    prefix_matches_of,
)


def model_of(trust_samples: int = 0) -> FleetModel:
    """Return a model with 0.1 s per 1000 tokens."""
    constants = Constants(
        prior_base_seconds=0.0, prior_unit_seconds=0.1, trust_samples=trust_samples
    )
    return FleetModel(constants)


def pool() -> list[Endpoint]:
    return [make_endpoint(name) for name in ("a", "b", "c")]


def test_the_class_is_sound() -> None:
    check(PredictedTimeScorer)


def test_the_least_cost_scores_1_and_others_in_proportion() -> None:
    # Nothing waits: 0.1 s at a, 0.2 s at b and c.
    forecast = RequestForecast(model_of(), 0.0, 2000.0, {"a": 1000.0})
    state = make_state({PREDICTED_TIME: forecast})
    table = score_table(make_plugin(PredictedTimeScorer), make_request(), pool(), state)
    assert table == {"a": 1.0, "b": pytest.approx(0.5), "c": pytest.approx(0.5)}


def test_waits_count_with_what_the_request_delays() -> None:
    model = model_of()
    model.sent("a", 1000.0, 0.0)
    state = make_state({PREDICTED_TIME: RequestForecast(model, 0.0, 1000.0)})
    table = score_table(make_plugin(PredictedTimeScorer), make_request(), pool(), state)
    # x = x' = 0.1, and only a has a wait, W = 0.1: 0.1 at b and c, at a 0.1 + 0.1 * (1 + 0.5 * 1).
    assert table == {"a": pytest.approx(0.1 / 0.25), "b": 1.0, "c": 1.0}


def test_the_longer_all_wait_the_more_a_cached_prefix_counts() -> None:
    model = model_of()
    for name, tokens in (("a", 2000.0), ("b", 1000.0), ("c", 1000.0)):
        model.sent(name, tokens, 0.0)
    mean = model.learner.mean_service
    forecast = RequestForecast(model, 0.0, 1000.0, {"a": 0.0})
    state = make_state({PREDICTED_TIME: forecast})
    table = score_table(make_plugin(PredictedTimeScorer), make_request(), pool(), state)
    # At a it waits for 0.2 s and takes no time; at b and c it waits for 0.1 s and takes 0.1 s, but
    # others are delayed: Q = 0.1 / x', D = 0.1 * (2 * Q * (1 + Q) + 0.5 * Q).
    queue = 0.1 / mean
    cost = 0.2 + 0.1 * (2.0 * queue * (1.0 + queue) + 0.5 * queue)
    assert table == {"a": 1.0, "b": pytest.approx(0.2 / cost), "c": pytest.approx(0.2 / cost)}


@pytest.mark.parametrize("cached", [0.0, 0.8], ids=["nothing is used again", "most is"])
def test_a_full_cache_costs_more_as_far_as_its_blocks_are_used_again(cached: float) -> None:
    model = model_of()
    for _ in range(3):
        model.ended(model.sent("c", 1000.0 * (1.0 - cached), 0.0, total_tokens=1000.0), 0.0)
    model.scraped("a", waiting=0, running=1, kv_usage=0.75, now=0.0)
    state = make_state({PREDICTED_TIME: RequestForecast(model, 0.0, 1000.0)})
    table = score_table(make_plugin(PredictedTimeScorer), make_request(), pool(), state)
    # x = 0.1; at a three blocks are in use for each one that is not: 0.3 * share * 3 * (x + x').
    mean = model.learner.mean_service
    evictions = 0.3 * cached * 3.0 * (0.1 + mean)
    assert table == {"a": pytest.approx(0.1 / (0.1 + evictions)), "b": 1.0, "c": 1.0}


def test_an_excluded_endpoint_scores_0() -> None:
    model = model_of()
    model.failed(model.sent("a", 0.0, 0.0), 0.0)
    state = make_state({PREDICTED_TIME: RequestForecast(model, 0.1, 1000.0)})
    table = score_table(make_plugin(PredictedTimeScorer), make_request(), pool(), state)
    assert table == {"a": 0.0, "b": 1.0, "c": 1.0}


@pytest.mark.parametrize("case", ["no forecast", "not trusted", "all excluded", "all take no time"])
def test_otherwise_the_scores_are_those_of_the_default_profile(case: str) -> None:
    endpoints = [
        make_endpoint("a", waiting_requests=4, kv_cache_usage=0.5),
        make_endpoint("b", waiting_requests=1, kv_cache_usage=0.25),
        make_endpoint("c"),
    ]
    matches = PrefixMatches({"a": 3, "b": 1}, 4, 64)
    model = model_of(trust_samples=1 if case == "not trusted" else 0)
    tokens = 1000.0
    if case == "all excluded":
        for each in endpoints:
            model.failed(model.sent(each.name, 0.0, 0.0), 0.0)
    elif case == "all take no time":
        tokens = 0.0
    state = make_state({PREFIX_MATCHES: matches})
    if case != "no forecast":
        state.write(PREDICTED_TIME, RequestForecast(model, 0.1, tokens))
    request = make_request()
    table = score_table(make_plugin(PredictedTimeScorer), request, endpoints, state)
    parts = [
        score_table(make_plugin(kind), request, endpoints, state)
        for kind in (QueueScorer, KvCacheUtilizationScorer, PrefixCacheScorer)
    ]
    for name, score in table.items():
        queue, kv, prefix = (part[name] for part in parts)
        assert score == pytest.approx((2 * queue + 2 * kv + 3 * prefix) / 7)


def test_default_scores_without_a_prefix_index() -> None:
    table = score_table(make_plugin(PredictedTimeScorer), make_request(), pool())
    assert table == dict.fromkeys("abc", pytest.approx(4 / 7))


def test_producers_can_be_named() -> None:
    parameters = {
        "predictedTimeProducerName": "mine",
        "prefixMatchInfoProducerName": "blocks",
    }
    scorer = make_plugin(PredictedTimeScorer, parameters)
    assert scorer.reads == (predicted_time_of("mine"), prefix_matches_of("blocks"))


def test_a_profile_picks_the_least_cost() -> None:
    profile = make_profile(
        scorers=[make_plugin(PredictedTimeScorer)], picker=make_plugin(MaxScorePicker)
    )
    forecast = RequestForecast(model_of(), 0.0, 2000.0, {"b": 1000.0})
    state = make_state({PREDICTED_TIME: forecast})
    assert run_profile(profile, make_request(), pool(), state) == ["b"]


def test_an_endpoint_at_which_a_request_costs_nothing_scores_1() -> None:
    # Without a base, a prompt that a has cached as a whole takes no time there.
    forecast = RequestForecast(model_of(), 0.0, 1000.0, {"a": 0.0})
    state = make_state({PREDICTED_TIME: forecast})
    table = score_table(make_plugin(PredictedTimeScorer), make_request(), pool(), state)
    assert table == {"a": 1.0, "b": 0.0, "c": 0.0}

import random
from collections.abc import Mapping

import pytest

from epp.scheduling import CycleState, Endpoint
from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    make_state,
    run_filter,
    run_profile,
)
from epp_plugins.filters.prefix_cache_affinity import PrefixCacheAffinityFilter
from epp_plugins.state_keys import (
    IN_FLIGHT_LOAD,
    PREFIX_MATCHES,
    InFlightLoad,
    PrefixMatches,
    in_flight_load_of,
    prefix_matches_of,
)

ALL = ["a", "b", "c"]


def affinity(parameters: Mapping[str, object] | None = None) -> PrefixCacheAffinityFilter:
    return make_plugin(PrefixCacheAffinityFilter, parameters, rng=random.Random(0))


def pool(tokens: Mapping[str, int] | None = None) -> list[Endpoint]:
    return [
        make_endpoint(
            name,
            attributes={IN_FLIGHT_LOAD: InFlightLoad(tokens=tokens[name])}
            if tokens and name in tokens
            else {},
        )
        for name in ALL
    ]


def holds(blocks: Mapping[str, int], total: int = 10) -> CycleState:
    return make_state({PREFIX_MATCHES: PrefixMatches(blocks, total, block_size=64)})


@pytest.mark.parametrize(
    ("parameters", "state", "want"),
    [
        pytest.param({}, holds({"b": 9, "c": 7}), ["b"], id="9 of 10 is sticky, 7 is not"),
        pytest.param({}, holds({"b": 8}), ["b"], id="just the threshold is sticky"),
        pytest.param({}, holds({"c": 8, "a": 10}), ["a", "c"], id="the order stays"),
        pytest.param({}, holds({"b": 7}), ALL, id="nobody is sticky"),
        pytest.param({}, holds({"x": 10}), ALL, id="the holder is no candidate"),
        pytest.param({}, holds({"a": 9, "b": 9, "c": 9}), ALL, id="all are sticky"),
        pytest.param({}, holds({}, total=0), ALL, id="the prompt has no block"),
        pytest.param({}, CycleState(), ALL, id="nothing known"),
        pytest.param({"affinityThreshold": 0.5}, holds({"b": 5}), ["b"], id="half is enough"),
        pytest.param({"affinityThreshold": 0}, holds({"b": 10}), ALL, id="turned off"),
        pytest.param({"affinityThreshold": -1}, holds({"b": 10}), ALL, id="below 0 is off, too"),
        pytest.param({"explorationProbability": 1}, holds({"b": 10}), ALL, id="always exploring"),
    ],
)
def test_filter(parameters: dict[str, object], state: CycleState, want: list[str]) -> None:
    assert run_filter(affinity(parameters), make_request(), pool(), state) == want


# 1000 tokens a second and 2000 ms: the others may be 2000 tokens ahead.
GATE: dict[str, object] = {"peakPrefillThroughput": 1000, "maxTTFTPenaltyMs": 2000}


@pytest.mark.parametrize(
    ("parameters", "tokens", "want"),
    [
        pytest.param(GATE, {"a": 2000}, ["a"], id="just the penalty is bearable"),
        pytest.param(GATE, {"a": 2001}, ALL, id="a token more is not"),
        pytest.param(GATE, {"a": 5000, "b": 3000, "c": 3001}, ["a"], id="the others are busy too"),
        pytest.param(GATE, {"a": 5000, "b": 9999, "c": 2999}, ALL, id="the best of the others"),
        pytest.param(GATE, {}, ["a"], id="nothing known is nothing in flight"),
        pytest.param(GATE | {"maxTTFTPenaltyMs": 0}, {"a": 10**9}, ["a"], id="at any cost"),
        # 18000 ms at 15928 tokens a second: 286704 tokens
        pytest.param({}, {"a": 286_704}, ["a"], id="bearable by default"),
        pytest.param({}, {"a": 286_705}, ALL, id="unbearable by default"),
    ],
)
def test_a_sticky_endpoint_that_is_too_busy_is_not_kept_alone(
    parameters: dict[str, object], tokens: dict[str, int], want: list[str]
) -> None:
    state = holds({"a": 10})
    assert run_filter(affinity(parameters), make_request(), pool(tokens), state) == want


def test_the_least_busy_of_the_sticky_ones_counts() -> None:
    endpoints = pool({"a": 9000, "b": 1500})
    state = holds({"a": 10, "b": 10})
    assert run_filter(affinity(GATE), make_request(), endpoints, state) == ["a", "b"]


def test_a_sole_endpoint_stays() -> None:
    endpoints = [make_endpoint("a")]
    assert run_filter(affinity(), make_request(), endpoints, holds({"a": 1})) == ["a"]


def test_of_10000_requests_the_given_share_explores() -> None:
    plugin, request, endpoints = affinity({"explorationProbability": 0.25}), make_request(), pool()
    state = holds({"b": 10})
    runs = [run_filter(plugin, request, endpoints, state) for _ in range(10_000)]
    assert all(kept in (["b"], ALL) for kept in runs)
    assert runs.count(ALL) / 10_000 == pytest.approx(0.25, abs=0.02)


def test_named_producers_are_the_only_ones_believed() -> None:
    matches, load = prefix_matches_of("precise"), in_flight_load_of("mine")
    names = {"prefixMatchInfoProducerName": "precise", "inFlightLoadProducerName": "mine"}
    plugin = affinity(GATE | names)
    assert plugin.reads == (matches, load)
    endpoints = pool({"b": 9000})  # of the default producer
    state = holds({"a": 10})
    state.write(matches, PrefixMatches({"b": 10}, 10, 64))
    assert run_filter(plugin, make_request(), endpoints, state) == ["b"]
    endpoints[1].attributes[load] = InFlightLoad(tokens=9000)
    assert run_filter(plugin, make_request(), endpoints, state) == ALL


def test_what_it_reads_depends_on_the_penalty() -> None:
    assert affinity().reads == (PREFIX_MATCHES, IN_FLIGHT_LOAD)
    assert affinity({"maxTTFTPenaltyMs": 0}).reads == (PREFIX_MATCHES,)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"ttftSource": "latencyPredictor"}, "latencyPredictor is not supported yet"),
        ({"ttftSource": "guess"}, "ttftSource: 'guess' is unknown; use prefillThroughput"),
        ({"peakPrefillThroughput": 0}, "peakPrefillThroughput is 0; give tokens per second"),
        ({"affinityThreshold": 1.5}, r"Expected `float` <= 1.0 - at `\$\.affinityThreshold`"),
        ({"explorationProbability": -0.1}, r"at `\$\.explorationProbability`"),
        ({"maxTTFTPenaltyMs": -1}, r"at `\$\.maxTTFTPenaltyMs`"),
        ({"maxTtftPenaltyMs": 1}, "unknown field `maxTtftPenaltyMs`"),
    ],
    ids=[
        "the predictor",
        "an unknown source",
        "no throughput",
        "more than all blocks",
        "less than never",
        "a negative penalty",
        "misspelt",
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        affinity(parameters)


def test_without_a_penalty_the_throughput_may_be_0() -> None:
    plugin = affinity({"peakPrefillThroughput": 0, "maxTTFTPenaltyMs": 0})
    assert run_filter(plugin, make_request(), pool({"a": 9}), holds({"a": 10})) == ["a"]


def test_a_profile_picks_among_the_sticky_ones() -> None:
    profile = make_profile(filters=[affinity()])
    picked = run_profile(profile, make_request(), pool(), holds({"a": 2, "c": 10}))
    assert picked == ["c"]

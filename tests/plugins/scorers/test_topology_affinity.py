from itertools import product

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
from epp_plugins.scorers.topology_affinity import TopologyAffinityScorer
from epp_plugins.state_keys import PEER_ENDPOINT, TOPOLOGY, Topology, topology_of
from epp_plugins.topology import closeness

PLUGIN = make_plugin(TopologyAffinityScorer)
HERE = Topology("h1", "r1", "z1", "e1")


def placed(name: str, topology: Topology) -> Endpoint:
    return make_endpoint(name, attributes={TOPOLOGY: topology})


@pytest.mark.parametrize(
    ("topology", "want"),
    [
        pytest.param(HERE, 1.0, id="same host"),
        pytest.param(Topology("h2", "r1", "z1", "e1"), 0.2, id="same rack"),
        pytest.param(Topology("h2", "r2", "z1", "e1"), 0.05, id="same zone"),
        pytest.param(Topology("h2", "r2", "z2", "e1"), 0.02, id="same region"),
        pytest.param(Topology("h2", "r2", "z2", "e2"), 0.0, id="nothing"),
        pytest.param(Topology(zone="z1"), 0.05, id="only the zone known"),
        pytest.param(Topology("r1", "h1", "e1", "z1"), 0.0, id="another place's name"),
        pytest.param(Topology(), 0.0, id="nothing known"),
        pytest.param(None, 0.0, id="no attribute"),
    ],
)
def test_score(topology: Topology | None, want: float) -> None:
    state = make_state({PEER_ENDPOINT: placed("peer", HERE)})
    endpoint = make_endpoint("a") if topology is None else placed("a", topology)
    assert score_table(PLUGIN, make_request(), [endpoint], state) == {"a": want}


@pytest.mark.parametrize(
    "peer",
    [
        pytest.param(None, id="no stage before"),
        pytest.param(make_endpoint("peer"), id="peer without the attribute"),
        pytest.param(placed("peer", Topology()), id="peer that is nowhere"),
    ],
)
def test_without_a_place_to_be_close_to_all_score_zero(peer: Endpoint | None) -> None:
    state = make_state({} if peer is None else {PEER_ENDPOINT: peer})
    endpoints = [placed("a", HERE), placed("b", Topology()), make_endpoint("c")]
    table = score_table(PLUGIN, make_request(), endpoints, state)
    assert table == {"a": 0.0, "b": 0.0, "c": 0.0}


def test_closeness_is_the_same_seen_from_either_side() -> None:
    places = [Topology(*each) for each in product(("", "1", "2"), repeat=4)]
    assert all(closeness(a, b) is closeness(b, a) for a in places for b in places)


def test_the_named_extractors_topology_counts() -> None:
    check(TopologyAffinityScorer)
    plugin = make_plugin(TopologyAffinityScorer, {"topologyProducerName": "mine"})
    own = make_endpoint("own", attributes={topology_of("mine"): HERE})
    table = score_table(
        plugin, make_request(), [placed("default's", HERE), own], make_state({PEER_ENDPOINT: own})
    )
    assert table == {"default's": 0.0, "own": 1.0}
    assert plugin.optional_reads == (PEER_ENDPOINT, topology_of("mine"))


def test_a_parameter_of_the_filter_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown field `minAffinity`"):
        make_plugin(TopologyAffinityScorer, {"minAffinity": "host"})


def test_a_profile_orders_by_closeness() -> None:
    profile = make_profile(scorers=[PLUGIN])
    endpoints = [
        placed("zone", Topology(zone="z1")),
        make_endpoint("unknown"),
        placed("host", HERE),
        placed("rack", Topology(rack="r1")),
    ]
    state = make_state({PEER_ENDPOINT: placed("peer", HERE)})
    picked = run_profile(profile, make_request(), endpoints, state)
    assert picked == ["host", "rack", "zone", "unknown"]

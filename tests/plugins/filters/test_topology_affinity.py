from typing import Any

import pytest

from epp.scheduling import CycleState, Endpoint
from epp.testing import (
    check,
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    make_state,
    run_filter,
    run_profile,
)
from epp_plugins.filters.topology_affinity import TopologyAffinityFilter
from epp_plugins.state_keys import PEER_ENDPOINT, TOPOLOGY, Topology, topology_of

HERE = Topology("h1", "r1", "z1", "e1")


def placed(name: str, topology: Topology, producer: str = "") -> Endpoint:
    return make_endpoint(name, attributes={topology_of(producer): topology})


ENDPOINTS = [
    placed("host", HERE),
    placed("rack", Topology("h2", "r1", "z1", "e1")),
    placed("zone", Topology("h3", "r3", "z1", "e1")),
    placed("region", Topology("h4", "r4", "z4", "e1")),
    placed("far", Topology("h5", "r5", "z5", "e5")),
    placed("rack alone", Topology(rack="r1")),
    placed("nowhere", Topology()),
    make_endpoint("unknown"),
]
ALL = [endpoint.name for endpoint in ENDPOINTS]


def beside(topology: Topology | None, producer: str = "") -> CycleState:
    """Return the state of a request whose stage before runs at ``topology``."""
    peer = make_endpoint("peer")
    if topology is not None:
        peer = placed("peer", topology, producer)
    return make_state({PEER_ENDPOINT: peer})


@pytest.mark.parametrize(
    ("parameters", "peer", "want"),
    [
        pytest.param({}, HERE, ["host"], id="host by default"),
        pytest.param(
            {"minAffinity": "rack"}, HERE, ["host", "rack", "rack alone"], id="rack or tighter"
        ),
        pytest.param(
            {"minAffinity": "zone"},
            HERE,
            ["host", "rack", "zone", "rack alone"],
            id="zone or tighter",
        ),
        pytest.param(
            {"minAffinity": "region"},
            HERE,
            ["host", "rack", "zone", "region", "rack alone"],
            id="region or tighter",
        ),
        pytest.param({}, Topology("h9", "r1", "z1", "e1"), ALL, id="all, as none is on the host"),
        pytest.param({"minAffinity": "region"}, Topology(), ALL, id="all, as the peer is nowhere"),
        pytest.param({}, None, ALL, id="all, as the peer is not known"),
        pytest.param(
            {"topologyProducerName": "mine"}, HERE, ALL, id="all, as another extractor wrote it"
        ),
    ],
)
def test_filter(parameters: dict[str, Any], peer: Topology | None, want: list[str]) -> None:
    plugin = make_plugin(TopologyAffinityFilter, parameters)
    assert run_filter(plugin, make_request(), ENDPOINTS, beside(peer)) == want


def test_without_a_stage_before_all_are_kept() -> None:
    plugin = make_plugin(TopologyAffinityFilter)
    assert run_filter(plugin, make_request(), ENDPOINTS) == ALL
    assert run_filter(plugin, make_request(), [], beside(HERE)) == []


def test_the_named_extractors_topology_counts() -> None:
    check(TopologyAffinityFilter)
    plugin = make_plugin(TopologyAffinityFilter, {"topologyProducerName": "mine"})
    endpoints = [placed("default's", HERE), placed("mine", HERE, "mine")]
    assert run_filter(plugin, make_request(), endpoints, beside(HERE, "mine")) == ["mine"]
    assert plugin.optional_reads == (PEER_ENDPOINT, topology_of("mine"))
    assert make_plugin(TopologyAffinityFilter).optional_reads == (PEER_ENDPOINT, TOPOLOGY)


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'datacenter' - at `\$\.minAffinity`"):
        make_plugin(TopologyAffinityFilter, {"minAffinity": "datacenter"})


def test_a_profile_picks_in_the_peers_zone() -> None:
    plugin = make_plugin(TopologyAffinityFilter, {"minAffinity": "zone"})
    profile = make_profile(filters=[plugin])
    endpoints = [ENDPOINTS[3], ENDPOINTS[2]]
    assert run_profile(profile, make_request(), endpoints, beside(HERE)) == ["zone"]

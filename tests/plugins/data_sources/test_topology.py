"""``topology-extractor`` follows the labels of endpoints, from their first to their last."""

from typing import Any

import pytest
from config.graphs import load

from epp.building import make_builder
from epp.data_layer import EndpointSpec, EndpointStore
from epp.scheduling import Endpoint
from epp.testing import check, make_endpoint, make_plugin
from epp_plugins.data_sources.topology import TopologyExtractor
from epp_plugins.state_keys import TOPOLOGY, Topology, topology_of

STANDARD = {
    "kubernetes.io/hostname": "node-1",
    "topology.kubernetes.io/rack": "r1",
    "topology.kubernetes.io/zone": "eu-1a",
    "topology.kubernetes.io/region": "eu-1",
}


def extractor(parameters: dict[str, Any] | None = None) -> TopologyExtractor:
    return make_plugin(TopologyExtractor, parameters, name="topology-extractor")


@pytest.mark.parametrize(
    ("parameters", "labels", "want"),
    [
        pytest.param({}, STANDARD, Topology("node-1", "r1", "eu-1a", "eu-1"), id="standard labels"),
        pytest.param(
            {},
            {"topology.kubernetes.io/zone": "eu-1a"},
            Topology(zone="eu-1a"),
            id="what is there of them",
        ),
        pytest.param(
            {"hostname": "slice", "rack": "a", "zone": "b", "region": "c"},
            {**STANDARD, "slice": "0", "a": "1", "b": "2", "c": "3"},
            Topology("0", "1", "2", "3"),
            id="labels of one's own",
        ),
        pytest.param(
            {"hostname": "", "zone": "b"},
            {**STANDARD, "b": "2"},
            Topology("node-1", "r1", "2", "eu-1"),
            id="the default for an empty name",
        ),
        pytest.param({}, {"zone": "eu-1a"}, None, id="none of them"),
        pytest.param({}, {}, None, id="no labels"),
        pytest.param({}, {"kubernetes.io/hostname": ""}, None, id="empty label"),
    ],
)
def test_labels_become_an_attribute(
    parameters: dict[str, Any], labels: dict[str, str], want: Topology | None
) -> None:
    endpoint = make_endpoint(labels=labels)
    extractor(parameters).endpoint_added(endpoint)
    assert endpoint.attribute(TOPOLOGY) == want
    assert (TOPOLOGY in endpoint.attributes) == (want is not None)


def test_the_attribute_bears_the_instances_name() -> None:
    check(TopologyExtractor)
    plugin = make_plugin(TopologyExtractor, name="mine")
    endpoint = make_endpoint(labels=STANDARD)
    plugin.endpoint_added(endpoint)
    assert plugin.writes == (topology_of("mine"),)
    assert list(endpoint.attributes) == [topology_of("mine")]
    assert extractor().writes == (TOPOLOGY,)


def report(store: EndpointStore, **labels: str) -> Endpoint:
    """Report one endpoint with these labels to ``store``."""
    standard = {f"topology.kubernetes.io/{name}": value for name, value in labels.items()}
    store.replace_endpoints("file", [EndpointSpec("ns/a", "1:1", standard)])
    return store.snapshot[0]


def test_the_attribute_follows_the_labels_while_the_endpoint_stays() -> None:
    store = EndpointStore()
    store.add_listener(extractor())
    endpoint = report(store, zone="a")
    assert endpoint.attribute(TOPOLOGY) == Topology(zone="a")
    assert report(store, zone="b", rack="r") is endpoint
    assert endpoint.attribute(TOPOLOGY) == Topology(zone="b", rack="r")
    assert report(store, other="x") is endpoint
    assert TOPOLOGY not in endpoint.attributes
    report(store, zone="c")
    assert endpoint.attribute(TOPOLOGY) == Topology(zone="c")


def test_an_extractor_that_a_reload_drops_takes_its_attributes_along() -> None:
    store, plugin = EndpointStore(), extractor()
    store.add_listener(plugin)
    store.replace_endpoints("file", [EndpointSpec("a", "1:1", STANDARD)])
    store.remove_listener(plugin)
    plugin.close()
    assert TOPOLOGY not in store.snapshot[0].attributes


def test_an_extractor_that_a_reload_replaces_leaves_the_new_ones_attributes() -> None:
    store, old, new = EndpointStore(), extractor(), extractor({"zone": "place"})
    store.add_listener(old)
    labels = {**STANDARD, "place": "here"}
    store.replace_endpoints(
        "file", [EndpointSpec("a", "1:1", labels), EndpointSpec("gone", "1:2", labels)]
    )
    store.add_listener(new)
    store.remove_listener(old)
    store.replace_endpoints("file", [EndpointSpec("a", "1:1", labels)])
    old.close()
    assert store.snapshot[0].attribute(TOPOLOGY) == Topology("node-1", "r1", "here", "eu-1")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"host": "x"}, "unknown field `host`", id="unknown"),
        pytest.param({"zone": 3}, r"Expected `str`, got `int` - at `\$\.zone`", id="no text"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extractor(parameters)


def test_it_needs_no_entry_in_the_data_layer_and_stands_before_its_readers() -> None:
    graph = make_builder(0).build(
        load(
            "plugins: [{type: topology-affinity-scorer, name: close, parameters:"
            " {topologyProducerName: mine}}, {type: topology-extractor, name: mine}]\n"
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: close}]}]\n"
        )
    )
    assert graph.warnings == ()
    assert [name for name in graph.plugins if name in {"mine", "close"}] == ["mine", "close"]

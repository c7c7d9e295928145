"""``topology-extractor`` follows the labels of endpoints from addition to removal."""

from typing import Any

import pytest
from config.graphs import load

from epp.building import make_builder
from epp.data_layer import EndpointSpec, EndpointStore, ObjectChange, ObjectEvent
from epp.scheduling import Endpoint
from epp.testing import check, make_endpoint, make_plugin
from epp_plugins.data_sources.topology import TopologyExtractor
from epp_plugins.pods import POD
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


UPDATED, DELETED = ObjectChange.UPDATED, ObjectChange.DELETED


def pod(
    name: str = "a", node: str = "", change: ObjectChange = UPDATED, uid: str = "1", **spec: str
) -> ObjectEvent:
    document = {"metadata": {"name": name}, "spec": spec | ({"nodeName": node} if node else {})}
    return ObjectEvent(change, POD, "ns", name, uid, document)


def join(store: EndpointStore, *ranks: int, uid: str = "1", **labels: str) -> list[Endpoint]:
    """Report the ranks of pod ``ns/a``."""
    store.replace_endpoints(
        "kubernetes",
        [
            EndpointSpec(f"ns/a-rank-{rank}", f"10.0.0.1:{8000 + rank}", labels, incarnation=uid)
            for rank in ranks
        ],
    )
    return list(store.snapshot)


def hosts(endpoints: list[Endpoint]) -> list[str | None]:
    found = [endpoint.attribute(TOPOLOGY) for endpoint in endpoints]
    return [None if each is None else each.host for each in found]


@pytest.mark.parametrize("order", ["pod first", "endpoint first", "not bound yet"])
def test_the_host_is_the_node_of_the_pod_in_any_order_of_events(order: str) -> None:
    store, plugin = EndpointStore(), extractor()
    store.add_listener(plugin)
    if order == "pod first":
        plugin.object_changed(pod(node="node-1"))
    if order == "not bound yet":
        plugin.object_changed(pod())
    endpoints = join(store, 0, 1)
    if order != "pod first":
        assert hosts(endpoints) == [None, None]
        plugin.object_changed(pod(node="node-1"))
    assert hosts(endpoints) == ["node-1", "node-1"]
    plugin.object_changed(pod("b", "node-2"))
    plugin.object_changed(pod("a-rank-0", "node-3"))
    assert hosts(endpoints) == ["node-1", "node-1"]


def test_the_label_of_the_host_comes_before_the_node_and_other_levels_stay() -> None:
    store, plugin = EndpointStore(), extractor()
    store.add_listener(plugin)
    plugin.object_changed(pod(node="node-1"))
    zone = {"topology.kubernetes.io/zone": "z"}
    (endpoint,) = join(store, 0, **zone, **{"kubernetes.io/hostname": "labelled"})
    assert endpoint.attribute(TOPOLOGY) == Topology("labelled", zone="z")
    join(store, 0, **zone)
    assert endpoint.attribute(TOPOLOGY) == Topology("node-1", zone="z")
    plugin.object_changed(pod(change=DELETED, node="node-1"))
    assert endpoint.attribute(TOPOLOGY) == Topology(zone="z")


def test_a_pod_made_anew_under_its_name_does_not_have_the_old_ones_node() -> None:
    store, plugin = EndpointStore(), extractor()
    store.add_listener(plugin)
    plugin.object_changed(pod(node="node-1"))
    assert hosts(join(store, 0, uid="2")) == [None]
    plugin.object_changed(pod(change=DELETED, node="node-1"))
    plugin.object_changed(pod(node="node-2", uid="2"))
    assert hosts(list(store.snapshot)) == ["node-2"]


def test_an_endpoint_that_has_left_is_not_written_to() -> None:
    store, plugin = EndpointStore(), extractor()
    store.add_listener(plugin)
    first, second = join(store, 0, 1)
    assert join(store, 1) == [second]
    plugin.object_changed(pod(node="node-1"))
    assert hosts([first, second]) == [None, "node-1"]
    join(store)
    plugin.object_changed(pod(node="node-2"))
    assert hosts([first, second]) == [None, "node-1"]


def test_in_the_go_epps_way_the_host_is_the_pods_own_name() -> None:
    store = EndpointStore()
    plugin = make_plugin(TopologyExtractor, name="topology-extractor", compat="reference")
    assert (plugin.object_fields, extractor().object_fields) == (
        ("spec.hostname",),
        ("spec.nodeName",),
    )
    store.add_listener(plugin)
    plugin.object_changed(pod(node="node-1", hostname="worker-0"))
    assert hosts(join(store, 0)) == ["worker-0"]


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

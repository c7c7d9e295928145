"""The store keeps unchanged endpoints, reports changes, and never has two of one name."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.data_layer import (
    DrainMarks,
    DuplicateEndpointError,
    EndpointListener,
    EndpointSpec,
    EndpointStore,
)
from epp.scheduling import NEVER_SCRAPED, AttributeKey, Endpoint, EndpointMetrics


class Recorder:
    """A listener that remembers what it was told and keeps a pool of its own."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.pool: dict[str, Endpoint] = {}

    def endpoint_added(self, endpoint: Endpoint) -> None:
        assert endpoint.name not in self.pool
        self.pool[endpoint.name] = endpoint
        self.events.append(("added", endpoint.address))

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        assert self.pool.pop(endpoint.name) is endpoint
        self.events.append(("removed", endpoint.address))


class LabelReader(Recorder, EndpointListener):
    """A plugin that remembers changed labels too, and each endpoint's present ones."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: dict[str, Mapping[str, str]] = {}

    def endpoint_added(self, endpoint: Endpoint) -> None:
        super().endpoint_added(endpoint)
        self.labels[endpoint.name] = endpoint.labels

    def endpoint_changed(self, endpoint: Endpoint) -> None:
        assert self.pool[endpoint.name] is endpoint
        assert self.labels[endpoint.name] != endpoint.labels
        self.labels[endpoint.name] = endpoint.labels
        self.events.append(("changed", endpoint.address))

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        super().endpoint_removed(endpoint)
        del self.labels[endpoint.name]


def test_the_snapshot_is_sorted_and_shared_until_something_changes() -> None:
    store = EndpointStore()
    assert not store.synced
    store.replace_endpoints(
        "file", [EndpointSpec("ns/b", "1.1.1.1:2"), EndpointSpec("ns/a", "1:1")]
    )
    snapshot = store.snapshot
    assert [endpoint.name for endpoint in snapshot] == ["ns/a", "ns/b"]
    assert store.synced
    store.replace_endpoints(
        "file", [EndpointSpec("ns/a", "1:1"), EndpointSpec("ns/b", "1.1.1.1:2")]
    )
    assert store.snapshot is snapshot
    assert store.version == 1


def test_an_empty_first_report_counts_as_synced() -> None:
    store = EndpointStore()
    store.replace_endpoints("file", [])
    assert store.synced
    assert store.version == 0


def test_changed_labels_keep_the_endpoint_and_make_a_new_snapshot() -> None:
    store, recorder = EndpointStore(), Recorder()
    store.add_listener(recorder)
    store.replace_endpoints("file", [EndpointSpec("ns/a", "1:1", {"role": "decode"})])
    before = store.snapshot
    store.replace_endpoints("file", [EndpointSpec("ns/a", "1:1", {"role": "prefill"})])
    assert store.snapshot is not before
    assert store.snapshot[0] is before[0]
    assert before[0].labels == {"role": "prefill"}
    assert recorder.events == [("added", "1:1")]


def test_plugins_hear_of_changed_labels_once_and_see_the_new_snapshot() -> None:
    snapshots = []

    class Reader(LabelReader):
        def endpoint_changed(self, endpoint: Endpoint) -> None:
            super().endpoint_changed(endpoint)
            snapshots.append(store.snapshot)

    store, reader = EndpointStore(), Reader()
    store.add_listener(reader)
    report = [EndpointSpec("a", "1:1", {"x": "1"}), EndpointSpec("b", "2:2", {"x": "1"})]
    store.replace_endpoints("file", report)
    reader.events.clear()
    report = [EndpointSpec("a", "1:1", {"x": "2"}), EndpointSpec("c", "3:3")]
    for _ in range(2):
        store.replace_endpoints("file", report)
    assert reader.events == [("removed", "2:2"), ("changed", "1:1"), ("added", "3:3")]
    assert snapshots == [store.snapshot]


def test_a_plugin_that_reads_no_labels_need_not_hear_of_them() -> None:
    class Deaf(Recorder, EndpointListener):
        """Inherits ``endpoint_changed``."""

    store, deaf, reader = EndpointStore(), Deaf(), LabelReader()
    store.add_listener(deaf)
    store.add_listener(reader)
    store.replace_endpoints("file", [EndpointSpec("a", "1:1", {"x": "1"})])
    store.replace_endpoints("file", [EndpointSpec("a", "1:1")])
    assert deaf.events == [("added", "1:1")]
    assert reader.labels == {"a": {}}


def test_a_changed_address_is_a_new_incarnation() -> None:
    store, recorder = EndpointStore(), Recorder()
    store.replace_endpoints("file", [EndpointSpec("ns/a", "1:1")])
    old = store.snapshot[0]
    store.add_listener(recorder)
    store.replace_endpoints("file", [EndpointSpec("ns/a", "2:2")])
    assert store.snapshot[0] is not old
    assert recorder.events == [("added", "1:1"), ("removed", "1:1"), ("added", "2:2")]
    assert store.find_address("2:2") is store.snapshot[0]
    assert store.find_address("1:1") is None


@pytest.mark.parametrize(
    ("source", "specs", "message"),
    [
        pytest.param(
            "file", [EndpointSpec("ns/b", "1:1")] * 2, "'ns/b' is listed twice by 'file'", id="own"
        ),
        pytest.param(
            "file",
            [EndpointSpec("ns/c", "1:1"), EndpointSpec("ns/a", "3:3")],
            "'ns/a' is reported by 'file', but 'static' has it already",
            id="another source's",
        ),
    ],
)
def test_a_duplicate_name_changes_nothing(
    source: str, specs: Sequence[EndpointSpec], message: str
) -> None:
    store = EndpointStore()
    store.replace_endpoints("static", [EndpointSpec("ns/a", "1:1")])
    snapshot = store.snapshot
    with pytest.raises(DuplicateEndpointError, match=message):
        store.replace_endpoints(source, specs)
    assert store.snapshot is snapshot
    store.replace_endpoints("file", [EndpointSpec("ns/b", "1:1")])


def test_a_failing_listener_keeps_nobody_from_hearing() -> None:
    class Broken(Recorder):
        def endpoint_added(self, endpoint: Endpoint) -> None:
            raise RuntimeError(endpoint.name)

    store, recorder = EndpointStore(), Recorder()
    store.add_listener(Broken())
    store.add_listener(recorder)
    store.replace_endpoints("file", [EndpointSpec("ns/a", "1:1")])
    assert recorder.events == [("added", "1:1")]


def test_a_removed_listener_hears_nothing_more() -> None:
    store, recorder = EndpointStore(), Recorder()
    store.add_listener(recorder)
    store.remove_listener(recorder)
    store.replace_endpoints("file", [EndpointSpec("ns/a", "1:1")])
    assert recorder.events == []


def identity(endpoint: Endpoint) -> tuple[str, str, str]:
    return endpoint.name, endpoint.address, endpoint.incarnation


_specs = st.lists(
    st.builds(
        EndpointSpec,
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from(["1:1", "2:2"]),
        st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"]), max_size=2),
        st.sampled_from(["", "u1", "u2"]),
    ),
    max_size=4,
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["file", "static"]), _specs, st.sets(st.sampled_from(["a", "b", "c"]))
        ),
        max_size=12,
    )
)
def test_any_sequence_of_reports_agrees_with_a_dict(
    reports: list[tuple[str, list[EndpointSpec], set[str]]],
) -> None:
    """Each report comes with the names of the endpoints that get a request after it."""
    store, recorder = EndpointStore(), LabelReader()
    store.add_listener(recorder)
    model: dict[str, dict[str, EndpointSpec]] = {}
    busy: dict[tuple[str, str, str], Endpoint] = {}
    for source, specs, requested in reports:
        others = {n for s, known in model.items() if s != source for n in known}
        names = [spec.name for spec in specs]
        before = {endpoint.name: endpoint for endpoint in store.snapshot}
        snapshot = store.snapshot
        if len(set(names)) < len(names) or others & set(names):
            with pytest.raises(DuplicateEndpointError):
                store.replace_endpoints(source, specs)
            assert store.snapshot is snapshot
            continue
        store.replace_endpoints(source, specs)
        unchanged = model.get(source, {}) == {spec.name: spec for spec in specs}
        assert (store.snapshot is snapshot) == unchanged
        model[source] = {spec.name: spec for spec in specs}
        wanted = sorted(
            (s for known in model.values() for s in known.values()), key=lambda s: s.name
        )
        assert [(e.name, e.address, e.labels) for e in store.snapshot] == [
            (s.name, s.address, s.labels) for s in wanted
        ]
        for endpoint in store.snapshot:
            old = before.get(endpoint.name)
            is_same = old is not None and identity(old) == identity(endpoint)
            assert (old is endpoint) == is_same
            assert is_same or busy.get(identity(endpoint), endpoint) is endpoint
            if endpoint.name in requested:
                endpoint.load.start(0.0)
                busy[identity(endpoint)] = endpoint
        assert recorder.pool == {endpoint.name: endpoint for endpoint in store.snapshot}
        assert recorder.labels == {endpoint.name: endpoint.labels for endpoint in store.snapshot}


def test_reports_of_several_sources_are_taken_whole_or_not_at_all() -> None:
    store = EndpointStore()
    store.replace_endpoints("old", [EndpointSpec("a", "1:1"), EndpointSpec("b", "1:2")])
    store.replace_endpoints("fixed", [EndpointSpec("f", "1:3")])
    before = store.snapshot
    with pytest.raises(DuplicateEndpointError):
        store.replace_sources(
            {"x": [EndpointSpec("b", "1:2")], "y": [EndpointSpec("f", "1:9")]}, instead_of={"old"}
        )
    assert store.snapshot is before
    listener = Recorder()
    store.add_listener(listener)
    listener.events.clear()
    store.replace_sources(
        {"x": [EndpointSpec("c", "1:4")], "y": [EndpointSpec("b", "1:2")]}, instead_of={"old"}
    )
    assert [endpoint.name for endpoint in store.snapshot] == ["b", "c", "f"]
    assert store.snapshot[0] is before[1]
    assert listener.events == [("removed", "1:1"), ("added", "1:4")]
    store.replace_endpoints("y", [])
    assert [endpoint.name for endpoint in store.snapshot] == ["c", "f"]


def drained(**labels: str) -> EndpointSpec:
    return EndpointSpec("ns/a", "10.0.0.1:80", labels)


def test_an_endpoint_with_the_drain_label_gets_no_new_requests_and_stays_known() -> None:
    store = EndpointStore(DrainMarks(("drain", "true")))
    other = EndpointSpec("ns/b", "10.0.0.2:80")
    store.replace_endpoints("file", [drained(), other])
    (a, b) = store.snapshot
    assert store.serving == (a, b)
    with capture_logs() as logs:
        store.replace_endpoints("file", [drained(drain="true"), other])
    assert a.is_draining
    assert [store.snapshot, store.serving] == [(a, b), (b,)]
    assert [each["event"] for each in logs] == ["endpoint is draining"]
    assert store.find_address(a.address) is a
    with capture_logs() as logs:
        store.replace_endpoints("file", [drained(drain="false"), other])
    assert store.serving == (a, b)
    assert not a.is_draining
    assert [each["event"] for each in logs] == ["endpoint takes new requests again"]


def test_without_a_drain_label_nothing_drains() -> None:
    store = EndpointStore()
    store.replace_endpoints("file", [drained(**{"llm-d.ai/drain": "true"})])
    assert store.serving == store.snapshot


SCRAPED = EndpointMetrics(waiting_requests=3)
MODELS = AttributeKey[str]("models")


def reported(store: EndpointStore, *specs: EndpointSpec) -> Endpoint | None:
    """Report endpoints, and return the first."""
    store.replace_endpoints("kubernetes", specs)
    return store.snapshot[0] if store.snapshot else None


def busy_endpoint(store: EndpointStore, spec: EndpointSpec) -> Endpoint:
    """Return the endpoint of ``spec`` with metrics, an attribute and a request in flight."""
    endpoint = reported(store, spec)
    assert endpoint is not None
    endpoint.metrics = SCRAPED
    endpoint.attributes[MODELS] = "llama"
    endpoint.load.start(0.0)
    return endpoint


@pytest.mark.parametrize(
    ("before", "after", "keeps_metrics"),
    [
        pytest.param(
            EndpointSpec("d/a", "1:1", incarnation="u1"),
            EndpointSpec("d/a", "1:1", incarnation="u2"),
            False,
            id="made anew with the same address",
        ),
        pytest.param(
            EndpointSpec("d/a", "1:1", incarnation="u1"),
            EndpointSpec("d/a", "2:2", incarnation="u2"),
            False,
            id="made anew with another address",
        ),
        pytest.param(
            EndpointSpec("d/a", "1:1", incarnation="u1"),
            EndpointSpec("d/a", "2:2", incarnation="u1"),
            True,
            id="another address",
        ),
        pytest.param(
            EndpointSpec("d/a", "1:1"),
            EndpointSpec("d/a", "2:2"),
            False,
            id="another address, and nobody knows whether it is the same server",
        ),
        pytest.param(
            EndpointSpec("d/a", "1:1", incarnation="u1"),
            EndpointSpec("d/b", "1:1", incarnation="u1"),
            False,
            id="another name",
        ),
    ],
)
def test_another_server_has_no_load_and_metrics_only_if_it_is_the_same_incarnation(
    before: EndpointSpec, after: EndpointSpec, keeps_metrics: bool
) -> None:
    store, recorder = EndpointStore(), Recorder()
    store.add_listener(recorder)
    old = busy_endpoint(store, before)
    new = reported(store, after)
    assert new is not None
    assert new is not old
    assert (new.load.in_flight, old.load.in_flight) == (0, 1)
    assert new.metrics is (SCRAPED if keeps_metrics else NEVER_SCRAPED)
    assert new.attribute(MODELS) == ("llama" if keeps_metrics else None)
    assert recorder.events[1:] == [("removed", before.address), ("added", after.address)]
    new.attributes[MODELS] = "other"
    assert old.attribute(MODELS) == "llama"


def test_the_same_server_stays_the_same_endpoint() -> None:
    store = EndpointStore()
    spec = EndpointSpec("d/a", "1:1", incarnation="u1", node_address="9")
    old = busy_endpoint(store, spec)
    assert (old.incarnation, old.node_address) == ("u1", "9")
    assert reported(store, replace(spec, labels={"x": "1"})) is old
    assert old.labels == {"x": "1"}


A = EndpointSpec("d/a", "1:1", {"x": "1"}, incarnation="u1")


@pytest.mark.parametrize(
    ("meanwhile", "back", "is_same"),
    [
        pytest.param([[]], A, True, id="unready for a while"),
        pytest.param([[]], replace(A, labels={"x": "2"}), True, id="with other labels"),
        pytest.param([[], [], []], A, True, id="after several reports"),
        pytest.param([[replace(A, address="2:2")]], A, True, id="after another address"),
        pytest.param([[replace(A, incarnation="u2")]], A, True, id="after another incarnation"),
        pytest.param([[]], replace(A, incarnation="u2"), False, id="made anew"),
        pytest.param([[]], replace(A, address="2:2"), False, id="with another address"),
        pytest.param([[]], replace(A, name="d/b"), False, id="its address with another name"),
    ],
)
def test_an_endpoint_that_comes_back_while_requests_are_in_flight_there_is_the_same(
    meanwhile: Sequence[Sequence[EndpointSpec]], back: EndpointSpec, is_same: bool
) -> None:
    store, reader = EndpointStore(), LabelReader()
    store.add_listener(reader)
    old = busy_endpoint(store, A)
    for specs in meanwhile:
        reported(store, *specs)
    new = reported(store, back)
    assert new is not None
    assert (new is old) is is_same
    assert new.load.in_flight == is_same
    assert new.labels == back.labels
    assert reader.events[-1] == ("added", back.address)
    assert reader.pool == {back.name: new}


def test_an_endpoint_that_comes_back_without_requests_is_a_new_one() -> None:
    store = EndpointStore()
    old = busy_endpoint(store, A)
    reported(store)
    old.load.end(0.0)
    new = reported(store, A)
    assert new is not None
    assert new is not old
    assert new.metrics is NEVER_SCRAPED


def test_an_endpoint_that_came_back_twice_counts_all_its_requests() -> None:
    store = EndpointStore()
    old = busy_endpoint(store, A)
    for in_flight in (1, 2):
        reported(store)
        assert reported(store, A) is old
        assert old.load.in_flight == in_flight
        old.load.start(0.0)


def test_an_endpoint_that_left_draining_comes_back_as_its_labels_say() -> None:
    store = EndpointStore(DrainMarks(("drain", "true")))
    old = busy_endpoint(store, replace(A, labels={"drain": "true"}))
    assert old.is_draining
    reported(store)
    assert reported(store, A) is old
    assert store.serving == (old,)


def test_an_endpoint_that_nobody_refers_to_is_forgotten() -> None:
    store = EndpointStore()
    gone = weakref.ref(busy_endpoint(store, A))
    reported(store)
    assert gone() is None
    assert not store._departed


@pytest.mark.usefixtures("debug_level")
def test_at_level_debug_each_report_is_reported() -> None:
    store = EndpointStore(log_fields={"pool": "p"})
    a, b = EndpointSpec("ns/a", "1.1.1.1:1"), EndpointSpec("ns/b", "1.1.1.1:2")
    store.replace_endpoints("file", [a])
    with capture_logs() as lines:
        store.replace_endpoints("file", [replace(a, labels={"x": "y"}), b])
        store.replace_endpoints("file", [b])
    logged = [line for line in lines if line["event"] == "endpoints reported"]
    assert [
        (line["endpoints"], line["added"], line["changed"], line["removed"], line["pool"])
        for line in logged
    ] == [({"file": 2}, 1, ["ns/a"], 0, "p"), ({"file": 1}, 0, [], 1, "p")]

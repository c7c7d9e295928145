"""Counts of other replicas in ``inflight-load-producer``."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.data_producers.test_inflight_load import Flight, chosen, load_of, made

from epp.replication.plugins import replica_key
from epp.scheduling import Endpoint
from epp.testing import make_endpoint
from epp_plugins.data_producers.inflight_load import InflightLoadProducer


def replica(*names: str) -> tuple[InflightLoadProducer, list[Endpoint]]:
    producer, endpoints = made(), [make_endpoint(name) for name in names]
    for each in endpoints:
        producer.endpoint_added(each)
    return producer, endpoints


def encoded(parts: dict[int, tuple[int, int]]) -> bytes:
    return msgspec.msgpack.encode(parts)


def test_the_counts_of_replicas_are_added_and_only_own_ones_sent() -> None:
    mine, (here,) = replica("a")
    theirs, (there,) = replica("a")
    flight = Flight(theirs, chosen("default", default=there), 100)
    Flight(mine, chosen("default", default=here), 30)
    mine.receive("b", theirs.contribution())
    assert load_of(here) == (2, 130)
    assert msgspec.msgpack.decode(mine.contribution(), type=dict[int, tuple[int, int]]) == {
        replica_key(here): (1, 30)
    }
    flight.end()
    mine.receive("b", theirs.contribution())
    assert load_of(here) == (1, 30)


def test_metrics_are_of_this_process_alone() -> None:
    producer, (pod,) = replica("a")
    producer.receive("b", encoded({replica_key(pod): (4, 400)}))
    Flight(producer, chosen("default", default=pod), 30)
    assert sum(producer.requests_by_flow().values()) == 1
    assert sum(producer.tokens_by_flow().values()) == 30


def test_the_part_of_a_replica_that_left_is_removed() -> None:
    producer, (a, b) = replica("a", "b")
    producer.receive("r", encoded({replica_key(a): (4, 400), replica_key(b): (1, 2)}))
    producer.receive("s", encoded({replica_key(a): (1, 1)}))
    producer.replica_left("r")
    assert (load_of(a), load_of(b)) == ((1, 1), (0, 0))


def test_an_endpoint_that_leaves_takes_the_parts_along() -> None:
    producer, (pod,) = replica("a")
    flight = Flight(producer, chosen("default", default=pod), 30)
    pod.load.start(0.0)
    producer.receive("r", encoded({replica_key(pod): (4, 400)}))
    producer.endpoint_removed(pod)
    assert load_of(pod) == (1, 30)
    producer.endpoint_added(pod)
    producer.receive("r", encoded({replica_key(pod): (2, 200)}))
    assert load_of(pod) == (3, 230)
    flight.end()
    assert load_of(pod) == (2, 200)


def test_an_instance_made_by_a_reload_goes_on_with_the_parts() -> None:
    old, (pod,) = replica("a")
    old.receive("r", encoded({replica_key(pod): (4, 400)}))
    new = made()
    new.endpoint_added(pod)
    new.receive("r", encoded({replica_key(pod): (1, 100)}))
    assert load_of(pod) == (1, 100)
    new.replica_left("r")
    assert load_of(pod) == (0, 0)


def test_the_parameter_switches_it_off() -> None:
    assert made().contributes
    assert not made({"syncCrossReplicaState": False}).contributes


def test_what_is_no_part_is_refused() -> None:
    producer, _ = replica("a")
    with pytest.raises(ValueError, match=r"Expected|malformed|truncated"):
        producer.receive("r", b"\xff")


PARTS = st.dictionaries(
    st.sampled_from("abc"), st.tuples(st.integers(-3, 9), st.integers(-9, 99)), max_size=3
)


@given(st.lists(st.tuples(st.sampled_from("rs"), PARTS | st.none()), max_size=12))
def test_the_sum_is_right_and_never_negative(
    steps: list[tuple[str, dict[str, tuple[int, int]] | None]],
) -> None:
    producer, endpoints = replica("a", "b", "c")
    keys = dict(zip("abc", map(replica_key, endpoints), strict=True))
    last: dict[str, dict[str, tuple[int, int]]] = {}
    for name, parts in steps:
        if parts is None:
            producer.replica_left(name)
            last.pop(name, None)
        else:
            producer.receive(name, encoded({keys[each]: part for each, part in parts.items()}))
            last[name] = parts
        for endpoint, letter in zip(endpoints, "abc", strict=True):
            known = [parts[letter] for parts in last.values() if letter in parts]
            assert load_of(endpoint) == (
                sum(max(0, requests) for requests, _ in known),
                sum(max(0, tokens) for _, tokens in known),
            )

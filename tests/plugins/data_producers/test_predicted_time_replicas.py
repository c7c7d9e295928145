"""``predicted-time-producer`` of several replicas: each knows what the others have in flight."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.data_producers.test_predicted_time import Flight, Pool

from epp.replication.plugins import replica_key
from epp.testing import make_endpoint


def contribution(pool: Pool) -> dict[int, Any]:
    parts: dict[int, Any] = msgspec.msgpack.decode(pool.producer.contribution(), strict=False)
    return parts


def test_the_work_of_a_replica_counts_and_only_own_work_is_sent() -> None:
    mine, theirs = Pool(), Pool()
    Flight(mine, mine.b)
    flight = Flight(theirs, theirs.a, tokens=2000)
    model = mine.producer.model
    assert model.wait("a", mine.now) == 0.0
    mine.producer.receive("r", theirs.producer.contribution())
    assert model.wait("a", mine.now) > model.wait("b", mine.now) > 0.0
    assert contribution(mine).keys() == {replica_key(mine.b)}
    assert mine.producer.dump_state()["endpoints"]["a"]["in_flight_of_others"] == 1  # type: ignore[index]
    flight.end()
    assert contribution(theirs) == {}
    mine.producer.receive("r", theirs.producer.contribution())
    assert model.wait("a", mine.now) == 0.0


def test_a_request_that_decodes_is_no_wait() -> None:
    mine, theirs = Pool(), Pool()
    flight = Flight(theirs, theirs.a)
    flight.head()
    flight.body()
    mine.producer.receive("r", theirs.producer.contribution())
    others = mine.producer.model.endpoint("a").others
    assert (others.pending, others.decoding) == (0, 1)
    assert mine.producer.model.wait("a", mine.now) == 0.0


def test_the_work_of_a_replica_that_left_is_forgotten() -> None:
    mine, theirs = Pool(), Pool()
    Flight(theirs, theirs.a)
    Flight(theirs, theirs.b)
    for replica in ("r", "s"):
        mine.producer.receive(replica, theirs.producer.contribution())
    mine.producer.replica_left("r")
    others = [mine.producer.model.endpoint(name).others for name in "ab"]
    assert [each.pending for each in others] == [1, 1]
    mine.producer.replica_left("s")
    assert [each.pending for each in others] == [0, 0]


def test_a_reload_keeps_the_work_of_others_and_can_end_it() -> None:
    mine, theirs = Pool(), Pool()
    flight = Flight(theirs, theirs.a)
    mine.producer.receive("r", theirs.producer.contribution())
    before = mine.producer
    mine.producer = mine.make()
    before.close()
    assert mine.producer.model.endpoint("a").others.pending == 1
    flight.end()
    mine.producer.receive("r", theirs.producer.contribution())
    assert mine.producer.model.endpoint("a").others.pending == 0


def test_work_at_a_server_that_had_the_name_is_not_that_of_the_new_one() -> None:
    mine, theirs = Pool(), Pool()
    Flight(theirs, theirs.a)
    contribution = theirs.producer.contribution()
    mine.producer.receive("r", contribution)
    mine.producer.endpoint_removed(mine.a)
    mine.a = make_endpoint("a", address="10.0.0.9:8000")
    mine.producer.endpoint_added(mine.a)
    mine.producer.receive("r", contribution)
    assert mine.producer.model.endpoint("a").others.pending == 0


def test_nothing_is_shared_if_the_parameter_says_so() -> None:
    assert Pool().producer.contributes
    assert not Pool({"syncCrossReplicaState": False}).producer.contributes


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode({1: 2}),
        msgspec.msgpack.encode({"a": [0, 0.0, 0, 0.0, []]}),
        msgspec.msgpack.encode({1: [0, 0.0, 0, 0.0, [[1]]]}),
    ],
)
def test_what_cannot_be_understood_is_refused_and_changes_nothing(encoded: bytes) -> None:
    mine, theirs = Pool(), Pool()
    Flight(theirs, theirs.a)
    mine.producer.receive("r", theirs.producer.contribution())
    with pytest.raises(ValueError, match=r"\S"):
        mine.producer.receive("r", encoded)
    assert mine.producer.model.endpoint("a").others.pending == 1


@given(encoded=st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused(encoded: bytes) -> None:
    pool = Pool()
    try:
        pool.producer.receive("r", encoded)
    except ValueError:
        assert pool.producer.model.endpoint("a").others.requests == 0


def test_a_reload_that_ends_the_exchange_forgets_the_work_of_others() -> None:
    mine, theirs = Pool(), Pool()
    Flight(theirs, theirs.a)
    mine.producer.receive("r", theirs.producer.contribution())
    mine.producer = mine.make({"syncCrossReplicaState": False})
    assert mine.producer.model.endpoint("a").others.requests == 0
    assert mine.producer.model.wait("a", mine.now) == 0.0


def test_the_work_of_others_at_a_server_that_comes_back_is_that_of_their_next_reports() -> None:
    mine, theirs = Pool(), Pool()
    Flight(mine, mine.a)
    flight = Flight(theirs, theirs.a)
    mine.producer.receive("r", theirs.producer.contribution())
    mine.producer.endpoint_removed(mine.a)
    flight.end()
    mine.producer.receive("r", theirs.producer.contribution())
    mine.producer.endpoint_added(mine.a)
    assert mine.producer.model.endpoint("a").others.requests == 0
    Flight(theirs, theirs.a)
    mine.producer.receive("r", theirs.producer.contribution())
    assert mine.producer.model.endpoint("a").others.pending == 1

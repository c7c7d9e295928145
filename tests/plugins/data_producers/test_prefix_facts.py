"""The facts about prompts that replicas exchange for ``approx-prefix-cache-producer``."""

import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.data_producers.test_approx_prefix_cache import BLOCK, chosen, looked_up, made

from epp.replication.plugins import replica_key
from epp.scheduling import Endpoint, EndpointMetrics
from epp.testing import make_endpoint
from epp_plugins.data_producers.approx_prefix_cache import ApproxPrefixCacheProducer
from epp_plugins.data_producers.prefix_facts import (
    MAX_WAITING_BYTES,
    PrefixFact,
    PrefixFacts,
    decode,
    encode,
)

PART = 64 << 10
FACTS = st.tuples(
    st.integers(0, 2**64 - 1),
    st.integers(1, 2**32 - 1),
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20),
)


def same(facts: Iterable[PrefixFact]) -> list[tuple[int, int, list[int]]]:
    return [(endpoint, block_size, list(hashes)) for endpoint, block_size, hashes in facts]


@given(st.lists(FACTS, max_size=5))
def test_facts_survive_the_wire(facts: list[PrefixFact]) -> None:
    data = b"".join(encode(*each) for each in facts)
    assert same(decode(data)) == same(facts)
    assert len(data) == sum(16 + 8 * len(hashes) for _, _, hashes in facts)


def test_the_wire_has_little_endian_words() -> None:
    assert encode(0x0102, 64, [7]) == struct.pack("<QIIQ", 0x0102, 64, 1, 7)


@pytest.mark.parametrize("length", [1, 15, 16, 23])
def test_facts_that_are_cut_off_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="cut off"):
        list(decode(encode(1, 64, [2])[:length]))


def test_a_part_has_whole_facts_and_the_oldest_first() -> None:
    facts = PrefixFacts()
    for number in range(3):
        facts.add(number, 64, [number])
    assert same(decode(facts.take(2 * 24 + 23))) == [(0, 64, [0]), (1, 64, [1])]
    assert same(decode(facts.take(PART))) == [(2, 64, [2])]
    assert facts.take(PART) == b""


def test_the_same_prompt_again_is_reported_once() -> None:
    facts = PrefixFacts()
    for _ in range(5):
        facts.add(1, 64, [7, 8])
    facts.add(2, 64, [7, 8])
    assert len(same(decode(facts.take(PART)))) == 2
    facts.add(2, 64, [7, 8])  # later, it makes the prompt young again
    assert len(same(decode(facts.take(PART)))) == 1


def test_facts_that_nobody_takes_are_bounded() -> None:
    facts = PrefixFacts()
    for number in range(40):
        facts.add(number, 64, [number] * 8000)
    taken = []
    while part := facts.take(PART):
        taken += same(decode(part))
    assert sum(16 + 8 * len(hashes) for _, _, hashes in taken) <= MAX_WAITING_BYTES
    assert taken[-1][0] == 39


def test_a_fact_that_is_too_long_for_a_message_does_not_block_the_others() -> None:
    facts = PrefixFacts()
    facts.add(1, 64, list(range(PART)))
    facts.add(2, 64, [1])
    assert facts.take(PART) == b""
    assert same(decode(facts.take(PART))) == [(2, 64, [1])]


def replica(*names: str) -> tuple[ApproxPrefixCacheProducer, list[Endpoint]]:
    producer, endpoints = made(), [make_endpoint(name) for name in names]
    for each in endpoints:
        producer.endpoint_added(each)
    producer.start_sharing()
    return producer, endpoints


def test_another_replica_knows_where_a_prompt_was_sent() -> None:
    mine, here = replica("a", "b")
    theirs, there = replica("a", "b")
    state, _ = looked_up(mine, b"x" * (3 * BLOCK), here)
    chosen(mine, state, default=here[1])
    theirs.learn(mine.new_facts(PART))
    _, matches = looked_up(theirs, b"x" * (3 * BLOCK), there)
    assert matches.blocks == {there[1].name: 3}
    assert theirs.new_facts(PART) == b""  # what was learned is not told again


def test_without_other_replicas_nothing_is_remembered_for_them() -> None:
    producer, pod = made(), make_endpoint("a")
    producer.endpoint_added(pod)
    state, _ = looked_up(producer, b"x" * BLOCK, [pod])
    chosen(producer, state, default=pod)
    assert producer.new_facts(PART) == b""
    assert producer._facts is None


def test_a_replica_that_joins_gets_all_prompts_and_their_order() -> None:
    mine, here = replica("a", "b")
    for number in range(6):
        state, _ = looked_up(mine, bytes([number]) * (2 * BLOCK), here)
        chosen(mine, state, default=here[number % 2])
    theirs, there = replica("a", "b")
    parts = list(mine.all_facts(3 * (16 + 16)))
    assert len(parts) == 2
    for part in parts:
        theirs.learn(part)
    for number in range(6):
        _, matches = looked_up(theirs, bytes([number]) * (2 * BLOCK), there)
        assert matches.blocks == {there[number % 2].name: 2}
    oldest_first = [prompt[0] for prompt in mine.index.prompts(here[0].name, 100)]
    assert [prompt[0] for prompt in theirs.index.prompts(there[0].name, 100)] == oldest_first


def test_facts_about_unknown_endpoints_and_other_block_sizes_are_left_out() -> None:
    producer, (pod,) = replica("a")
    key = replica_key(pod)
    producer.learn(encode(key + 1, 64, [1]) + encode(key, 128, [2]) + encode(key, 64, []))
    assert producer.index.statistics().entries == 0
    pod.metrics = EndpointMetrics(cache_block_size=128)
    producer.learn(encode(key, 128, [2]))
    assert producer.index.statistics().entries == 1


def test_an_endpoint_that_has_left_is_known_no_more() -> None:
    producer, (pod,) = replica("a")
    producer.endpoint_removed(pod)
    producer.learn(encode(replica_key(pod), 64, [1]))
    assert producer.index.statistics().entries == 0
    assert list(producer.all_facts(PART)) == []


def test_what_is_no_fact_is_refused() -> None:
    producer, _ = replica("a")
    with pytest.raises(ValueError, match="cut off"):
        producer.learn(b"nonsense")

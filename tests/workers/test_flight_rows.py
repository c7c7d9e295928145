"""The data that one worker writes to its row are visible to the others."""

from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.workers.flight_rows import (
    RECENT,
    ROW_BYTES,
    SLOTS,
    OwnRow,
    PeerRow,
    clear_row,
    key_of,
)

A, B = key_of("a", "10.0.0.1:8000", ""), key_of("b", "10.0.0.2:8000", "")


def shared(workers: int = 2) -> memoryview:
    return memoryview(bytearray(workers * ROW_BYTES))


def test_keys_differ_by_every_part_of_an_endpoint() -> None:
    assert len({key_of("a", "b", "c"), key_of("a", "b", ""), key_of("ab", "", "c")}) == 3


def test_a_change_is_read_once_with_its_time() -> None:
    memory = shared()
    row, peer = OwnRow(memory, 0), PeerRow(memory, 0)
    slot = row.take_slot(A)
    assert slot is not None
    assert row.add(slot, 1, 5.5) == 1
    assert row.add(slot, 1, 5.75) == 2
    assert list(peer.changes()) == [(A, 2, 5.75)]
    assert list(peer.changes()) == []
    assert row.add(slot, -2, 6.0) == 0
    assert list(peer.changes()) == [(A, -2, 6.0)]
    assert peer.in_flight == {A: 0}


def test_a_thorough_look_finds_a_change_whose_count_was_seen_before_it() -> None:
    memory = shared()
    row, peer = OwnRow(memory, 0), PeerRow(memory, 0)
    slot = row.take_slot(A)
    assert slot is not None
    row.add(slot, 1, 1.0)
    list(peer.changes())
    # As on a machine that writes memory out of order: the count of changes stays behind.
    words = memory[:ROW_BYTES].cast("q")
    changes = words[0]
    row.add(slot, 1, 2.0)
    words[0] = changes
    assert list(peer.changes()) == []
    assert list(peer.changes(is_thorough=True)) == [(A, 1, 2.0)]


@pytest.mark.parametrize("changes", [1, RECENT // 2, RECENT // 2 + 1, RECENT, 3 * RECENT + 5])
def test_a_reader_misses_no_change_however_many_there_were(changes: int) -> None:
    memory = shared()
    row, peer = OwnRow(memory, 0), PeerRow(memory, 0)
    slots = [row.take_slot(key) for key in range(1, 8)]
    list(peer.changes())
    expected = dict.fromkeys(range(1, 8), 0)
    for number in range(changes):
        slot = slots[number % len(slots)]
        assert slot is not None
        expected[number % len(slots) + 1] = row.add(slot, 1, float(number))
    changed = {key: count for key, count in expected.items() if count}
    assert {key: change for key, change, _ in peer.changes()} == changed
    assert peer.in_flight == expected


def test_a_start_and_an_end_between_two_looks_are_no_change() -> None:
    memory = shared()
    row, peer = OwnRow(memory, 0), PeerRow(memory, 0)
    slot = row.take_slot(A)
    assert slot is not None
    list(peer.changes())
    row.add(slot, 1, 1.0)
    row.add(slot, -1, 2.0)
    assert list(peer.changes()) == []


def test_rows_do_not_touch_each_other() -> None:
    memory = shared(3)
    rows = [OwnRow(memory, index) for index in range(3)]
    for index, row in enumerate(rows):
        slot = row.take_slot(A)
        assert slot is not None
        row.add(slot, index + 1, 0.0)
    peers = [PeerRow(memory, index) for index in range(3)]
    assert [[change for _, change, _ in peer.changes()] for peer in peers] == [[1], [2], [3]]


def test_a_slot_that_is_given_back_takes_another_endpoint() -> None:
    memory = shared()
    row, peer = OwnRow(memory, 0), PeerRow(memory, 0)
    first = row.take_slot(A)
    assert first is not None
    row.add(first, 1, 1.0)
    assert list(peer.changes()) == [(A, 1, 1.0)]
    row.add(first, -1, 2.0)
    row.give_slot(first)
    assert row.take_slot(B) == first
    row.add(first, 1, 3.0)
    assert sorted(peer.changes(), key=itemgetter(1)) == [
        (A, -1, None),
        (B, 1, 3.0),
    ]


def test_the_requests_of_a_worker_that_died_are_gone() -> None:
    memory = shared()
    row, peer = OwnRow(memory, 0), PeerRow(memory, 0)
    for key in (A, B):
        slot = row.take_slot(key)
        assert slot is not None
        row.add(slot, 3, 1.0)
    assert len(list(peer.changes())) == 2
    clear_row(memory, 0)
    assert list(peer.changes()) == [(A, -3, None), (B, -3, None)]
    again = OwnRow(memory, 0)  # the next process of that worker
    slot = again.take_slot(B)
    assert slot is not None
    again.add(slot, 1, 9.0)
    assert list(peer.changes()) == [(B, 1, 9.0)]


def test_a_full_row_gives_no_slot() -> None:
    row = OwnRow(shared(), 0)
    assert all(row.take_slot(key) is not None for key in range(1, SLOTS + 1))
    assert row.take_slot(SLOTS + 1) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "give", "add", "many", "look", "clear"]), st.integers(1, 4)
        ),
        max_size=60,
    )
)
def test_after_a_look_the_reader_has_what_the_writer_has(steps: list[tuple[str, int]]) -> None:
    memory = shared()
    row, peer = OwnRow(memory, 0), PeerRow(memory, 0)
    slots: dict[int, int] = {}
    flight: dict[int, int] = {}
    known: dict[int, int] = {}
    for step, key in steps:
        if step == "take" and key not in slots:
            slot = row.take_slot(key)
            assert slot is not None
            slots[key], flight[key] = slot, 0
        elif step == "give" and key in slots:
            row.give_slot(slots.pop(key))
            del flight[key]
        elif step == "add" and key in slots:
            flight[key] = row.add(slots[key], 1, 1.0)
        elif step == "many" and key in slots:
            for _ in range(RECENT):
                flight[key] = row.add(slots[key], 1, 1.0)
        elif step == "clear":
            clear_row(memory, 0)
            row, slots, flight = OwnRow(memory, 0), {}, {}
        elif step == "look":
            for each, change, _ in peer.changes():
                known[each] = known.get(each, 0) + change
            assert {k: n for k, n in known.items() if n} == {k: n for k, n in flight.items() if n}

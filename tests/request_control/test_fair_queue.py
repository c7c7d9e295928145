"""Sources take turns by the cost of their work so far."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.request_control.fair_queue import FairQueue


def served(queue: FairQueue[str], cost: float = 1.0) -> list[str]:
    """Serve all items, each at the same cost."""
    order = []
    while queue:
        source, item = queue.pop()
        queue.charge(source, cost)
        order.append(item)
    return order


def filled(*items: tuple[str, str]) -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue(100)
    for source, item in items:
        assert queue.push(source, item) is None
    return queue


def test_the_items_of_one_source_keep_their_order() -> None:
    assert served(filled(("a", "1"), ("a", "2"), ("a", "3"))) == ["1", "2", "3"]


def test_a_source_with_one_item_does_not_wait_for_all_of_another() -> None:
    flood = [("a", f"a{n}") for n in range(10)]
    order = served(filled(*flood, ("b", "b0")))
    assert order.index("b0") <= 1


def test_little_is_kept_of_sources_that_never_come_again() -> None:
    """Each started at the clock of the source being served, so none was ever behind it."""
    queue: FairQueue[str] = FairQueue(4)
    queue.push("0", "")
    for number in range(1, 1000):
        queue.push(str(number), "")
        source, _ = queue.pop()
        queue.charge(source, 1.0)
    assert len(queue._sources) <= 9


def test_what_is_taken_back_has_no_turn() -> None:
    queue = filled(("a", "a0"), ("a", "a1"), ("b", "b0"))
    queue.remove("a", "a0")
    queue.remove("b", "b0")
    assert len(queue) == 1
    assert served(queue) == ["a1"]


def test_what_is_not_done_is_the_next_of_its_source() -> None:
    queue = filled(("a", "a0"), ("a", "a1"), ("b", "b0"))
    queue.charge("a", 1.0)
    queue.put_back(*queue.pop())
    assert queue.pop() == ("b", "b0")
    queue.put_back("b", "b0")
    queue.charge("b", 2.0)
    assert len(queue) == 3
    assert served(queue) == ["a0", "a1", "b0"]


def test_what_does_not_wait_cannot_be_taken_back() -> None:
    queue = filled(("a", "a0"))
    queue.remove("b", "a0")
    queue.remove("a", "a1")
    assert len(queue) == 1


def test_whoever_had_more_waits_for_longer() -> None:
    queue = filled(
        *(("costly", f"d{n}") for n in range(3)), *(("cheap", f"c{n}") for n in range(9))
    )
    order = []
    while queue:
        source, item = queue.pop()
        queue.charge(source, 3.0 if source == "costly" else 1.0)
        order.append(item[0])
    assert order.count("d") == 3
    # Three cheap ones cost as much as one costly one: "cd" + "ccd" + "cccd" …, in every prefix.
    for end in range(1, 9):
        costly, cheap = order[:end].count("d"), order[:end].count("c")
        assert abs(3 * costly - cheap) <= 3


def test_a_source_that_comes_back_has_saved_up_nothing() -> None:
    queue = filled(*(("a", f"a{n}") for n in range(20)))
    for _ in range(10):
        source, _ = queue.pop()
        queue.charge(source, 1.0)
    for n in range(5):
        queue.push("b", f"b{n}")
    order = [item[0] for item in served(queue)]
    assert order[:10].count("a") == order[:10].count("b") == 5


def test_when_too_many_wait_the_source_with_most_loses_its_last() -> None:
    queue: FairQueue[str] = FairQueue(3)
    for n in range(3):
        queue.push("a", f"a{n}")
    assert queue.push("b", "b0") == "a2"
    assert queue.push("a", "a3") == "a3"
    assert queue.push("c", "c0") == "a1"
    assert queue.push("d", "d0") == "d0", "of many with as many, the one that comes"
    assert sorted(served(queue)) == ["a0", "b0", "c0"]


def test_nothing_waits_in_the_beginning() -> None:
    queue: FairQueue[str] = FairQueue(3)
    assert not queue
    with pytest.raises(IndexError, match="nothing waits"):
        queue.pop()


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abcdef"), st.floats(0.0, 10.0)) | st.integers(0, 9) | st.none(),
        max_size=200,
    ),
    most=st.integers(1, 10),
)
def test_nothing_is_lost_and_no_source_starves(
    steps: list[tuple[str, float] | int | None], most: int
) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(most)
    inside: list[tuple[str, int]] = []
    for number, step in enumerate(steps):
        if step is None:
            if inside:
                source, item = queue.pop()
                queue.charge(source, 1.0)
                inside.remove(item)
                assert source == item[0]
                assert item == min(each for each in [*inside, item] if each[0] == source)
            continue
        if isinstance(step, int):
            if inside:
                item = inside.pop(step % len(inside))
                queue.remove(item[0], item)
                assert len(queue) == len(inside)
            continue
        source, cost = step
        queue.charge(source, cost)
        inside.append((source, number))
        displaced = queue.push(source, (source, number))
        if displaced is not None:
            inside.remove(displaced)
            max_items = max(sum(each[0] == name for each in inside) for name in "abcdef")
            assert sum(each[0] == displaced[0] for each in inside) >= max_items - 1
        assert len(queue) == len(inside) <= most
        assert len(queue._sources) <= 3 * most

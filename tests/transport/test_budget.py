"""What may be kept in memory for a connection, and for all of them."""

from epp.transport.budget import ByteBudget


def test_a_part_has_the_room_that_the_whole_has() -> None:
    whole = ByteBudget(1000)
    first, second = ByteBudget(600, whole), ByteBudget(600, whole)
    first.take(600)
    assert not first.has_room(1)
    assert second.has_room(400)
    assert not second.has_room(401)
    first.give_back(100)
    assert second.has_room(500)


def test_a_part_is_crowded_if_it_or_the_whole_is() -> None:
    whole = ByteBudget(1000)
    first, second = ByteBudget(400, whole), ByteBudget(400, whole)
    first.take(100)
    assert not first.is_crowded
    first.take(1)
    assert first.is_crowded
    assert not second.is_crowded
    first.take(150)
    assert second.is_crowded


def test_a_part_that_is_gone_takes_nothing_along_and_is_counted_once() -> None:
    whole = ByteBudget(1000)
    gone, left = ByteBudget(600, whole), ByteBudget(600, whole)
    gone.take(300)
    left.take(200)
    gone.part()
    gone.part()
    gone.give_back(300)
    assert (whole.used_bytes, left.used_bytes, gone.used_bytes) == (200, 200, 0)

"""Memory budgets of one connection and of all connections."""

import pytest

from epp.transport.budget import ByteBudget
from epp.transport.grpc.framing import LONG_MESSAGE_BYTES, MessageReader, framed


def test_a_partial_budget_has_no_more_room_than_the_whole() -> None:
    whole = ByteBudget(1000)
    first, second = ByteBudget(600, whole), ByteBudget(600, whole)
    first.take(600)
    assert not first.has_room(1)
    assert second.has_room(400)
    assert not second.has_room(401)
    first.give_back(100)
    assert second.has_room(500)


def test_a_partial_budget_is_crowded_if_it_or_the_whole_is() -> None:
    whole = ByteBudget(1000)
    first, second = ByteBudget(400, whole), ByteBudget(400, whole)
    first.take(100)
    assert not first.is_crowded
    first.take(1)
    assert first.is_crowded
    assert not second.is_crowded
    first.take(150)
    assert second.is_crowded


def test_a_detached_budget_gives_its_bytes_back_once() -> None:
    whole = ByteBudget(1000)
    gone, left = ByteBudget(600, whole), ByteBudget(600, whole)
    gone.take(300)
    left.take(200)
    gone.detach()
    gone.detach()
    gone.give_back(300)
    assert (whole.used_bytes, left.used_bytes, gone.used_bytes) == (200, 200, 0)


class Full:
    """A larger budget without room for long messages."""

    is_crowded = True

    def has_room(self, size: int) -> bool:
        return True

    def has_room_for_long(self, size: int) -> bool:
        return False

    def take(self, size: int) -> None:
        """Accept the bytes anyway."""

    def give_back(self, size: int) -> None:
        """Do nothing."""


def test_without_room_for_long_messages_others_are_received_and_responses_sent() -> None:
    """Otherwise an accepted request would be aborted because others use the memory."""
    connection = ByteBudget(100, ByteBudget(1000, Full()))
    assert not connection.has_room_for_long(1)
    assert connection.has_room(100)
    assert not connection.has_room(101)


@pytest.mark.parametrize(
    ("length", "is_taken"), [(LONG_MESSAGE_BYTES, True), (LONG_MESSAGE_BYTES + 1, False)]
)
def test_only_a_long_message_is_refused_in_favour_of_others(length: int, is_taken: bool) -> None:
    reader = MessageReader(2 * LONG_MESSAGE_BYTES, ByteBudget(1 << 30, Full()))
    assert reader.feed(framed(bytes(length))[: length // 2]) == []
    assert (reader.error is None) == is_taken

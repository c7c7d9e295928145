"""Policies that modify their arguments or return invalid results: all requests are dispatched."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest
from flow_control.driven import Driven, RoomDetector, Strict, World
from structlog.testing import capture_logs

from epp.flow_control import OrderingPolicy, Outcome, QueuedRequest, UsageLimitPolicy
from epp.flow_control.plugins import Flow
from epp.scheduling import Endpoint


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven()
    with made.loop.running(), capture_logs():
        yield made


class Answering(Strict):
    """Returns a given refusal."""

    def __init__(self, world: World, answer: Any) -> None:
        super().__init__(world)
        self._answer = answer

    def refusal(self, request: object, now: float) -> str:
        answer: str = self._answer
        return answer


@pytest.mark.parametrize(
    ("answer", "is_fault"), [(None, False), (True, True), (3, True), (["not", "now"], True)]
)
def test_a_refusal_that_is_no_text_refuses_nobody(
    driven: Driven, answer: Any, is_fault: bool
) -> None:
    band = driven.band(fairness=Answering(driven.world, answer))
    driven.use(driven.settings(band))
    waits = driven.ask("a")
    driven.room(1)
    driven.loop.settle()
    assert waits.ended == [Outcome.DISPATCHED]
    assert (band.fairness.failures > 0) is is_fault


class Clearing(Strict):
    """Removes the flows from the list that it was given."""

    def keys(self, flows: Sequence[Flow], now: float) -> list[tuple[Any, int]]:
        keys = super().keys(flows, now)
        if isinstance(flows, list):
            flows.clear()
        return keys


class ClearingDetector(RoomDetector):
    """Removes the endpoints from the list that it was given."""

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        if not endpoints:
            return 1.0
        if isinstance(endpoints, list):
            endpoints.clear()
        return super().saturation(endpoints)


class Reusing(UsageLimitPolicy):
    """Modifies the list that it returned."""

    type: ClassVar[str] = "reusing"

    def __init__(self) -> None:
        self.name = "reusing"
        self._ceilings: list[float] = []

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        self._ceilings.clear()
        self._ceilings += [1.0] * len(priorities)
        return self._ceilings

    def spoil(self) -> None:
        self._ceilings.clear()


def test_what_a_policy_is_given_may_be_spoilt_by_it(driven: Driven) -> None:
    driven.use(driven.settings())
    waiting = [driven.ask(name, name) for name in "abc"]
    driven.use(
        driven.settings(
            driven.band(fairness=Clearing(driven.world)), detector=ClearingDetector(driven.world)
        )
    )
    driven.room(9)
    driven.loop.settle()
    assert [each.ended for each in waiting] == [[Outcome.DISPATCHED]] * 3


def test_what_a_policy_has_returned_may_be_spoilt_by_it(driven: Driven) -> None:
    policy = Reusing()
    driven.use(driven.settings(ceilings=policy))
    driven.ask("a")
    driven.loop.settle()
    policy.spoil()
    assert driven.control.capacity.ceilings == {0: 1.0}


class NewestFirst(OrderingPolicy):
    """Orders each new request before all others."""

    type: ClassVar[str] = "newest-first"

    def __init__(self) -> None:
        self.name = "newest-first"

    def key(self, queued: QueuedRequest) -> int:
        return -queued.sequence


def test_heads_that_keep_coming_before_others_leave_nothing_behind(driven: Driven) -> None:
    driven.use(driven.settings(driven.band(ordering=NewestFirst())))
    driven.ask("the oldest")
    for number in range(500):
        overtaken, head = driven.ask(f"{number}, overtaken"), driven.ask(f"{number}, the head")
        driven.room(len(driven.world.in_flight) + 1)
        driven.loop.settle()
        assert head.ended == [Outcome.DISPATCHED]
        driven.cancel(overtaken)
    assert driven.controller.waiting == 1
    assert len(driven.control.ledger.bands[0]._heap) < 100


def test_one_that_fails_to_be_turned_away_holds_up_no_other(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven.use(driven.settings(driven.band(ttl_seconds=5.0)))
    faulty, sound = driven.ask("faulty"), driven.ask("sound")

    def fails(*args: object, **about: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(faulty, "turn_away", fails)
    with pytest.raises(RuntimeError, match="a bug of ours"):
        driven.loop.advance(5.0)
    driven.loop.advance(1.0)
    assert sound.ended == [Outcome.EVICTED_TTL]
    assert driven.controller.waiting == 0

"""Exact timeouts of waiting requests, on a controlled clock."""

from collections.abc import Iterator
from typing import Any

import pytest
from flow_control.driven import Driven

from epp.flow_control import Outcome

TTL, NO_ENDPOINT_TTL = 60.0, 10.0


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven()
    with made.loop.running():
        made.use(made.settings(made.band(ttl_seconds=TTL), no_endpoint_ttl_seconds=NO_ENDPOINT_TTL))
        yield made


@pytest.mark.parametrize(
    ("endpoints", "own", "seconds", "outcome"),
    [
        pytest.param(1, None, TTL, Outcome.EVICTED_TTL, id="the band's"),
        pytest.param(1, 1.5, 1.5, Outcome.EVICTED_TTL, id="its own"),
        pytest.param(1, 90.0, TTL, Outcome.EVICTED_TTL, id="the band's if its own is longer"),
        pytest.param(0, None, NO_ENDPOINT_TTL, Outcome.EVICTED_NO_ENDPOINTS, id="of empty pools"),
        pytest.param(0, 1.5, 1.5, Outcome.EVICTED_NO_ENDPOINTS, id="its own in an empty pool"),
        pytest.param(0, 20.0, 20.0, Outcome.EVICTED_NO_ENDPOINTS, id="its own, which is longer"),
    ],
)
def test_it_expires_at_the_very_time(
    driven: Driven, endpoints: int, own: float | None, seconds: float, outcome: Outcome
) -> None:
    driven.resize(endpoints)
    driven.loop.advance(7)
    waits = driven.ask("a", ttl_seconds=own)
    driven.loop.advance(seconds - 0.001)
    assert waits.ended == []
    driven.loop.advance(0.001)
    assert waits.ended == [outcome]
    assert waits.ended_at == 7 + seconds
    assert waits.empty_pool is (endpoints == 0)
    assert waits.why.startswith(f"it has waited for {seconds:.3f} s in flow control")
    assert driven.controller.waiting == 0
    assert driven.observer.seen[-1] == (outcome, "a")


def test_one_timer_serves_all_and_goes_with_the_last_of_them(driven: Driven) -> None:
    waiting = [driven.ask(str(ttl), ttl_seconds=float(ttl)) for ttl in (9, 3, 6)]
    driven.loop.settle()
    assert [timer.when() for timer in driven.loop.timers] == [3.0]
    driven.loop.advance(4)
    assert [timer.when() for timer in driven.loop.timers if timer.when() < TTL] == [6.0]
    for each in (waiting[0], waiting[2]):
        driven.cancel(each)
    driven.loop.settle()
    driven.loop.advance(400)  # the flow is forgotten, too
    assert driven.loop.scheduled == 0
    assert [each.ended for each in waiting] == [["cancelled"], [Outcome.EVICTED_TTL], ["cancelled"]]


def test_zero_lets_wait_for_ever(driven: Driven) -> None:
    driven.use(driven.settings(driven.band(ttl_seconds=None), no_endpoint_ttl_seconds=None))
    waits = driven.ask("a")
    driven.loop.advance(10**6)
    driven.resize(0)
    driven.loop.advance(10**6)
    assert waits.ended == []


def test_who_expires_lets_others_go_whom_it_has_blocked(driven: Driven) -> None:
    driven.use(driven.settings(driven.band(ttl_seconds=5.0), ceilings={10: 0.0}))
    blocks = driven.ask("high", priority=10)
    driven.loop.advance(3)
    driven.ask("low")
    driven.room(1)
    driven.loop.advance(1)
    assert driven.world.dispatched == []
    driven.loop.advance(1)
    assert blocks.ended == [Outcome.EVICTED_TTL]
    assert driven.world.dispatched == ["low"]


def test_the_reason_says_why_nothing_could_go(driven: Driven) -> None:
    driven.resize(0)
    empty = driven.ask("a", ttl_seconds=1.0)
    driven.loop.advance(1)
    assert empty.why == "it has waited for 1.000 s in flow control: the pool has no endpoint"
    driven.resize(1)
    full = driven.ask("b", ttl_seconds=1.0)
    driven.loop.advance(1)
    assert full.why == (
        "it has waited for 1.000 s in flow control: the pool's saturation is inf, priority 0 is"
        " dispatched below 1.00"
    )


Step = tuple[str, float]


@pytest.mark.parametrize(
    ("steps", "ended_at", "outcome"),
    [
        pytest.param([("empty", 0), ("wait", 8), ("one", 0), ("wait", 59)], None, None,
                     id="an endpoint comes: the time begins anew"),
        pytest.param([("empty", 0), ("wait", 8), ("one", 0), ("wait", 70)], 68.0,
                     Outcome.EVICTED_TTL, id="and ends with a full pool"),
        pytest.param([("wait", 59), ("empty", 0), ("wait", 9)], None, None,
                     id="the last endpoint goes: the time begins anew"),
        pytest.param([("wait", 59), ("empty", 0), ("wait", 20)], 69.0,
                     Outcome.EVICTED_NO_ENDPOINTS, id="and ends with an empty pool"),
        pytest.param([("wait", 50), ("two", 0), ("wait", 20)], 60.0, Outcome.EVICTED_TTL,
                     id="one endpoint more changes nothing"),
        pytest.param([("wait", 4), ("empty", 0), ("wait", 4), ("one", 0)] * 10,
                     TTL + NO_ENDPOINT_TTL, Outcome.EVICTED_NO_ENDPOINTS,
                     id="one that comes and goes does not hold it for longer than both times"),
    ],
)  # fmt: skip
def test_the_time_begins_anew_when_the_pool_empties_or_fills(
    driven: Driven, steps: list[Step], ended_at: float | None, outcome: Outcome | None
) -> None:
    sizes = {"empty": 0, "one": 1, "two": 2}
    if steps[0][0] == "empty":
        driven.resize(0)
    waits = driven.ask("a")
    for what, seconds in steps:
        if what in sizes:
            driven.resize(sizes[what])
        driven.loop.advance(seconds)
    assert waits.ended == ([] if outcome is None else [outcome])
    if ended_at is not None:
        assert waits.ended_at == ended_at


def test_a_pool_that_empties_while_something_waits_sends_it_nowhere(driven: Driven) -> None:
    waits = driven.ask("a")
    driven.resize(0)
    driven.room(5)
    driven.loop.settle()
    assert waits.ended == []
    assert driven.control.capacity.blocked == "the pool has no endpoint"
    driven.resize(2)
    driven.loop.settle()
    assert waits.ended == [Outcome.DISPATCHED]
    assert waits.endpoint is driven.pool[0]


def test_a_reload_leaves_the_times_of_those_that_wait(driven: Driven) -> None:
    settings: dict[str, Any] = {"no_endpoint_ttl_seconds": 1.0}
    old = driven.ask("old")
    driven.use(driven.settings(driven.band(ttl_seconds=5.0), **settings))
    new = driven.ask("new")
    driven.loop.advance(TTL)
    assert (new.ended_at, old.ended_at) == (5.0, TTL)


MANY = 200


def test_requests_whose_time_is_over_together_leave_in_several_turns() -> None:
    epp = Driven()
    with epp.loop.running():
        epp.use(epp.settings(epp.band(ttl_seconds=10.0)))
        asked = [epp.ask(f"r-{n}") for n in range(MANY)]
        epp.loop.settle()
        (ring,) = [each for each in epp.loop.timers if not each.cancelled() and each.when() == 10.0]
        epp.loop.now = ring.when()
        epp.loop.timers.remove(ring)
        ring._callback(*ring._args)  # type: ignore[attr-defined]  # this one turn alone
        in_one_turn = sum(bool(each.ended) for each in asked)
        epp.loop.advance(0.0)
    assert 0 < in_one_turn < MANY / 2
    assert [each.ended for each in asked] == [[Outcome.EVICTED_TTL]] * MANY
    assert epp.loop.now == 10.0

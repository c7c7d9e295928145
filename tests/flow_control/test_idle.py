"""Removal of idle flows and bands, a few at a time."""

from collections.abc import Iterator
from itertools import count

import pytest
from flow_control.driven import Driven

from epp.flow_control.queues import idle_flows, ledger
from epp.flow_control.queues.idle_flows import IDLE_FLOW_SECONDS


@pytest.fixture
def driven() -> Iterator[Driven]:
    """Return an active controller with one endpoint and no capacity."""
    made = Driven()
    with made.loop.running():
        made.use()
        yield made


def known(driven: Driven, priority: int = 0) -> int:
    band = driven.control.ledger.bands[priority]
    queues = driven.control.ledger.cluster.queues
    assert len(queues) == len(band.flows) + len(driven.control.ledger.bands.in_order)
    return len(band.flows)


def waited(driven: Driven, numbers: Iterator[int], number: int) -> None:
    """Enqueue and cancel requests, each in a flow of its own."""
    for _ in range(number):
        place = next(numbers)
        driven.cancel(driven.ask(str(place), f"flow-{place}"))


def test_of_many_flows_a_minute_no_more_than_the_latest_are_kept(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_flows, "MAX_IDLE_FLOWS", 500)
    numbers = count()
    for _ in range(60):
        waited(driven, numbers, 50)
        driven.loop.advance(1)
    assert known(driven) == 500
    flows = driven.control.ledger.bands[0].flows
    assert set(flows) == {f"flow-{place}" for place in range(2_500, 3_000)}
    assert len(driven.observer.removed) == 2_500


def test_idle_flows_are_forgotten_a_few_in_each_turn_of_the_loop(driven: Driven) -> None:
    waited(driven, count(), 1_000)
    loop = driven.loop
    most, turns = 0, 0
    loop.now += IDLE_FLOW_SECONDS + 100
    while loop.timers:
        before = len(driven.observer.removed)
        timer = loop.timers.pop()
        assert not timer.cancelled()
        timer._callback(*timer._args)  # type: ignore[attr-defined]  # one turn, and no more
        most = max(most, len(driven.observer.removed) - before)
        turns += 1
    assert (most, turns) == (idle_flows._MAX_AT_ONCE, 1_000 // idle_flows._MAX_AT_ONCE + 1)
    assert known(driven) == 0


def test_a_flow_that_is_used_again_stays(driven: Driven) -> None:
    numbers = count()
    waited(driven, numbers, 200)
    driven.loop.advance(200)
    driven.cancel(driven.ask("again", "flow-7"))
    driven.loop.advance(200)
    assert set(driven.control.ledger.bands[0].flows) == {"flow-7"}
    driven.loop.advance(400)
    assert known(driven) == 0
    assert driven.loop.scheduled == 0


# --- bands ----------------------------------------------------------------------------------------


def test_there_are_never_more_bands_than_a_few_whatever_priorities_come(driven: Driven) -> None:
    driven.use(driven.settings(bands={7: driven.band()}))
    driven.room(1000)
    for priority in range(1000):
        assert driven.ask(str(priority), priority=priority).endpoint is not None
    bands = driven.control.ledger.bands
    assert len(bands.in_order) == ledger.MAX_BANDS
    assert 7 in bands, "it is configured"
    queues = driven.control.ledger.cluster.queues
    assert set(queues) == {band.name for band in bands.in_order}


def test_while_something_waits_in_all_of_them_others_go_with_the_next_lower_one(
    driven: Driven,
) -> None:
    waiting = [driven.ask(str(each), priority=10 * each) for each in range(ledger.MAX_BANDS)]
    above = driven.ask("above 50", priority=55)
    lowest = driven.ask("lowest", priority=-5)
    bands = driven.control.ledger.bands
    assert len(bands.in_order) == ledger.MAX_BANDS
    assert (bands[50].waiting, bands[0].waiting) == (2, 2)
    driven.cancel(waiting[0])
    driven.room(1000)
    driven.loop.settle()
    order = driven.world.dispatched
    assert len(order) == ledger.MAX_BANDS + 1
    assert order.index("5") < order.index("above 50") < order.index("4")
    assert (above.ended, lowest.ended) == (["Dispatched"], ["Dispatched"])
    driven.loop.advance(IDLE_FLOW_SECONDS + 100)
    driven.room(0)
    driven.ask("55 again", priority=55)
    assert bands[55].waiting == 1, "once its flows are forgotten a band makes room for another"

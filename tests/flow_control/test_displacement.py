"""Displacement when a limit on waiting requests is reached, and its cost.

What becomes of any mixture of requests is in test_controller_property.py.
"""

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from flow_control.driven import Driven, DrivenCandidate, Strict, World

from epp.flow_control import Outcome
from epp.flow_control.flows import Flow
from epp.flow_control.queues.holdings import ByteHoldings, Holdings, RequestHoldings
from epp.flow_control.queues.limits import MAX_DISPLACED

HIGH, LOW = 10, -1
LOST = [Outcome.REJECTED_CAPACITY]


@pytest.fixture
def driven() -> Iterator[Driven]:
    """Return an active controller with one endpoint and no capacity."""
    made = Driven()
    with made.loop.running():
        yield made


def use(driven: Driven, *, displaces: bool = True, policy: str = "strict", **band: Any) -> None:
    settings = driven.settings(driven.band(fairness=policy, **band), displaces=displaces)
    driven.use(settings)


def several(
    driven: Driven, number: int, flow: str = "flood", **about: Any
) -> list[DrivenCandidate]:
    return [driven.ask(f"{flow}{place}", flow, **about) for place in range(number)]


def lost(asked: list[DrivenCandidate]) -> list[str]:
    """Return the ids of the refused requests."""
    return [each.request.request_id for each in asked if each.ended]


# --- the promise of docs/flow-control.md --------------------------------------------------------


@pytest.mark.parametrize("policy", ["strict", "turns"])
def test_a_flood_of_one_tenant_turns_nobody_else_away(driven: Driven, policy: str) -> None:
    """Before displacement, 26 of 29 requests of other tenants got 429."""
    use(driven, policy=policy, max_requests=100)
    numbers = count()
    others: list[DrivenCandidate] = []
    flood: list[DrivenCandidate] = []
    for second in range(29):
        flood += [driven.ask(f"flood{next(numbers)}", "flood") for _ in range(200)]
        others.append(driven.ask(f"other{second}", f"tenant-{second % 3}"))
        driven.loop.advance(1)
    assert lost(others) == []
    assert driven.controller.waiting == 100
    kept = [each for each in flood if not each.ended]
    assert len(kept) == 71
    assert kept == flood[:71], "those that came first keep their places"


def test_a_newcomer_whose_flow_holds_as_much_as_any_is_refused(driven: Driven) -> None:
    use(driven, max_requests=4)
    waiting = [*several(driven, 2, "a"), *several(driven, 2, "b")]
    assert driven.ask("one more", "a").ended == LOST
    newcomer = driven.ask("newcomer", "c")
    assert newcomer.ended == []
    assert lost(waiting) == ["b1"], "of equals the flow that was made last gives way"
    assert driven.ask("another", "c").ended == LOST
    assert driven.ask("one more", "b").ended == LOST


def test_with_refuse_the_newcomer_is_turned_away_whoever_it_is(driven: Driven) -> None:
    use(driven, displaces=False, max_requests=2)
    waiting = several(driven, 2)
    newcomer = driven.ask("newcomer", "b")
    assert newcomer.ended == LOST
    assert newcomer.why == "2 requests of priority 0 wait, which is the limit"
    assert lost(waiting) == []


# --- who gives way ------------------------------------------------------------------------------


def test_the_newest_of_the_largest_flow_gives_way_and_gets_the_reason(driven: Driven) -> None:
    use(driven, max_requests=3, ordering="edf")
    first = driven.ask("first", "a", ttl_seconds=50)
    second = driven.ask("second", "a", ttl_seconds=20)
    driven.ask("third", "b")
    driven.loop.advance(2)
    newest = second
    assert driven.ask("newcomer", "c").ended == []
    assert (first.ended, newest.ended) == ([], LOST)
    assert newest.why == (
        "a limit on waiting requests was reached; after 2.000 s this request was displaced by one"
        " of a flow that uses less of it"
    )
    assert driven.observer.seen[-2:] == [
        (Outcome.REJECTED_CAPACITY, "second"),
        ("enqueued", "newcomer"),
    ]
    assert driven.controller.waiting == 3
    assert len(driven.control.ledger.cluster.jobs) == 3


def test_in_an_empty_pool_it_is_reported_that_there_is_no_endpoint(driven: Driven) -> None:
    use(driven, max_requests=2)
    driven.resize(0)
    waiting = several(driven, 2)
    driven.ask("newcomer", "b")
    assert waiting[1].ended == [Outcome.REJECTED_NO_ENDPOINTS]
    assert waiting[1].empty_pool is True


def test_who_has_stepped_aside_can_give_way(driven: Driven) -> None:
    use(driven, max_requests=2)
    driven.world.unfit = {"flood"}
    waiting = several(driven, 2)
    driven.room(9)
    driven.loop.settle()
    assert len(driven.control.ledger.parking.requests) == 2
    driven.room(0)
    assert driven.ask("newcomer", "b").ended == []
    assert lost(waiting) == ["flood1"]
    assert [each.request.request_id for each in driven.control.ledger.parking.requests] == [
        "flood0"
    ]


def test_of_a_limit_of_all_bands_the_lowest_gives_way_and_never_a_higher_one(
    driven: Driven,
) -> None:
    driven.use(driven.settings(max_requests=4))
    high = several(driven, 2, "a", priority=HIGH)
    middle = driven.ask("middle", "a")
    low = driven.ask("low", "b", priority=LOW)
    assert driven.ask("high", "a", priority=HIGH).ended == []
    assert low.ended == LOST
    assert low.why.endswith("displaced by one of a higher priority")
    assert driven.ask("higher", "a", priority=HIGH).ended == []
    assert middle.ended == LOST
    assert driven.ask("again", "b", priority=LOW).ended == LOST
    assert driven.ask("and again", "b").ended == LOST
    assert lost(high) == []


# --- bytes ----------------------------------------------------------------------------------------


def test_the_largest_request_gives_way_though_small_ones_came_after_it(driven: Driven) -> None:
    use(driven, max_bytes=1000)
    large = driven.ask("large", "flood", size=900)
    small = several(driven, 50, size=1)
    assert driven.ask("newcomer", "b", size=100).ended == []
    assert (large.ended, lost(small)) == (LOST, [])
    assert driven.control.ledger.bands.size_bytes == 150


def test_as_many_give_way_as_take_the_room_that_is_needed(driven: Driven) -> None:
    use(driven, max_bytes=1000)
    floods = [*several(driven, 10, "a", size=50), *several(driven, 10, "b", size=50)]
    assert driven.ask("newcomer", "c", size=200).ended == []
    assert lost(floods) == ["a8", "a9", "b8", "b9"]
    assert driven.control.ledger.bands.size_bytes == 1000


@pytest.mark.parametrize(
    ("newcomer", "number", "size"),
    [
        pytest.param(1001, 10, 100, id="it is larger than the limit"),
        pytest.param(501, 2, 500, id="its flow would hold most"),
        pytest.param(MAX_DISPLACED * 2 + 2, 500, 2, id="too many would have to"),
    ],
)
def test_nobody_gives_way_for_nothing(
    driven: Driven, *, newcomer: int, number: int, size: int
) -> None:
    use(driven, max_bytes=1000)
    flood = several(driven, number, size=size)
    refused = driven.ask("newcomer", "b", size=newcomer)
    assert refused.ended == LOST
    assert refused.why.startswith("requests of priority 0 and 1000 bytes wait, with this one's")
    assert lost(flood) == []
    few = size * MAX_DISPLACED if number > MAX_DISPLACED else size - 1
    assert driven.ask("a smaller one", "b", size=few).ended == [], "nothing was spoilt by the plan"


def test_a_limit_that_was_lowered_is_not_made_up_for_at_once(driven: Driven) -> None:
    use(driven, max_requests=100, max_bytes=1000)
    flood = several(driven, 100, size=10)
    use(driven, max_requests=5, max_bytes=50)
    assert driven.ask("newcomer", "b", size=20).ended == []
    assert lost(flood) == ["flood98", "flood99"], "as many bytes as have come"
    assert driven.ask("too large", "b", size=51).ended == LOST
    assert driven.ask("empty", "c").ended == []
    assert len(lost(flood)) == 3, "it takes no bytes, and yet one goes for it"


def test_what_counts_is_what_a_request_holds(driven: Driven) -> None:
    """A decoded or rewritten body uses more memory than was received."""
    use(driven, max_bytes=1000)

    class Decoded(DrivenCandidate):
        held_bytes = 800

    request = driven.candidate("decoded", "a", size=8).request
    driven.come(Decoded(driven.world, request, 0.0))
    assert driven.control.ledger.bands.size_bytes == 800
    assert driven.ask("another", "a", size=300).ended == LOST


# --- weights --------------------------------------------------------------------------------------


class Weighted(Strict):
    """Weights by fairness id; fails for an unknown id."""

    def __init__(self, world: World, weights: dict[str, object]) -> None:
        super().__init__(world)
        self.weights = weights
        self.asked: Counter[str] = Counter()

    def weight(self, fairness_id: str) -> float:
        self.asked[fairness_id] += 1
        return self.weights[fairness_id]  # type: ignore[return-value]  # wrong ones, too


def test_a_flow_may_hold_as_many_as_its_weight_says(driven: Driven) -> None:
    policy = Weighted(driven.world, {"heavy": 3.0, "light": 1.0})
    driven.use(driven.settings(driven.band(fairness=policy, max_requests=8)))
    heavy = several(driven, 8, "heavy")
    light = several(driven, 8, "light")
    assert len(lost(heavy)) == 2
    assert lost(light) == [f"light{place}" for place in range(2, 8)]
    assert policy.asked == {"heavy": 1, "light": 1}, "once for each flow"


@pytest.mark.parametrize(
    "weights",
    [
        pytest.param({}, id="it raises"),
        pytest.param({"flood": float("nan"), "b": 0.0}, id="no numbers above 0"),
        pytest.param({"flood": "much", "b": None}, id="no numbers"),
    ],
)
def test_a_weight_that_is_none_counts_as_1(driven: Driven, weights: dict[str, object]) -> None:
    policy = Weighted(driven.world, weights)
    driven.use(driven.settings(driven.band(fairness=policy, max_requests=4)))
    flood = several(driven, 4)
    assert driven.ask("newcomer", "b").ended == []
    assert lost(flood) == ["flood3"]


def test_weights_are_asked_for_anew_after_a_reload(driven: Driven) -> None:
    before = Weighted(driven.world, {"flood": 100.0, "b": 1.0})
    driven.use(driven.settings(driven.band(fairness=before, max_requests=4)))
    several(driven, 4)
    assert driven.ask("refused", "b").ended == LOST
    after = Weighted(driven.world, {"flood": 1.0, "b": 1.0})
    driven.use(driven.settings(driven.band(fairness=after, max_requests=4)))
    assert driven.ask("newcomer", "b").ended == []


# --- what it costs --------------------------------------------------------------------------------


def test_nothing_is_kept_of_who_holds_what_before_a_limit_is_reached_and_after_all_have_gone(
    driven: Driven,
) -> None:
    use(driven, max_requests=3, max_bytes=100)
    band = driven.control.ledger.bands
    several(driven, 3, size=1)
    assert band[0]._holdings == {}
    driven.ask("b", "b", size=1)
    driven.ask("c", "c", size=98)
    assert set(band[0]._holdings) == {RequestHoldings, ByteHoldings}
    driven.room(9)
    driven.loop.settle()
    assert band[0]._holdings == {}


def test_a_newcomer_looks_at_few_flows_of_many(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linear search would visit 2 000 requests each time."""
    use(driven, max_requests=4_000)
    for place in range(2_000):
        several(driven, 2, f"tenant-{place}")
    looks = 0
    original = RequestHoldings.of

    def counted(flow: Flow) -> int:
        nonlocal looks
        looks += 1
        return original(flow)

    monkeypatch.setattr(RequestHoldings, "of", staticmethod(counted))
    for place in range(2_000):
        driven.ask(f"newcomer{place}", f"new-{place}")
    assert driven.controller.waiting == 4_000
    assert looks < 10 * 2_000
    looks = 0
    for place in range(1_000):
        assert driven.ask(f"refused{place}", "new-0").ended == LOST
    assert looks < 10 * 1_000


@pytest.mark.parametrize("kind", [RequestHoldings, ByteHoldings])
def test_a_limit_that_stays_reached_for_long_keeps_no_more_than_what_waits(
    driven: Driven, kind: type[Holdings]
) -> None:
    limit: dict[str, Any] = {"max_requests": 20} if kind is RequestHoldings else {"max_bytes": 20}
    use(driven, **limit)
    several(driven, 20, size=1)
    gone: list[weakref.ref[DrivenCandidate]] = []
    for place in range(2_000):
        newcomer = driven.ask(f"b{place}", f"b{place % 5}", size=1)
        assert newcomer.queued is not None
        driven.cancel(newcomer)
        gone += [weakref.ref(newcomer), weakref.ref(driven.ask(f"again{place}", "flood", size=1))]
        del newcomer
    assert driven.controller.waiting == 20
    holdings = driven.control.ledger.bands[0].holdings(kind)
    assert len(holdings._heap) < 200
    if isinstance(holdings, ByteHoldings):
        assert sum(map(len, holdings._sizes.values())) < 200
    gc.collect()  # candidates here point back at what waits
    assert sum(each() is not None for each in gone) < 80, "what has gone is not held"

"""The rules of the dispatcher, as documented for operators."""

from collections.abc import Iterator
from typing import Any

import pytest
from flow_control.driven import Driven, Strict, World
from structlog.testing import capture_logs

from epp.flow_control import Outcome, QueuedRequest, control
from epp.flow_control.dispatch import dispatch_order
from epp.flow_control.plugins import Flow
from epp.flow_control.sessions import SessionPlugin
from epp.flow_control.views.flow_views import flow_gauges

HIGH, LOW = 10, -1


@pytest.fixture
def driven() -> Iterator[Driven]:
    """Return an active controller with one endpoint and no capacity."""
    made = Driven()
    with made.loop.running():
        made.use()
        yield made


def queue(driven: Driven, *ids: str, **about: Any) -> None:
    for request_id in ids:
        driven.ask(request_id, **about)


def free(driven: Driven, capacity: float) -> list[str]:
    """Set the capacity; return the dispatched requests."""
    driven.room(capacity)
    driven.loop.settle()
    return driven.world.dispatched


# --- the straight path ------------------------------------------------------------------------


def test_what_need_not_wait_touches_no_queue(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven.room(2)
    driven.loop.settle()

    def poisoned(*args: object, **kwargs: object) -> None:
        raise AssertionError("a queue was touched")

    with monkeypatch.context() as patch:
        patch.setattr(control, "QueuedRequest", poisoned)
        patch.setattr("epp.flow_control.queues.bands.Flow", poisoned)
        driven.ask("a")
        driven.ask("b")
        with pytest.raises(AssertionError, match="a queue was touched"):
            driven.ask("c")  # there is no room for it
    assert driven.world.dispatched == ["a", "b"]
    assert driven.observer.seen == [("passed", "a"), ("passed", "b")]
    assert driven.control.ledger.bands[0].flows == {}
    assert driven.control.ledger.cluster.jobs == {}
    assert driven.loop.scheduled == 0


@pytest.mark.parametrize(
    ("capacity", "waits", "unfit", "held", "endpoints"),
    [
        pytest.param(0, False, "", "", 1, id="there is no room"),
        pytest.param(0, True, "", "", 1, id="another one waits"),
        pytest.param(9, False, "b", "", 1, id="no endpoint is fit"),
        pytest.param(9, False, "", "b", 1, id="its flow is held back"),
        pytest.param(9, False, "", "", 0, id="the pool has no endpoint"),
    ],
)
def test_it_waits_when(
    driven: Driven, *, capacity: int, waits: bool, unfit: str, held: str, endpoints: int
) -> None:
    driven.resize(endpoints)
    if waits:
        driven.ask("a", "a")
    driven.world.capacity = capacity
    driven.world.unfit, driven.world.held = {unfit}, {held}
    asked = driven.ask("b", "b")
    driven.loop.settle()
    assert asked.ended == []
    assert driven.controller.waiting == 1 + waits
    driven.world.unfit, driven.world.held = set(), set()
    driven.resize(1)
    assert free(driven, 2)[-1] == "b"
    assert asked.ended == [Outcome.DISPATCHED]


# --- who is next ------------------------------------------------------------------------------


def test_bands_go_from_high_to_low_and_flows_of_a_band_as_one_line(driven: Driven) -> None:
    queue(driven, "low", priority=LOW)
    queue(driven, "0a", fairness_id="a")
    queue(driven, "0b", fairness_id="b")
    queue(driven, "0c", fairness_id="a")
    queue(driven, "high", priority=HIGH)
    assert free(driven, 2) == ["high", "0a"]
    assert free(driven, 9) == ["high", "0a", "0b", "0c", "low"]


@pytest.mark.parametrize(
    ("waiting_high", "went"),
    [
        pytest.param(True, [], id="something waits in the blocked band, so that all below wait"),
        pytest.param(False, ["low"], id="nothing waits in it, so that it blocks nobody"),
    ],
)
def test_a_blocked_band_blocks_those_below_only_with_work(
    driven: Driven, waiting_high: bool, went: list[str]
) -> None:
    driven.use(driven.settings(ceilings={HIGH: 0.0, LOW: 1.0}, bands={HIGH: driven.band()}))
    if waiting_high:
        queue(driven, "high", priority=HIGH)
    queue(driven, "low", priority=LOW)
    assert free(driven, 5) == went
    blocked = driven.control.capacity.blocked
    reason = "the pool's saturation is 0.00, priority 10 is dispatched below 0.00"
    assert blocked == (reason if waiting_high else "")


def test_a_band_whose_requests_fit_nowhere_blocks_nobody_and_the_reason_is_of_the_next(
    driven: Driven,
) -> None:
    driven.use(driven.settings(ceilings={0: 0.5}))
    driven.world.unfit = {"x"}
    queue(driven, "high", fairness_id="x", priority=HIGH)
    queue(driven, "0a", "0b")
    assert free(driven, 2) == ["0a"]
    waits = driven.control.ledger.bands[0].flows["a"].head
    reason = "the pool's saturation is 0.50, priority 0 is dispatched below 0.50"
    assert driven.control.reasons(waits) == (reason,)


@pytest.mark.usefixtures("debug_level")
def test_at_level_debug_the_log_says_what_waits_and_why(driven: Driven) -> None:
    driven.world.unfit = {"x"}
    with capture_logs() as lines:
        queue(driven, "x1", fairness_id="x")
        free(driven, 1)
    queued, parked = lines
    assert (queued["event"], queued["request_id"]) == ("request queued", "x1")
    assert (queued["fairness_id"], queued["priority"]) == ("x", 0)
    assert parked == {
        "event": "request parked",
        "log_level": "debug",
        "request_id": "x1",
        "priority": 0,
        "tries": 1,
        "reasons": ["the filters leave no endpoint"],
    }


def test_a_request_that_fits_nowhere_steps_aside_and_keeps_its_place(driven: Driven) -> None:
    driven.world.unfit = {"x"}
    queue(driven, "x1", "x2", fairness_id="x")
    queue(driven, "a1", "a2")
    assert free(driven, 1) == ["a1"]
    parked = driven.control.ledger.parking.requests
    assert [each.request.request_id for each in parked] == ["x1", "x2"]
    assert driven.control.reasons(parked[0]) == ["the filters leave no endpoint"]
    driven.world.unfit = set()
    assert free(driven, 9) == ["a1", "x1", "x2", "a2"]


def test_a_flow_that_is_held_back_keeps_its_place(driven: Driven) -> None:
    driven.world.held = {"x"}
    queue(driven, "x1", "x2", fairness_id="x")
    queue(driven, "a1", "a2")
    assert free(driven, 1) == ["a1"]
    head = driven.control.ledger.bands[0].flows["x"].head
    assert driven.control.reasons(head) == ("not now",)
    driven.world.held = set()
    assert free(driven, 9) == ["a1", "x1", "x2", "a2"]


@pytest.mark.parametrize(
    ("floors", "order"),
    [
        pytest.param({}, "H" * 8 + "0" * 8, id="none, so that low bands starve"),
        pytest.param({0: 0.5}, "HH0H0H0H0H0H0H00", id="a half"),
        pytest.param({0: 0.25}, "HHHH0HHH0H000000", id="a quarter"),
        pytest.param({0: 0.4}, "HHH0H0HH0H0", id="what is owed beyond one counts on"),
        pytest.param({LOW: 0.5, 0: 0.5}, "HHHH0LHH0L", id="two, a quarter each"),
    ],
)  # fmt: skip
def test_floor_shares_are_of_all_dispatches(
    driven: Driven, floors: dict[int, float], order: str
) -> None:
    names = {"H": HIGH, "0": 0, "L": LOW}
    bands = {
        priority: driven.band(floor_share=floors.get(priority, 0.0)) for priority in names.values()
    }
    driven.use(driven.settings(bands=bands))
    for name, priority in names.items():
        if name in order:
            queue(driven, *[name] * 8, priority=priority)
    assert "".join(free(driven, 1000))[: len(order)] == order


def test_a_floor_share_counts_above_the_bands_own_ceiling_not_above_the_highest(
    driven: Driven,
) -> None:
    bands = {HIGH: driven.band(floor_share=0), 0: driven.band(floor_share=0.5)}
    driven.use(driven.settings(bands=bands, ceilings={HIGH: 0.8, 0: 0.0}))
    queue(driven, *"HHHHHHHH", priority=HIGH)
    queue(driven, *"00000000")
    assert "".join(free(driven, 10)) == "HH0H0H0H"
    assert driven.controller.waiting == 8


def test_what_is_owed_lets_no_band_alone_go_above_its_own_ceiling(driven: Driven) -> None:
    bands = {HIGH: driven.band(floor_share=0), 0: driven.band(floor_share=0.5)}
    driven.use(driven.settings(bands=bands, ceilings={HIGH: 0.8, 0: 0.0}))
    queue(driven, "H1", "H2", priority=HIGH)
    queue(driven, "0")
    assert free(driven, 10) == ["H1", "H2"]


def test_a_band_in_which_nothing_waits_any_more_is_owed_nothing(driven: Driven) -> None:
    bands = {HIGH: driven.band(floor_share=0), 0: driven.band(floor_share=0.5)}
    driven.use(driven.settings(bands=bands))
    queue(driven, *"HHHHH", priority=HIGH)
    gone = driven.ask("0")
    assert free(driven, 1) == ["H"]
    driven.cancel(gone)
    queue(driven, "0")
    assert free(driven, 9) == ["H", *"HH0HH"]


@pytest.mark.parametrize("way", ["is given up", "fits nowhere"])
def test_a_flow_whose_head_leaves_the_line_is_placed_by_the_next_one(
    driven: Driven, way: str
) -> None:
    head = driven.ask("a1", "a", size=1)
    driven.ask("b1", "b")
    driven.ask("a2", "a")
    driven.ask("b2", "b")
    if way == "is given up":
        driven.cancel(head)
    else:
        driven.world.unfit = {"1"}
    assert free(driven, 9) == ["b1", "a2", "b2"]


def test_a_fairness_policy_is_notified_when_a_flow_begins_to_wait_and_of_each_that_goes() -> None:
    events: list[str] = []

    class Noting(Strict):
        def activated(self, flow: Flow, now: float) -> None:
            events.append(f"{flow.fairness_id} of {flow.fairness}")
            flow.fairness = self.name

        def dispatched(self, flow: Flow, queued: QueuedRequest, now: float) -> None:
            events.append(f"{queued.request.request_id} of {flow.fairness}")

    made = Driven()
    with made.loop.running():
        made.use(made.settings(made.band(fairness=Noting(made.world))))
        queue(made, "1", "2")
        free(made, 2)
        queue(made, "3", "4")
        made.use(made.settings(made.band(fairness=Noting(made.world))))  # knows nothing of before
        free(made, 9)
    assert events == ["a of None", "1 of strict", "2 of strict", "a of strict",
                    "a of None", "3 of strict", "4 of strict"]  # fmt: skip


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "band", "sizes", "why"),
    [
        pytest.param({"max_requests": 2}, {}, [0, 0], "2 requests wait, which is the limit",
                     id="requests, of all bands"),
        pytest.param({"max_bytes": 100}, {}, [60], "requests of 60 bytes wait, with this one's 50"
                     " they would exceed the limit of 100", id="bytes, of all bands"),
        pytest.param({}, {"max_requests": 1}, [0],
                     "1 requests of priority 0 wait, which is the limit",
                     id="requests, of the band"),
        pytest.param({}, {"max_bytes": 99}, [30, 20], "requests of priority 0 and 50 bytes wait,"
                     " with this one's 50 they would exceed the limit of 99",
                     id="bytes, of the band"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("endpoints", "outcome"),
    [
        pytest.param(1, Outcome.REJECTED_CAPACITY, id="pool full"),
        pytest.param(0, Outcome.REJECTED_NO_ENDPOINTS, id="pool empty"),
    ],
)
def test_one_too_many_is_turned_away(
    driven: Driven, *, settings: dict[str, Any], band: dict[str, Any], sizes: list[int], why: str,
    endpoints: int, outcome: Outcome,
) -> None:  # fmt: skip
    driven.use(driven.settings(driven.band(**band), **settings))
    driven.resize(endpoints)
    first = [driven.ask(str(place), size=size) for place, size in enumerate(sizes)]
    one_more = driven.ask("one more", size=50)
    assert one_more.ended == [outcome]
    assert one_more.why == why
    assert one_more.empty_pool is (endpoints == 0)
    assert driven.observer.seen[-1] == (outcome, "one more")
    assert driven.controller.waiting == len(sizes)
    driven.cancel(first[0])
    again = driven.ask("again", size=50)
    assert again.ended == []


def test_a_full_band_turns_nobody_away_who_goes_to_another(driven: Driven) -> None:
    driven.use(driven.settings(driven.band(max_requests=1)))
    queue(driven, "a")
    assert driven.ask("high", priority=HIGH).ended == []
    assert driven.ask("b").ended == [Outcome.REJECTED_CAPACITY]


# --- sessions ---------------------------------------------------------------------------------


def test_whatever_happens_in_one_turn_opens_one_session(driven: Driven) -> None:
    driven.room(8)
    running = [driven.ask(f"r{place}") for place in range(8)]
    queue(driven, *(f"w{place}" for place in range(20)))
    driven.loop.settle()
    before = driven.observer.sessions
    for candidate in running:
        driven.finish(candidate)
    assert len(driven.loop.soon) == 1
    driven.loop.settle()
    assert driven.observer.sessions == before + 1
    assert driven.world.dispatched[8:] == [f"w{place}" for place in range(8)]


def test_a_long_session_goes_on_in_the_next_turn(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch_order, "_MAX_PER_SESSION", 3)
    queue(driven, *map(str, range(7)))
    driven.room(100)
    numbers = []
    while driven.loop.soon:
        driven.loop.turn()
        numbers.append(len(driven.world.dispatched))
    assert numbers == [3, 6, 7]


def test_nothing_is_scheduled_while_nothing_waits(driven: Driven) -> None:
    driven.room(1)
    first = driven.ask("a")
    driven.finish(first)
    driven.controller.wake()
    assert driven.loop.scheduled == 0
    driven.room(0)
    queue(driven, "b")
    free(driven, 1)
    driven.loop.advance(361)  # until the flow is forgotten in which something has waited
    assert driven.observer.removed
    assert driven.loop.scheduled == 0


@pytest.mark.parametrize(
    ("is_running", "kept"),
    [
        pytest.param(True, True, id="runs, and session plugins know it"),
        pytest.param(False, False, id="has ended"),
    ],
)
def test_a_flow_is_forgotten_when_nothing_has_happened_in_it_for_long(
    driven: Driven, is_running: bool, kept: bool
) -> None:
    plugin = SessionPlugin()
    plugin.name = "any"
    driven.use(driven.settings(plugins=(plugin,)))
    asked = driven.ask("a")
    free(driven, 1)
    if not is_running:
        driven.finish(asked)
    driven.loop.advance(1000)
    assert ("a" in driven.control.ledger.bands[0].flows) is kept


def test_a_flow_in_which_something_waits_again_is_not_forgotten(driven: Driven) -> None:
    driven.use(driven.settings(driven.band(ttl_seconds=None)))
    queue(driven, "1")
    free(driven, 1)
    driven.loop.advance(200)
    queue(driven, "2")
    driven.loop.advance(1000)
    assert driven.observer.removed == []
    assert free(driven, 2) == ["1", "2"]


def test_many_that_fit_nowhere_are_tried_in_turns_as_time_allows(driven: Driven) -> None:
    driven.try_seconds = 0.001
    driven.world.unfit = {"x"}
    queue(driven, *(f"x{place}" for place in range(30)), fairness_id="x")
    free(driven, 100)
    driven.world.unfit = set()
    driven.controller.wake()  # the last thing that happens
    driven.loop.settle()
    assert len(driven.world.dispatched) < 30
    driven.loop.advance(10)
    assert len(driven.world.dispatched) == 30
    assert driven.world.dispatched[0] == "x0"


def test_those_that_missed_a_try_have_theirs_before_others_have_a_second(driven: Driven) -> None:
    driven.try_seconds = 0.001
    driven.world.unfit = {"x"}
    queue(driven, *(f"x{place}" for place in range(20)), fairness_id="x")
    free(driven, 100)
    driven.world.asked.clear()
    driven.controller.wake()
    driven.loop.advance(10)  # nothing happens any more: each is tried once, and then nobody
    assert driven.world.asked == {f"x{place}": 1 for place in range(20)}
    sessions = driven.observer.sessions
    driven.loop.advance(10)
    assert driven.observer.sessions == sessions
    driven.world.asked.clear()
    for _ in range(100):  # something happens all the time
        driven.controller.wake()
        driven.loop.advance(0.03)
    assert min(driven.world.asked[f"x{place}"] for place in range(20)) >= 5


# --- who goes away, and other configurations --------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_that_is_given_up_makes_way(driven: Driven, place: int) -> None:
    driven.use(driven.settings(max_requests=3))
    waiting = [driven.ask(str(number), size=5) for number in range(3)]
    driven.cancel(waiting[place])
    assert driven.controller.waiting == 2
    assert driven.control.ledger.bands.size_bytes == 10
    assert driven.observer.seen[-1] == (Outcome.EVICTED_CONTEXT_CANCELLED, str(place))
    assert driven.ask("3").ended == []
    assert free(driven, 9) == [each for each in "0123" if each != str(place)]
    assert waiting[place].ended == ["cancelled"]


def test_one_that_is_given_up_twice_or_too_late_changes_nothing(driven: Driven) -> None:
    waiting = driven.ask("a")
    driven.cancel(waiting)
    driven.cancel(waiting)
    assert driven.controller.waiting == 0
    running = driven.ask("b")
    free(driven, 1)
    assert running.queued is not None
    driven.controller.cancel(running.queued, Outcome.EVICTED_OTHER)
    assert running.ended == [Outcome.DISPATCHED]
    assert driven.controller.waiting == 0


def test_a_reload_puts_in_order_anew_who_waits(driven: Driven) -> None:
    queue(driven, "patient", fairness_id="a")
    driven.ask("hurried", "b", ttl_seconds=5)
    driven.ask("more hurried", "b", ttl_seconds=3)
    driven.use(driven.settings(driven.band(ordering="edf", max_requests=3)))
    assert driven.ask("late").ended == [Outcome.REJECTED_CAPACITY]
    assert free(driven, 9) == ["more hurried", "hurried", "patient"]


def test_a_reload_puts_in_order_anew_who_has_stepped_aside(driven: Driven) -> None:
    driven.world.unfit = {"a"}
    queue(driven, "patient")
    driven.ask("hurried", ttl_seconds=5)
    assert free(driven, 9) == []
    driven.use(driven.settings(driven.band(ordering="edf")))
    driven.world.unfit = set()
    assert free(driven, 9) == ["hurried", "patient"]


def test_settings_that_are_prepared_and_given_up_change_nothing(driven: Driven) -> None:
    queue(driven, "a", "b")
    driven.controller.prepare(None)
    before, dispatcher = driven.control.settings, driven.control.sessions.dispatcher
    plugin = SessionPlugin()
    plugin.name = "idle"
    driven.controller.prepare(driven.settings(driven.band(ordering="edf"), plugins=(plugin,)))
    assert driven.controller.active is not None
    assert driven.control.settings is before
    assert driven.control.sessions.dispatcher is dispatcher
    assert free(driven, 9) == ["a", "b"]


def test_without_flow_control_those_that_wait_still_go_in_their_turn(driven: Driven) -> None:
    queue(driven, "a", "b")
    driven.controller.use(None)
    assert driven.controller.active is None
    assert flow_gauges(driven.controller) is not None
    driven.ask("new")
    assert driven.world.dispatched == ["new"]
    assert free(driven, 2) == ["new", "a"]
    driven.finish(driven.world.in_flight[0])
    driven.loop.settle()
    assert driven.world.dispatched == ["new", "a", "b"]
    assert flow_gauges(driven.controller) is None
    assert driven.loop.scheduled == 1  # forgets the flow


def test_policies_of_one_object_may_serve_several_bands() -> None:
    made = Driven(World())
    with made.loop.running():
        shared = made.band(fairness=Strict(made.world))
        made.use(made.settings(shared, bands={HIGH: shared}))
        queue(made, "a")
        queue(made, "b", priority=HIGH)
        assert free(made, 9) == ["b", "a"]

"""Any history of a pool: the dispatcher acts like a naive one, and loses no request.

A history is a list of turns of the event loop, in each of which several things may happen: requests
come, end, are given up or served elsewhere, room and endpoints come and go, flows find no place or
are held back for a while, time passes, the configuration is replaced or flow control turned off.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil

import pytest
from flow_control.driven import Driven, DrivenCandidate
from flow_control.naive import BandRules, NaiveDispatcher, Rules, Waiter
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.flow_control import FlowSettings, Outcome, QueuedRequest
from epp.flow_control.sessions import Event, ExtensionPoints, Job, Node, SessionPlugin, Task
from epp.scheduling import LLMRequest

HIGH, DEFAULT, LOW = 10, 0, -5
MAX_ENDED_SECONDS = 300.0

Operation = tuple[str, object]

ARRIVAL = st.fixed_dictionaries(
    {
        "flow": st.sampled_from("abc"),
        "priority": st.sampled_from([HIGH, DEFAULT, LOW]),
        "size": st.sampled_from([0, 10, 40]),
        "own_ttl": st.sampled_from([None, None, None, 2.0, 9.0]),
        "key": st.sampled_from(["", "", "", "", "raises", "is not a number"]),
        "flaw": st.sampled_from(["", "", "", "", "cannot be chosen for", "cannot be reserved"]),
    }
)
BANDS = st.builds(
    BandRules,
    max_requests=st.sampled_from([100, 100, 5, 2]),
    max_bytes=st.sampled_from([1000, 1000, 60]),
    ttl=st.sampled_from([None, 3.0, 7.0]),
    floor=st.sampled_from([0.0, 0.05, 0.25, 0.5]),
    ordering=st.sampled_from(["fcfs", "edf"]),
    fairness=st.sampled_from(["strict", "turns"]),
)
RULES = st.builds(
    Rules,
    bands=st.fixed_dictionaries({HIGH: BANDS, DEFAULT: BANDS, LOW: BANDS}),
    configured=st.just(frozenset({HIGH, DEFAULT})),
    ceilings=st.sampled_from([{}, {HIGH: 1.0, DEFAULT: 0.6, LOW: 0.3}, {HIGH: 0.5}, {LOW: 0.0}]),
    max_requests=st.sampled_from([0, 0, 0, 4]),
    max_bytes=st.sampled_from([0, 0, 0, 90]),
    no_endpoint_ttl=st.sampled_from([None, 2.0, 5.0]),
    displaces=st.sampled_from([True, True, False]),
)
FLOWS = st.frozensets(st.sampled_from("abc"), max_size=2)
UNFIT = st.frozensets(st.sampled_from(["a", "b", "10", "40"]), max_size=2)
OPERATIONS = st.one_of(
    st.tuples(st.just("come"), ARRIVAL),
    st.tuples(st.just("come"), ARRIVAL),
    st.tuples(st.just("come"), ARRIVAL),
    st.tuples(st.just("finish"), st.integers(0, 9)),
    st.tuples(st.just("finish"), st.integers(0, 9)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("serve"), st.integers(0, 9)),
    st.tuples(st.just("room"), st.integers(0, 8)),
    st.tuples(st.just("resize"), st.sampled_from([0, 1, 2])),
    st.tuples(st.just("unfit"), UNFIT),
    st.tuples(st.just("held"), FLOWS),
    st.tuples(st.just("use"), st.one_of(RULES, RULES, st.none())),
    st.tuples(st.just("advance"), st.integers(1, 5)),
)
CROWDS = st.lists(st.tuples(st.just("come"), ARRIVAL), max_size=12)
"""A pool without room in which many wait is where order matters."""
HISTORIES = st.builds(
    lambda crowd, turns: [crowd, *turns],
    CROWDS,
    st.lists(st.lists(OPERATIONS, min_size=1, max_size=6), min_size=1, max_size=20),
)


class Accounts(SessionPlugin):
    """Counts the tasks of each node, and refuses all nodes to unfit requests."""

    name = "accounts"

    def __init__(self, refuses: Callable[[LLMRequest], bool]) -> None:
        self.by_node: Counter[str] = Counter()
        self.least = 0
        self._refuses = refuses

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_predicate_fn(self._refusal)
        dispatcher.add_event_handler(allocate=self._count, deallocate=self._discount)

    def _refusal(self, task: Task, job: Job, node: Node) -> str | None:
        assert isinstance(job, QueuedRequest)
        return "not here" if self._refuses(job.request) else None

    def _count(self, event: Event) -> None:
        self.by_node[event.node.name] += 1

    def _discount(self, event: Event) -> None:
        self.by_node[event.node.name] -= 1
        self.least = min(self.least, self.by_node[event.node.name])


class History:
    """The dispatcher and the naive one, with the same events."""

    def __init__(self, driven: Driven, *, has_plugins: bool) -> None:
        self.driven = driven
        self.naive = NaiveDispatcher()
        self.naive.has_plugins = has_plugins
        self.candidates: dict[str, DrivenCandidate] = {}
        self.waiters: dict[str, Waiter] = {}
        self.accounts: Accounts | None = None

    def settings(self, rules: Rules) -> FlowSettings:
        """Return ``rules`` as settings of flow control."""
        driven = self.driven
        bands = {
            priority: driven.band(
                ordering=band.ordering,
                fairness=band.fairness,
                max_requests=band.max_requests,
                max_bytes=band.max_bytes,
                ttl_seconds=band.ttl,
                floor_share=band.floor,
            )
            for priority, band in rules.bands.items()
        }
        if self.naive.has_plugins:  # another object at each reload, which begins with what runs
            self.accounts = Accounts(driven.world.is_unfit)
        return driven.settings(
            bands[DEFAULT],
            negative_band=bands[LOW],
            bands={priority: bands[priority] for priority in rules.configured},
            ceilings=rules.ceilings,
            max_requests=rules.max_requests or None,
            max_bytes=rules.max_bytes or None,
            no_endpoint_ttl_seconds=rules.no_endpoint_ttl,
            displaces=rules.displaces,
            plugins=(self.accounts,) if self.accounts else (),
        )

    def run(self, turn: Sequence[Operation]) -> None:
        """Apply all events in one iteration of the loop."""
        sessions = self.driven.observer.sessions
        for name, argument in turn:
            getattr(self, f"_{name}")(argument)
        if all(name != "advance" for name, _ in turn):
            self.driven.loop.turn()
            assert self.driven.observer.sessions <= sessions + 1
        self.driven.loop.settle()
        self.naive.dispatch()
        self.check()

    def check(self) -> None:
        """Check the invariants between two iterations."""
        driven, naive, controller = self.driven, self.naive, self.driven.controller
        assert driven.world.dispatched == naive.order
        ended = {name: each.ended for name, each in self.candidates.items() if each.ended}
        assert ended == {name: [how] for name, how in naive.ended.items()}
        control = self.driven.control
        bands = {band.priority: band for band in control.ledger.bands.in_order}
        assert controller.waiting == len(naive.waiting)
        assert control.ledger.bands.size_bytes == sum(each.size for each in naive.waiting)
        for priority, band in bands.items():
            alike = [each for each in naive.waiting if each.priority == priority]
            assert band.waiting == len(alike)
            assert band.size_bytes == sum(each.size for each in alike)
            for flow in band.flows.values():
                assert flow.waiting == sum(each.flow == flow.fairness_id for each in alike)
        if self.accounts is not None:
            queued = [each for each in driven.world.in_flight if each.queued is not None]
            where = Counter(each.endpoint.name for each in queued if each.endpoint)
            assert +self.accounts.by_node == where
            assert self.accounts.least == 0

    def end(self) -> None:
        """End everything and check that nothing is kept."""
        if self.naive.rules is None:
            return
        for turn in ([("unfit", frozenset()), ("held", frozenset()), ("resize", 1)],
                     [("use", Rules({each: BandRules() for each in (HIGH, DEFAULT, LOW)}))],
                     [("room", 1000)]):  # fmt: skip
            self.run(turn)
        while self.naive.in_flight:
            self.run([("finish", 0)])
        assert not self.naive.waiting
        assert all(len(each.ended) == 1 for each in self.candidates.values())
        self.driven.loop.advance(2 * MAX_ENDED_SECONDS)
        control = self.driven.control
        assert control.ledger.cluster.jobs == {}
        assert {queue.name for queue in control.ledger.cluster.queues.values()} == {
            band.name for band in control.ledger.bands.in_order
        }
        assert all(band.flows == {} for band in control.ledger.bands.in_order)
        assert control.ledger.parking.requests == []
        assert self.driven.loop.scheduled == 0

    def _come(self, about: dict[str, object]) -> None:
        name = str(len(self.candidates))
        waiter = Waiter(name, number=len(self.candidates), **about)  # type: ignore[arg-type]  # drawn
        candidate = self.driven.candidate(
            name,
            waiter.flow,
            priority=waiter.priority,
            size=waiter.size,
            flaw=waiter.flaw,
            headers={"key": waiter.key},
        )
        self.candidates[name], self.waiters[name] = candidate, waiter
        self.driven.come(candidate, waiter.own_ttl)
        self.naive.come(waiter)

    def _finish(self, place: int) -> None:
        if self.naive.in_flight:
            waiter = self.naive.in_flight[place % len(self.naive.in_flight)]
            self.driven.finish(self.candidates[waiter.id])
            self.naive.finish(waiter)

    def _cancel(self, place: int) -> None:
        if self.naive.waiting:
            waiter = self.naive.waiting[place % len(self.naive.waiting)]
            self.driven.cancel(self.candidates[waiter.id])
            self.naive.cancel(waiter)

    def _serve(self, place: int) -> None:
        if self.naive.in_flight and self.driven.pool:
            waiter = self.naive.in_flight[place % len(self.naive.in_flight)]
            self.driven.serve(self.candidates[waiter.id], self.driven.pool[-1])

    def _room(self, capacity: int) -> None:
        self.naive.capacity = capacity
        self.driven.room(capacity)

    def _resize(self, endpoints: int) -> None:
        self.naive.resize(endpoints)
        self.driven.resize(endpoints)

    def _unfit(self, flows: frozenset[str]) -> None:
        self.naive.unfit = self.driven.world.unfit = set(flows)
        self.driven.controller.wake()

    def _held(self, flows: frozenset[str]) -> None:
        self.naive.held = self.driven.world.held = set(flows)
        self.driven.controller.wake()

    def _use(self, rules: Rules | None) -> None:
        self.driven.controller.use(None if rules is None else self.settings(rules))
        self.naive.use(rules)

    def _advance(self, seconds: int) -> None:
        self.driven.loop.advance(seconds)
        self.naive.advance(seconds)


@pytest.mark.parametrize(
    "has_plugins", [pytest.param(False, id="policies alone"), pytest.param(True, id="plugins too")]
)
@given(rules=RULES, history=HISTORIES)
@settings(max_examples=150)
def test_whatever_happens_it_does_what_a_naive_dispatcher_does(
    has_plugins: bool,
    rules: Rules,
    history: list[list[Operation]],
) -> None:
    driven = Driven()
    with driven.loop.running():
        both = History(driven, has_plugins=has_plugins)
        both.run([("use", rules)])
        for turn in history:
            both.run(turn)
        both.end()


@given(
    floors=st.tuples(*[st.sampled_from([0.02, 0.05, 0.2, 0.3, 0.5])] * 2),
    waiting=st.tuples(*[st.integers(1, 60)] * 3),
)
@settings(max_examples=30)
def test_no_band_waits_for_longer_than_its_floor_share_says(
    floors: tuple[float, float], waiting: tuple[int, int, int]
) -> None:
    """Of every 1/share dispatches one is its own, unless it waits for one other such band."""
    driven = Driven()
    priorities = (HIGH, DEFAULT, LOW)
    with driven.loop.running():
        bands = {
            priority: driven.band(floor_share=floor)
            for priority, floor in zip(priorities, (0.0, *floors), strict=True)
        }
        driven.use(driven.settings(bands=bands))
        for priority, number in zip(priorities, waiting, strict=True):
            for _ in range(number):
                driven.ask(str(priority), priority=priority)
        driven.room(10**6)
        driven.loop.settle()
    order = [int(priority) for priority in driven.world.dispatched]
    assert Counter(order) == dict(zip(priorities, waiting, strict=True))
    for priority, floor in zip(priorities[1:], floors, strict=True):
        share = min(floor, 0.25)
        since = 0
        for each in order[: len(order) - order[::-1].index(priority)]:
            since = 0 if each == priority else since + 1
            assert since <= ceil(1 / share) + 1


def test_outcomes_are_values_of_the_reference() -> None:
    """The naive dispatcher names them by hand."""
    assert {"Dispatched", "RejectedCapacity", "RejectedNoEndpoints", "EvictedTTL",
            "EvictedNoEndpoints"} < set(Outcome)  # fmt: skip

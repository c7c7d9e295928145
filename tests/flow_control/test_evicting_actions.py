"""``reclaim`` and ``preempt`` of requests in flight, with session plugins."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from flow_control.evicting import Client, Pool
from flow_control.sessions.clusters import Plugin

from epp.flow_control import QueuedRequest
from epp.flow_control.sessions import (
    CommitError,
    Event,
    ExtensionPoints,
    Session,
    SessionPlugin,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

DISPATCHED = ["Dispatched"]
EVICTED = ["Dispatched", "evicted"]

BOTH = ("allocate", "reclaim", "preempt")


def waiting(pool: Pool) -> QueuedRequest:
    """Return the only waiting request."""
    (queued,) = [
        flow.head for band in pool.control.ledger.bands.in_order for flow in band.in_order()
    ]
    return queued


@pytest.mark.parametrize(
    ("actions", "own", "other"),
    [
        pytest.param(("allocate", "reclaim"), DISPATCHED, EVICTED, id="reclaim: from others"),
        pytest.param(("allocate", "preempt"), EVICTED, DISPATCHED, id="preempt: from oneself"),
        pytest.param(BOTH, DISPATCHED, EVICTED, id="the first one first"),
        pytest.param(("preempt", "reclaim", "allocate"), EVICTED, DISPATCHED, id="in this order"),
    ],
)
async def test_each_action_takes_from_its_own_kind(
    actions: tuple[str, ...], own: list[str], other: list[str]
) -> None:
    pool = Pool(actions=actions)
    mine = pool.send("mine", -1, tenant="alice")
    theirs = pool.send("theirs", -1, tenant="bob")
    critical = pool.send("critical", tenant="alice")
    await asyncio.sleep(0.1)
    assert (mine.ended, theirs.ended) == (own, other)
    assert critical.ended == DISPATCHED
    assert pool.value("revocations_total", outcome="confirmed") == 1


@pytest.mark.parametrize(
    "priorities", [pytest.param((0, 0), id="nobody sheddable"), pytest.param((-1, -1), id="spared")]
)
async def test_nobody_is_taken_from_who_is_not_lower(priorities: tuple[int, int]) -> None:
    pool = Pool(actions=BOTH)
    clients = [pool.send(f"r{p}{n}", p) for n, p in enumerate(priorities)]
    equal = pool.send("equal", priorities[0])
    await asyncio.sleep(0.1)
    assert [client.ended for client in clients] == [DISPATCHED, DISPATCHED]
    assert equal.ended == []


async def test_who_has_begun_to_answer_is_no_victim() -> None:
    pool = Pool(actions=BOTH)
    old, new = pool.send("old", -1), pool.send("new", -1)
    new.begin_response()
    pool.send("critical")
    await asyncio.sleep(0.1)
    assert (old.ended, new.ended) == (EVICTED, DISPATCHED)


NAME = "guardian"
REFUSALS: dict[str, tuple[Callable[[Session], None], str, str]] = {
    "a reason for each victim": (
        lambda ssn: ssn.add_reclaimable_fn(lambda job, victim: f"{victim.priority} is mine"),
        "bob",
        "-1 is mine",
    ),
    "who may not reclaim at all": (
        lambda ssn: ssn.add_can_reclaim_resources_fn(lambda job: False),
        "bob",
        "guardian does not let it reclaim",
    ),
    "a reclaim as a whole": (
        lambda ssn: ssn.add_reclaim_scenario_validator_fn(lambda scenario: False),
        "bob",
        "guardian does not accept the evictions for it",
    ),
    "a preemption as a whole": (
        lambda ssn: ssn.add_preempt_scenario_validator_fn(lambda scenario: False),
        "alice",
        "guardian does not accept the evictions for it",
    ),
    "every victim of a reclaim": (
        lambda ssn: ssn.add_reclaim_victim_filter_fn(lambda job, victim: False),
        "bob",
        "session plugins spare every request that could be evicted for it",
    ),
    "every victim of a preemption": (
        lambda ssn: ssn.add_preempt_victim_filter_fn(lambda job, victim: False),
        "alice",
        "session plugins spare every request that could be evicted for it",
    ),
}


@pytest.mark.parametrize(("register", "tenant", "reason"), REFUSALS.values(), ids=REFUSALS)
async def test_one_refusal_blocks_and_its_reason_is_kept(
    register: Callable[[Session], None], tenant: str, reason: str
) -> None:
    pool = Pool(slots=1, plugins=[Plugin(register, NAME)], actions=BOTH)
    victim = pool.send("victim", -1, tenant=tenant)
    critical = pool.send("critical", tenant="alice")
    await asyncio.sleep(0.1)
    assert (victim.ended, critical.ended) == (DISPATCHED, [])
    assert reason in pool.control.reasons(waiting(pool))[1:]
    assert pool.value("revocations_issued_total", priority="-1") == 0


async def test_a_filter_spares_one_and_the_next_one_goes() -> None:
    spares = Plugin(
        lambda ssn: ssn.add_reclaim_victim_filter_fn(lambda job, victim: "new" not in victim.name),
        NAME,
    )
    pool = Pool(plugins=[spares], actions=("allocate", "reclaim"))
    old, new = pool.send("old", -1, tenant="bob"), pool.send("new", -1, tenant="bob")
    pool.send("critical", tenant="alice")
    await asyncio.sleep(0.1)
    assert (old.ended, new.ended) == (EVICTED, DISPATCHED)


class Keeper(SessionPlugin):
    """Counts the places of each request by events."""

    name = NAME

    def __init__(self) -> None:
        self.places: Counter[str] = Counter()

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_event_handler(
            allocate=lambda event: self._count(event, 1),
            deallocate=lambda event: self._count(event, -1),
        )

    def _count(self, event: Event, change: int) -> None:
        self.places[event.task.job.name.partition("#")[0]] += change


async def test_accounts_of_handlers_are_exact_after_an_eviction() -> None:
    keeper = Keeper()
    pool = Pool(slots=1, plugins=[keeper], actions=BOTH)
    pool.send("victim", -1)
    critical = pool.send("critical")
    await asyncio.sleep(0.1)
    assert keeper.places == {"victim": 0, "critical": 1}
    flows = [flow for band in pool.control.ledger.bands.in_order for flow in band.flows.values()]
    assert {flow.band.priority: flow.running for flow in flows} == {-1: 0, 0: 1}
    critical.end()
    assert keeper.places == {"victim": 0, "critical": 0}
    assert [flow.running for flow in flows] == [0, 0]


async def test_a_commit_that_cannot_evict_does_nothing_and_says_why() -> None:
    errors: list[str] = []
    victims: list[Client] = []

    def evict(ssn: Session) -> None:
        if victims and (queued := victims[0].queued) is not None and queued.task.node:
            statement = ssn.statement()
            statement.evict(queued.task, "a plugin's own idea")
            try:
                statement.commit()
            except CommitError as error:
                errors.append(str(error))

    pool = Pool(slots=1, plugins=[Plugin(evict, NAME)], is_on=False)
    victims.append(pool.send("victim", -1))
    pool.send("critical")
    pool.detector.slots = 2
    await asyncio.sleep(0.1)
    (text,) = errors
    assert text == (
        "nothing of the statement was done: victim#1 may not be evicted: the response has begun,"
        " the eviction filter spares the request, or flowControl.enableEviction is off"
    )
    assert victims[0].ended == DISPATCHED
    victims[0].end()
    assert pool.endpoint.load.in_flight == 1


async def test_no_session_is_opened_that_could_evict_nobody() -> None:
    opened: list[Session] = []
    pool = Pool(slots=1, plugins=[Plugin(opened.append, NAME)], actions=BOTH)
    pool.send("critical-1")
    opened.clear()
    pool.send("critical-2")
    await asyncio.sleep(0.1)
    pool.flow.wake()
    await asyncio.sleep(0.1)
    assert opened == []

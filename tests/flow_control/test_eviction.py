"""Eviction of requests in flight for a blocked band."""

import asyncio
from collections.abc import Sequence
from math import inf, nan
from typing import Any, ClassVar

import pytest
from flow_control.evicting import LOWEST_THEN_NEWEST, SHEDDABLE, Client, Pool
from structlog.testing import capture_logs

from epp.flow_control.plugins import EvictionFilter, EvictionOrder, InFlight
from epp.flow_control.pressure.eviction import Demand
from epp.scheduling import LLMRequest

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

DISPATCHED = ["Dispatched"]
EVICTED = ["Dispatched", "evicted"]


def evicted(clients: Sequence[Client]) -> list[int]:
    """Return the indices of the evicted requests."""
    assert all(client.ended in (DISPATCHED, EVICTED) for client in clients)
    return [place for place, client in enumerate(clients) if client.ended == EVICTED]


@pytest.mark.parametrize(
    ("priorities", "demand", "victims"),
    [
        pytest.param((-1, -1), 0, [1], id="the newest of one priority"),
        pytest.param((-2, -1), 0, [0], id="the lowest priority"),
        pytest.param((-1, 0), 5, [0], id="those that are not sheddable are left alone"),
        pytest.param((0, 0), 5, [], id="nobody is sheddable"),
        pytest.param((-1, -1), -1, [], id="nobody of the same priority"),
        pytest.param((-1, -2), -1, [1], id="a sheddable request evicts a lower one"),
    ],
)
async def test_victims_are_lower_and_chosen_in_order(
    priorities: tuple[int, ...], demand: int, victims: list[int]
) -> None:
    pool = Pool()
    clients = await pool.fill(*priorities)
    critical = pool.send("critical", demand)
    await asyncio.sleep(0.1)
    assert evicted(clients) == victims
    assert critical.ended == (DISPATCHED if victims else [])
    assert pool.flow.waiting == (0 if victims else 1)


async def test_nothing_is_kept_and_nobody_evicted_when_it_is_off() -> None:
    pool = Pool(is_on=False)
    clients = await pool.fill(-1, -1)
    critical = pool.send("critical")
    await asyncio.sleep(10)
    assert (evicted(clients), critical.ended) == ([], [])
    assert pool.value("revocations_issued_total", priority="-1") == 0


async def test_what_has_begun_without_evictions_is_left_alone_and_so_is_all_once_they_are_off() -> (
    None
):
    pool = Pool(is_on=False)
    before = pool.send("before", -1)
    pool.use({})
    after = pool.send("after", -1)
    pool.use({}, is_on=False)
    critical = pool.send("critical")
    await asyncio.sleep(1)
    pool.use({})
    await asyncio.sleep(1)
    assert (before.ended, after.ended, critical.ended) == (DISPATCHED, DISPATCHED, [])


async def test_who_has_begun_to_answer_is_left_alone() -> None:
    pool = Pool()
    old, new = await pool.fill(-1, -1)
    new.begin_response()
    pool.send("critical")
    await asyncio.sleep(0.1)
    assert evicted([old, new]) == [0]


async def test_a_request_that_has_waited_itself_may_be_evicted() -> None:
    pool = Pool(slots=1)
    first = pool.send("first", -1)
    second = pool.send("second", -1)
    await asyncio.sleep(0)
    first.end()
    await asyncio.sleep(0.1)
    assert second.ended == DISPATCHED
    critical = pool.send("critical")
    await asyncio.sleep(0.1)
    assert (second.ended, critical.ended) == (EVICTED, DISPATCHED)


async def test_minimum_run_time_is_waited_for_to_the_millisecond() -> None:
    pool = Pool(eviction={"min_run_seconds": 5})
    clients = await pool.fill(-1, -1)  # at 0 s and 1 s, it is 2 s now
    pool.send("critical")
    await asyncio.sleep(2.99)
    assert evicted(clients) == []
    await asyncio.sleep(0.02)
    assert evicted(clients) == [0], "though the other one is newer"


@pytest.mark.parametrize(
    ("slots", "running", "most", "victims"),
    [
        # saturation 6 / 4 = 1.5, credit 1.5 / 6 = 0.25, target 0.5: two.
        pytest.param(4, 6, 9, 2, id="as many as the pool is too full by"),
        # saturation 12 / 4 = 3, credit 0.25, target 2: eight.
        pytest.param(4, 12, 2, 2, id="no more than may be at a time"),
        pytest.param(4, 12, 9, 8, id="many if they may"),
        # target 0 makes none, which would leave it blocked.
        pytest.param(4, 4, 9, 1, id="at least one"),
    ],
)
async def test_how_many_are_evicted_at_a_time(
    slots: int, running: int, most: int, victims: int
) -> None:
    pool = Pool(slots=running, eviction={"max_per_decision": most, "grace_seconds": 60})
    clients = await pool.fill(*[-1] * running)
    pool.detector.slots = slots
    pool.send("critical")
    await asyncio.sleep(0.1)
    assert len(evicted(clients)) == victims
    assert pool.value("reclaim_target") == running / slots - 1


@pytest.mark.parametrize(
    ("demand", "victims"),
    [
        pytest.param(Demand(0, 1.5, 1.0, 6), 2.0, id="by the part of each"),
        pytest.param(Demand(0, 1.0, 1.0, 6), 1.0, id="just full"),
        pytest.param(Demand(0, 0.0, 0.0, 6), 0.0, id="idle, and not even that much allowed"),
        pytest.param(Demand(0, inf, 1.0, 6), inf, id="endlessly full"),
        pytest.param(Demand(0, inf, inf, 6), inf, id="endlessly full and allowed"),
        pytest.param(Demand(0, 1.0, -inf, 6), inf, id="nothing allowed"),
        pytest.param(Demand(0, 1.0, 0.5, 0), 1.0, id="full of what is not known"),
    ],
)
async def test_how_many_make_up_for_a_demand(demand: Demand, victims: float) -> None:
    assert demand.victims == victims


async def test_nobody_follows_until_what_became_free_has_had_time_to_show() -> None:
    pool = Pool(slots=4, eviction={"max_per_decision": 1, "grace_seconds": 2})
    clients = await pool.fill(-1, -1, -1, -1)
    pool.detector.slots = 2
    critical = pool.send("critical")
    await asyncio.sleep(1.9)
    assert evicted(clients) == [3]
    await asyncio.sleep(0.2)
    assert evicted(clients) == [2, 3], "the grace is over, and nothing else has happened"
    assert critical.ended == []
    await asyncio.sleep(2)
    assert evicted(clients) == [1, 2, 3]
    assert critical.ended == DISPATCHED


async def test_a_victim_that_does_not_end_is_waited_for_only_so_long() -> None:
    pool = Pool(slots=2, eviction={"confirmation_seconds": 10, "grace_seconds": 1})
    old, new = await pool.fill(-1, -1)
    new.clings = True
    critical = pool.send("critical")
    await asyncio.sleep(9.9)
    assert evicted([old, new]) == [1]
    assert pool.value("pending_reclaim") == 0.5
    with capture_logs() as lines:
        await asyncio.sleep(0.2)
    assert [(line["event"], line["request_ids"]) for line in lines] == [
        ("evicted requests were not seen to end", ["filler-1"])
    ]
    assert pool.value("revocations_total", outcome="timed_out") == 1
    assert pool.value("pending_reclaim") == 0
    assert evicted([old, new]) == [1], "the grace is not over"
    await asyncio.sleep(1)
    assert evicted([old, new]) == [0, 1]
    assert critical.ended == DISPATCHED
    new.end()
    assert pool.value("revocations_total", outcome="confirmed") == 1
    assert pool.value("revocations_total", outcome="timed_out") == 1


async def test_a_victim_that_ends_late_is_confirmed_with_its_time() -> None:
    pool = Pool(eviction={"grace_seconds": 0})
    old, new = await pool.fill(-1, -1)
    new.clings = True
    critical = pool.send("critical")
    await asyncio.sleep(0.25)
    new.end()
    await asyncio.sleep(0.1)
    assert critical.ended == DISPATCHED
    assert evicted([old, new]) == [1]
    assert pool.value("revocations_issued_total", priority="-1") == 1
    assert pool.value("revocation_confirmation_seconds_sum") == pytest.approx(0.25, abs=1e-3)
    await asyncio.sleep(20)
    assert pool.value("revocations_total", outcome="timed_out") == 0


async def test_one_that_cannot_be_notified_holds_up_no_other() -> None:
    class Broken(Client):
        def revoke(self) -> None:
            raise OSError("no stream")

    pool = Pool(slots=3, eviction={"confirmation_seconds": 1})
    spared, other = await pool.fill(-1, -1)
    broken = Broken(pool, "broken", -1, "someone")
    broken.begin(pool.endpoint)
    pool.detector.slots = 1
    pool.send("critical")
    with capture_logs() as lines:
        await asyncio.sleep(0.1)
    assert [line["request_id"] for line in lines if line["log_level"] == "error"] == ["broken"]
    assert evicted([spared, other]) == [1]
    assert pool.value("revocations_total", outcome="confirmed") == 1


class Faulty(EvictionFilter, EvictionOrder):
    """Accepts all requests, and fails in given methods."""

    type: ClassVar[str] = "faulty"

    def __init__(self, *, accepts: bool | None = True, key: object = 0) -> None:
        self.name = "faulty"
        self._accepts = accepts
        self._key = key

    def accepts(self, request: LLMRequest) -> bool:
        if self._accepts is None:
            raise ZeroDivisionError("a bug in a filter")
        return self._accepts

    def key(self, victim: InFlight) -> Any:
        if self._key is None:
            raise ZeroDivisionError("a bug in an order")
        return object() if self._key == "object" else self._key


@pytest.mark.parametrize(
    ("policies", "victims"),
    [
        pytest.param((Faulty(), LOWEST_THEN_NEWEST), [1], id="a filter that takes everybody"),
        pytest.param((Faulty(accepts=False), LOWEST_THEN_NEWEST), [], id="nobody"),
        pytest.param((Faulty(accepts=None), LOWEST_THEN_NEWEST), [], id="a filter that fails"),
        pytest.param((SHEDDABLE, Faulty()), [0], id="an order in which all are the same"),
        pytest.param((SHEDDABLE, Faulty(key=None)), [1], id="an order that fails"),
        pytest.param((SHEDDABLE, Faulty(key=nan)), [1], id="an order that says NaN"),
        pytest.param((SHEDDABLE, Faulty(key="object")), [1], id="keys that cannot be compared"),
    ],
)
async def test_policies_say_who(
    policies: tuple[EvictionFilter, EvictionOrder], victims: list[int]
) -> None:
    pool = Pool(policies=policies)
    clients = await pool.fill(-1, -1)
    pool.send("critical")
    await asyncio.sleep(0.1)
    assert evicted(clients) == victims


async def test_policies_that_keep_failing_are_left_alone() -> None:
    order = Faulty(key=None)
    pool = Pool(slots=9, policies=(SHEDDABLE, order), eviction={"grace_seconds": 0})
    clients = await pool.fill(*[-1] * 9)
    for number in range(4):
        pool.send(f"critical-{number}")
        await asyncio.sleep(0.1)
    assert evicted(clients) == [5, 6, 7, 8]
    assert pool.guards.guard("EvictionOrder", order).is_off

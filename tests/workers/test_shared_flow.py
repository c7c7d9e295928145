"""One worker owns the queues: limits, turns and priorities hold for the requests of all."""

from pathlib import Path
from typing import Any

import pytest

from epp.parsing.plugins import Usage
from epp.testing import make_plugin
from epp_plugins.data_producers.inflight_load import InflightLoadProducer
from epp_plugins.flow_control.program_aware_fairness import ProgramAwareFairness
from epp_plugins.saturation_detectors.concurrency import ConcurrencyDetector
from tools.harness.controls import control_of
from tools.harness.gateway import until

from .flow_workers import Worker, settings, went, workers


def waiting(owner: Worker) -> int:
    """Return the number of requests in the owner's queues."""
    return control_of(owner.flow).ledger.bands.waiting


def in_flight(worker: Worker) -> int:
    """Return what a worker knows to be in flight, of all workers."""
    return sum(each.load.in_flight for each in worker.flow.pool())


async def sent_in_all(worker: Worker, number: int) -> None:
    """Wait until so many requests of all workers are sent."""
    await until(lambda: len(worker.order) == number)


async def test_a_request_of_another_worker_goes_at_once_if_there_is_room(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(2)) as (owner, other):
        client = other.ask("a")
        assert client.outcome == ""  # it asks the owner
        await went(client)
        assert not client.has_waited
        await until(lambda: ("passed", "a") in owner.observer.seen)
        assert other.observer.seen == []
        assert in_flight(owner) == in_flight(other) == 1
        client.end()
        assert in_flight(owner) == 0


async def test_the_slots_of_the_pool_are_given_away_once(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(3)) as (owner, other):
        clients = [(owner, other)[n % 2].ask(f"{n}") for n in range(8)]
        await until(lambda: len(owner.order) == 3 and waiting(owner) == 5)
        for sent in range(3, 8):
            next(each for each in clients if each.outcome == "sent").end()
            await sent_in_all(owner, sent + 1)
        assert waiting(owner) == 0
        for each in clients:
            if each.outcome == "sent":
                each.end()
        assert in_flight(owner) == 0


async def test_tenants_take_turns_wherever_their_requests_come(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1)) as (owner, other):
        first = owner.ask("first")
        flood = [other.ask(f"a{n}", "alice") for n in range(4)]
        await until(lambda: waiting(owner) == 4)
        few = [owner.ask(f"b{n}", "bob") for n in range(2)]
        first.end()
        for client in (flood[0], few[0], flood[1], few[1], flood[2], flood[3]):
            await went(client)
            client.end()
        assert owner.order == ["first", "a0", "b0", "a1", "b1", "a2", "a3"]


async def test_a_higher_priority_of_another_worker_goes_first(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1)) as (owner, other):
        first, low = owner.ask("first"), owner.ask("low")
        high = other.ask("high", priority=5)
        await until(lambda: waiting(owner) == 2)
        first.end()
        await went(high)
        assert low.outcome == ""
        high.end()
        await went(low)
        assert high.has_waited


async def test_limits_on_waiting_requests_hold_for_all_workers_together(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1, max_requests=3, displaces=False)) as (owner, other):
        owner.ask("first")
        kept = [worker.ask(worker.observer.__class__.__name__) for worker in (owner, other, other)]
        await until(lambda: waiting(owner) == 3)
        over = other.ask("one too many")
        await until(lambda: over.outcome != "")
        assert (over.outcome, over.why) == (
            "RejectedCapacity",
            "3 requests wait, which is the limit",
        )
        assert owner.ask("here, too").outcome == "RejectedCapacity"
        assert [each.outcome for each in kept] == ["", "", ""]


async def test_a_request_that_is_displaced_is_refused_as_such_at_its_worker(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1, max_requests=2)) as (owner, other):
        owner.ask("first")
        flood = [other.ask(f"{n}", "alice") for n in range(2)]
        await until(lambda: waiting(owner) == 2)
        owner.ask("new", "bob")
        await until(lambda: flood[1].outcome != "")
        assert flood[1].outcome == "RejectedCapacity"
        assert "displaced by one of a flow that uses less" in flood[1].why


async def test_a_ttl_ends_at_the_owner_with_its_reason(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1)) as (owner, other):
        owner.ask("first")
        client = other.ask("late", ttl=0.05)
        await until(lambda: client.outcome != "")
        assert client.outcome == "EvictedTTL"
        assert "the pool's saturation is 1.00" in client.why


async def test_a_client_that_leaves_is_taken_out_of_the_queue(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1)) as (owner, other):
        first, gone, stays = owner.ask("first"), other.ask("gone"), other.ask("stays")
        await until(lambda: waiting(owner) == 2)
        gone.leave()
        await until(lambda: waiting(owner) == 1)
        first.end()
        await went(stays)
        assert gone.tries == 0
        assert ("EvictedContextCancelled", "gone") in owner.observer.seen


async def test_the_end_of_a_request_elsewhere_lets_the_next_one_go(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1), count=3) as (owner, other, third):
        first = other.ask("first")
        await went(first)
        waits = [third.ask("second"), owner.ask("third")]
        await until(lambda: waiting(owner) == 2)
        first.end()
        await went(waits[0])
        waits[0].end()
        await went(waits[1])


async def test_a_request_for_which_no_endpoint_is_found_is_parked(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(4)) as (owner, other):
        unfit = other.ask("unfit", fits=False)
        await until(lambda: bool(control_of(owner.flow).ledger.parking.requests))
        (parked,) = control_of(owner.flow).ledger.parking.requests
        assert parked.reasons == ("the filters leave none",)
        assert in_flight(owner) == 0
        fits = other.ask("fits")
        await went(fits)
        unfit.fits = True
        owner.flow.wake()
        await went(unfit)
        await until(lambda: ("Dispatched", "unfit") in owner.observer.seen)
        about_unfit = [how for how, name in owner.observer.seen if name == "unfit"]
        assert about_unfit == ["enqueued", "Dispatched"]
        assert waiting(owner) == 0


async def test_a_failure_to_send_ends_the_request_and_frees_the_slot(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1)) as (owner, other):
        first, broken, second = owner.ask("first"), other.ask("broken"), other.ask("second")

        def fail(*_: object) -> None:
            raise ValueError("no profile of that name")

        broken.choose = fail  # type: ignore[method-assign,assignment] # for the test
        await until(lambda: waiting(owner) == 2)
        first.end()
        await went(second)
        assert (broken.outcome, broken.why) == ("failed", "no profile of that name")


async def test_a_low_request_of_another_worker_is_evicted_for_a_high_one(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(2, evicts=True)) as (owner, other):
        answered, low = other.ask("answered", priority=-1), other.ask("low", priority=-1)
        await went(answered, low)
        answered.begin_response()
        high = owner.ask("high", priority=1)
        await went(high)
        assert low.outcome == "evicted"
        assert answered.outcome == "sent"


# --- what plugins count ---------------------------------------------------------------------------


async def test_a_detector_sees_what_a_plugin_counts_at_all_workers(tmp_path: Path) -> None:
    detector = make_plugin(ConcurrencyDetector, {"maxConcurrency": 1})  # two endpoints
    async with workers(tmp_path, settings(0, detector=detector), count=3) as made:
        owner = made[0]
        for each in made:
            each.use_plugins(make_plugin(InflightLoadProducer, name=InflightLoadProducer.type))
        clients = [made[n % 3].ask(f"{n}") for n in range(9)]
        for ended in range(8):
            await until(lambda ended=ended: len(owner.order) >= min(9, ended + 2))  # type: ignore[misc]
            assert sum(each.outcome == "sent" for each in clients) == 2
            assert detector.saturation(owner.endpoints) >= 1.0
            next(each for each in clients if each.outcome == "sent").end()
        next(each for each in clients if each.outcome == "sent").end()
        # Ends are not reported while nobody waits: replicas tell of them, and the owner asks when
        # a request has to wait.
        await went(made[1].ask("last"))


async def test_a_policy_counts_the_tokens_of_all_workers(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(4)) as made:
        _, other = made
        policies = [make_plugin(ProgramAwareFairness) for _ in made]
        for each, policy in zip(made, policies, strict=True):
            each.use_plugins(policy)

        def known(tenant: str) -> dict[str, Any]:
            return policies[0].dump_state()["most_served"][tenant]  # type: ignore[no-any-return,index]

        first, second = other.ask("first", "alice"), other.ask("second", "alice")
        await went(first, second)
        assert known("alice")["in_flight"] == 2
        first.end(usage=Usage(prompt_tokens=10, completion_tokens=5))
        await until(lambda: known("alice")["in_flight"] == 1)
        assert known("alice")["service_tokens"] == pytest.approx(10 + 2 * 5, rel=0.1)
        unfit = other.ask("unfit", "bob", fits=False)
        await until(lambda: unfit.tries > 0)
        await until(lambda: known("bob")["in_flight"] == 0)
        assert known("bob")["service_tokens"] == 0.0
        await other.die()
        await until(lambda: known("alice")["in_flight"] == 0)


# --- reloads --------------------------------------------------------------------------------------


async def test_waiting_requests_are_kept_when_a_reload_makes_room(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1)) as (owner, other):
        first, second = owner.ask("first"), other.ask("second")
        await until(lambda: waiting(owner) == 1)
        other.flow.use(settings(2))  # it may reload first
        owner.flow.use(settings(2))
        await went(second)
        assert first.outcome == "sent"


async def test_a_reload_without_policies_leaves_nothing_of_the_requests_that_they_counted(
    tmp_path: Path,
) -> None:
    async with workers(tmp_path, settings(4)) as (owner, other):
        for each in (owner, other):
            each.use_plugins(make_plugin(ProgramAwareFairness))
        await went(request := other.ask("first", "alice"))
        counted = owner.flow._owner._sent
        await until(lambda: bool(counted.get(1)))
        for each in (other, owner):
            each.use_plugins()
        assert counted == {}
        request.end()


async def test_flow_control_that_is_off_at_the_owner_lets_new_requests_go(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1)) as (owner, other):
        first, waits = owner.ask("first"), other.ask("waits")
        await until(lambda: waiting(owner) == 1)
        owner.flow.use(None)
        await went(new := other.ask("new"))
        assert waits.outcome == ""  # the previous settings hold for it
        new.end()
        first.end()
        await went(waits)


# --- ends of workers ------------------------------------------------------------------------------


async def test_requests_of_a_worker_that_dies_leave_the_queue(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1)) as (owner, other):
        await went(first := other.ask("in flight"))
        lost = other.ask("waits")
        await until(lambda: waiting(owner) == 1)
        mine = owner.ask("mine")
        await other.die()
        await went(mine)
        assert waiting(owner) == 0
        assert (first.outcome, lost.outcome) == ("sent", "")
        assert in_flight(owner) == 1


async def test_the_next_owner_has_the_requests_that_wait_with_their_times(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(1), count=3) as (owner, second, third):
        await went(stays := third.ask("stays in flight"))
        owner.ask("dies with it")
        waits = [third.ask("third's"), second.ask("second's"), third.ask("third's, too", ttl=60.0)]
        await until(lambda: waiting(owner) == 4)
        since = [each.queued.enqueued_at for each in waits if each.queued is not None]
        await owner.die()
        second.leadership.take()
        await until(lambda: waiting(second) == 3)
        queued = control_of(second.flow).ledger.waiting
        assert sorted(each.enqueued_at for each in queued) == since
        for before, client in zip([stays, *waits], waits, strict=False):
            before.end()
            await went(client)


async def test_a_request_whose_ttl_ended_meanwhile_is_refused_by_the_next_owner(
    tmp_path: Path,
) -> None:
    async with workers(tmp_path, settings(1), count=2) as (owner, other):
        owner.ask("first")
        late = other.ask("late", ttl=30.0)
        await until(lambda: waiting(owner) == 1)
        assert late.queued is not None
        late.queued.enqueued_at -= 60.0
        other.endpoints[0].load.start(0.0)  # it would go at once
        await owner.die()
        other.leadership.take()
        await until(lambda: late.outcome != "")
        assert late.outcome == "EvictedTTL"


async def test_the_next_owner_can_evict_what_the_first_one_could(tmp_path: Path) -> None:
    async with workers(tmp_path, settings(2, evicts=True), count=3) as (owner, second, third):
        clients = [each.ask(f"of {each.index}", priority=-1) for each in (second, third)]
        await went(*clients)
        await owner.die()
        second.leadership.take()
        high = [third.ask(f"{n}", priority=1) for n in range(2)]
        await went(*high)
        assert [each.outcome for each in clients] == ["evicted", "evicted"]


async def test_without_an_owner_requests_wait_and_then_are_refused_as_if_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.workers.flow_requester.OWNERLESS_SECONDS", 0.05)
    async with workers(tmp_path, settings(1)) as (owner, other):
        owner.ask("first")
        waits = other.ask("waits")
        await until(lambda: waiting(owner) == 1)
        await owner.die()
        await until(lambda: waits.outcome != "")
        assert waits.outcome == other.ask("another").outcome == "RejectedCapacity"
        assert "the worker that owns the queues has been away" in waits.why
        assert [how for how, _ in other.observer.seen] == ["RejectedCapacity"] * 2
        other.leadership.take()
        await went(other.ask("served again"))

"""Who leads and when, and the contents of the Lease; time is virtual."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from epp.kubernetes.api import ApiError, Connection, ConnectionFailedError, UnreachableError
from epp.kubernetes.leader_election import make_identity

from .candidates import Election
from .conftest import connect
from .fake_api import EVENTS, LEASES, FakeApi
from .fake_state import RefusedError
from .links import Fate

pytestmark = pytest.mark.looptime


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Connection:
    return connect(tmp_path_factory.mktemp("kube"), "http://replaced")


@pytest.fixture
async def election(connection: Connection) -> AsyncIterator[Election]:
    made = Election(FakeApi([LEASES, EVENTS]), connection)
    yield made
    await made.close()


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_the_first_candidate_creates_the_lease_and_leads(election: Election) -> None:
    a = election.start("a")
    assert (a.is_leader, a.elector.leader) == (False, "")
    await election.until(lambda: a.is_leader)
    assert a.elector.leader == "a"
    taken = election.spec
    assert taken == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 0,
        "acquireTime": taken["renewTime"],
        "renewTime": taken["renewTime"],
    }
    assert taken["renewTime"].startswith("2027-01-15T08:00:0")
    assert len(taken["renewTime"]) == len("2027-01-15T08:00:00.000000Z")
    await asyncio.sleep(60)
    assert election.spec["acquireTime"] == taken["acquireTime"]
    assert election.spec["renewTime"] > taken["renewTime"]
    assert len(a.history) == 1
    assert a.elector.status.fault is None
    assert now() - (a.elector.status.last_contact or 0) < 2


async def test_a_lease_without_a_holder_is_taken(election: Election) -> None:
    election.api.create(LEASES, "l", spec={})
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    assert election.spec["leaseTransitions"] == 0


async def test_the_others_follow_the_leader(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    b, c = election.start("b"), election.start("c")
    await asyncio.sleep(120)
    assert (b.elector.leader, c.elector.leader) == ("a", "a")
    assert [leads for _, leads, _ in b.history + c.history] == [False, False]
    assert election.holders == ["a"]


async def test_a_killed_leader_is_replaced_after_the_lease_has_expired(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    b, c = election.start("b"), election.start("c")
    await asyncio.sleep(30)
    await a.kill()
    killed = now()
    led = await election.until(lambda: b.is_leader or c.is_leader)
    assert 13 <= led - killed <= 17
    await asyncio.sleep(30)
    winner = "b" if b.is_leader else "c"
    assert {b.elector.leader, c.elector.leader} == {winner}
    assert election.holders == ["a", winner]
    assert election.spec["leaseTransitions"] == 1
    # The loser of the race has not failed.
    assert b.elector.status.fault is c.elector.status.fault is None


async def test_a_stopped_leader_is_replaced_within_two_seconds(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    b = election.start("b")
    await asyncio.sleep(30)
    stopping = now()
    await a.stop()
    assert a.history[-1][1:] == (False, "")
    (released,) = [spec for spec in election.specs if not spec["holderIdentity"]]
    assert released["leaseDurationSeconds"] == 1
    assert await election.until(lambda: b.is_leader) - stopping <= 2
    assert election.holders == ["a", "", "b"]
    assert election.spec["leaseTransitions"] == 1
    assert a.losses[0] < b.gains[0]


async def test_a_candidate_that_does_not_lead_releases_nothing(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    b = election.start("b")
    await election.until(lambda: b.elector.leader == "a")
    calls = len(election.api.requests)
    await b.stop()
    assert len(election.api.requests) == calls
    assert election.holders == ["a"]


async def test_a_leader_without_a_server_stops_in_time_and_leads_again_later(
    election: Election,
) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    await asyncio.sleep(30)
    with capture_logs() as logs:
        a.link.is_cut = True
        cut = now()
        lost = await election.until(lambda: not a.is_leader)
        assert 8 <= lost - cut <= 10
        await asyncio.sleep(600)
        assert isinstance(a.elector.status.fault, UnreachableError)
        a.link.is_cut = False
        mended = now()
        assert await election.until(lambda: a.is_leader) - mended <= 2
    assert a.elector.status.fault is None
    assert election.spec["leaseTransitions"] == 0
    assert [each["event"] for each in logs] == [
        "lease not reached",
        "leadership lost",
        "leadership acquired",
        "lease reached again",
    ]


async def test_a_leader_whose_server_hangs_stops_in_time(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    await asyncio.sleep(30)
    a.link.is_hung = True
    hung = now()
    assert 8 <= await election.until(lambda: not a.is_leader) - hung <= 10.001
    fault = a.elector.status.fault
    assert isinstance(fault, ConnectionFailedError)
    assert "sent nothing for" in str(fault)


async def test_a_partitioned_leader_stops_before_another_leads(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    b = election.start("b")
    await asyncio.sleep(30)
    a.link.is_cut = True
    await election.until(lambda: b.is_leader)
    assert a.losses[0] + 3 < b.gains[0]
    a.link.is_cut = False
    await election.until(lambda: a.elector.leader == "b")
    await asyncio.sleep(60)
    assert b.is_leader
    assert election.holders == ["a", "b"]


async def test_a_leader_whose_lease_was_taken_stops_at_its_next_renewal(
    election: Election,
) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    election.api.update(LEASES, "l", spec=election.spec | {"holderIdentity": "x"})
    assert await election.until(lambda: not a.is_leader) < 2
    assert a.elector.leader == "x"
    assert await election.until(lambda: a.is_leader) > 15
    assert election.spec["leaseTransitions"] == 1


@pytest.mark.parametrize("hours", [1, -1])
async def test_clocks_may_jump(election: Election, hours: int) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    b = election.start("b")
    await asyncio.sleep(10)
    for candidate in (a, b):
        candidate.wall_offset = hours * 3600.0
        await asyncio.sleep(40)
        candidate.wall_offset = 0
        await asyncio.sleep(40)
    assert election.holders == ["a"]
    b.wall_offset = hours * 3600.0
    await a.kill()
    killed = now()
    assert 13 <= await election.until(lambda: b.is_leader) - killed <= 17


async def test_a_blocked_event_loop_does_not_lead_too_long(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    a.clock_offset += 9.9
    assert a.is_leader
    a.clock_offset += 0.1
    assert not a.is_leader
    await election.until(lambda: bool(a.losses))
    await election.until(lambda: a.is_leader)
    assert election.spec["leaseTransitions"] == 0


async def test_a_write_whose_response_comes_too_late_does_not_count(election: Election) -> None:
    a = election.start("a")
    pauses = iter([0.0, 11.0])
    a.link.client.pause_seconds = lambda: next(pauses, 0.0)
    assert await election.until(lambda: a.elector.leader == "a") > 11
    assert not a.is_leader
    assert 12 < await election.until(lambda: a.is_leader) < 14
    # The same while it leads.
    pauses = iter([0.0, 11.0])
    await asyncio.sleep(30)
    assert len(a.losses) == 1
    assert a.is_leader
    assert election.spec["leaseTransitions"] == 0


async def test_what_others_write_into_the_lease_is_kept(election: Election) -> None:
    election.api.create(
        LEASES,
        "l",
        labels={"app": "x"},
        spec={"holderIdentity": "old", "leaseTransitions": 4, "strategy": "OldestEmulationVersion"},
    )
    a = election.start("a")
    assert await election.until(lambda: a.is_leader) > 15
    assert election.spec["leaseTransitions"] == 5
    # The next write conflicts, and is repeated at once.
    election.api.update(LEASES, "l", labels={"app": "y"})
    await asyncio.sleep(30)
    assert a.losses == []
    assert election.lease["metadata"]["labels"] == {"app": "y"}
    assert election.spec["strategy"] == "OldestEmulationVersion"
    await a.stop()
    assert election.lease["metadata"]["labels"] == {"app": "y"}


async def test_a_lease_that_somebody_shortens_lasts_as_long_as_its_leader(
    election: Election,
) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    b = election.start("b")
    await election.until(lambda: b.elector.leader == "a")
    a.link.is_cut = True
    election.api.update(LEASES, "l", spec=election.spec | {"leaseDurationSeconds": 1})
    shortened = now()
    assert await election.until(lambda: b.is_leader) - shortened >= 15


async def test_writes_of_others_do_not_prolong_a_lease(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    b = election.start("b")
    await asyncio.sleep(10)
    await a.kill()
    killed = now()
    for number in range(17):
        election.api.update(LEASES, "l", labels={"n": str(number)})
        await asyncio.sleep(1)
    assert b.is_leader
    assert b.gains[0] - killed >= 13


async def test_a_deleted_lease_is_made_anew_by_its_holder(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    b = election.start("b")
    await election.until(lambda: b.elector.leader == "a")
    election.api.delete(LEASES, "l")
    await election.until(lambda: len(a.gains) == 2)
    await asyncio.sleep(30)
    assert b.gains == []
    # Without the holder, the others wait as long as it might still lead.
    a.link.is_cut = True
    election.api.delete(LEASES, "l")
    deleted = now()
    assert await election.until(lambda: b.is_leader) - deleted >= 13


@pytest.mark.parametrize(
    ("verb", "has_lease"), [("get", False), ("create", False), ("get", True), ("update", True)]
)
async def test_a_missing_right_is_reported_once_and_needs_no_restart(
    election: Election, verb: str, has_lease: bool
) -> None:
    if has_lease:
        election.api.create(LEASES, "l", spec={})
    election.api.faults.denied.add((verb, "leases"))
    with capture_logs() as logs:
        a = election.start("a")
        await asyncio.sleep(60)
        fault = a.elector.status.fault
        assert isinstance(fault, ApiError)
        assert fault.status == 403
        rule = f'resources: ["leases"], verbs: ["{verb}"]'
        assert rule in str(fault)
        assert [(each["event"], each["log_level"]) for each in logs] == [
            ("lease not reached", "warning")
        ]
        assert rule in logs[0]["error"]
        assert not a.is_leader
        election.api.faults.denied.clear()
        allowed = now()
        assert await election.until(lambda: a.is_leader) - allowed <= 2
        assert a.elector.status.fault is None


async def test_a_leader_that_loses_the_right_to_renew_stops(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    election.api.faults.denied.add(("update", "leases"))
    assert 8 <= await election.until(lambda: not a.is_leader) <= 10.1
    assert 'verbs: ["update"]' in str(a.elector.status.fault)
    with capture_logs() as logs:
        await a.stop()  # nor may it release
    assert logs[-1]["event"] == "lease not released"
    assert election.holders == ["a"]


async def test_a_missing_namespace_is_reported(election: Election) -> None:
    missing = RefusedError(404, "NotFound", 'namespaces "d" not found')
    nothing = RefusedError(404, "NotFound", 'leases "l" not found')
    election.api.faults.refusals += [nothing, missing]
    a = election.start("a")
    await asyncio.sleep(0.5)
    assert str(a.elector.status.fault) == (
        'cannot create leases in namespace d: 404 NotFound: namespaces "d" not found'
    )
    await election.until(lambda: a.is_leader)


async def test_a_lost_race_is_no_fault(election: Election) -> None:
    election.api.create(LEASES, "l", spec={"holderIdentity": "old"})
    candidates = [election.start(name) for name in "abc"]
    for each in candidates:
        each.link.fate = lambda: Fate(there_seconds=0.5)
    await election.until(lambda: any(each.is_leader for each in candidates))
    conflicts = [each.elector.status.fault for each in candidates]
    assert conflicts == [None] * 3
    await asyncio.sleep(60)
    assert len(election.holders) == 2


async def test_a_write_whose_response_is_lost_counts_at_the_next_attempt(
    election: Election,
) -> None:
    a = election.start("a")
    fates = iter([Fate(), Fate(loses="response")])
    a.link.fate = lambda: next(fates, Fate())
    assert 5 < await election.until(lambda: a.is_leader) < 8
    assert election.spec["leaseTransitions"] == 0
    assert election.holders == ["a"]


async def test_a_write_whose_response_is_outstanding_is_released(election: Election) -> None:
    a = election.start("a")
    fates = iter([Fate(), Fate(back_seconds=3)])
    a.link.fate = lambda: next(fates, Fate())
    await asyncio.sleep(1)
    assert election.holders == ["a"]
    assert not a.is_leader
    await a.stop()
    assert election.holders == ["a", ""]


async def test_a_conflict_does_not_keep_a_lease_from_being_released(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    a.link.fate = lambda: Fate(there_seconds=1)
    stopping = asyncio.create_task(a.stop())
    await asyncio.sleep(1.5)  # it has been read and not yet written
    election.api.update(LEASES, "l", labels={"app": "x"})
    await stopping
    assert election.holders == ["a", ""]
    assert election.lease["metadata"]["labels"] == {"app": "x"}


async def test_a_release_that_fails_delays_the_end_by_five_seconds(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    a.link.is_hung = True
    stopping = now()
    with capture_logs() as logs:
        await a.stop()
    assert 4.9 <= now() - stopping <= 5.1
    assert [each["event"] for each in logs] == ["leadership given up", "lease not released"]
    assert a.losses == [pytest.approx(stopping)]


async def test_a_release_that_fails_says_why(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    a.link.is_cut = True
    with capture_logs() as logs:
        await a.stop()
    # Not that the elector was being cancelled.
    assert logs[-1]["error"] == "cannot connect to http://replaced: refused"


async def test_the_beginning_is_reported_by_an_event(election: Election) -> None:
    a = election.start("a")
    await election.until(lambda: a.is_leader)
    await asyncio.sleep(60)
    (event,) = election.api.state.select(EVENTS, lambda _: True)
    assert event["metadata"]["name"].startswith("l.")
    assert event["metadata"]["namespace"] == "d"
    assert (event["type"], event["reason"]) == ("Normal", "LeaderElection")
    assert event["message"] == "a became leader"
    involved: dict[str, Any] = event["involvedObject"]
    assert (involved["kind"], involved["namespace"], involved["name"]) == ("Lease", "d", "l")
    assert involved["uid"] == election.lease["metadata"]["uid"]


async def test_an_event_that_is_not_allowed_does_not_matter(election: Election) -> None:
    election.api.faults.denied.add(("create", "events"))
    with capture_logs() as logs:
        a = election.start("a")
        await asyncio.sleep(60)
    assert a.is_leader
    assert a.elector.status.fault is None
    (entry,) = [each for each in logs if each["event"] == "event not created"]
    assert entry["log_level"] == "debug"


def test_an_identity_names_the_host_and_is_unique() -> None:
    first, second = make_identity(), make_identity()
    assert first != second
    assert first.rpartition("_")[0] == socket.gethostname()
    assert Path(first).name == first

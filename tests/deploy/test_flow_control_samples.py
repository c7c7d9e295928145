"""Samples with queues: who is dispatched next, who is refused, and how long requests wait."""

import asyncio
from collections import Counter

import pytest

from epp.config import PluginGraph
from epp.data_layer import ObjectStore
from tools.harness.controls import control_of

from .harness import graph_of, idle
from .queueing import QueueingEpp

pytestmark = pytest.mark.looptime

CRITICAL, BATCH = "critical", "batch"
ROOM = 16
"""What two servers take."""
SPOT = {"kai.scheduler/instance-type": "spot"}


@pytest.fixture
def graph(request: pytest.FixtureRequest) -> PluginGraph:
    """The graph of a sample: it is read from the disk, which the event loop must not wait for."""
    return graph_of(request.param)


def runs(sample: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("graph", [sample], indirect=True)


async def drained(epp: QueueingEpp) -> list[str]:
    """Have requests end one by one until nobody waits; return in which order the others went."""
    before = len(epp.went)
    while epp.waiting:
        await epp.end_one()
    return epp.went[before:]


# --- flow-control.yaml ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "order"),
    [
        pytest.param(["a a1", "a a2", "b b1"], "a1 b1 a2", id="tenants take turns"),
        pytest.param(
            ["a a1", "a a2", "a a3", "a a4", "b b1", "c c1", "b b2"],
            "a1 b1 c1 a2 b2 a3 a4",
            id="a flood waits behind itself",
        ),
        pytest.param(["a a1", "critical c1"], "c1 a1", id="critical ones first"),
        pytest.param(
            ["a a1", "critical c1", "b b1", "critical c2"], "c1 c2 a1 b1", id="all of them"
        ),
    ],
)
@runs("flow-control")
async def test_those_that_wait_go(
    graph: PluginGraph, sent: list[str], order: str, objects: ObjectStore
) -> None:
    epp = QueueingEpp(graph, idle("a", "b"), objects)
    epp.fill(ROOM)
    for each in sent:
        tenant, name = each.split()
        epp.ask(name, tenant=tenant, objective=CRITICAL if tenant == "critical" else "")
    await asyncio.sleep(0)
    assert epp.waiting == len(sent)
    assert await drained(epp) == order.split()


@runs("flow-control")
async def test_nobody_waits_for_longer_than_half_a_minute(
    graph: PluginGraph, objects: ObjectStore
) -> None:
    epp = QueueingEpp(graph, idle("a", "b"), objects)
    epp.fill(ROOM)
    epp.ask("late", objective=CRITICAL)
    await asyncio.sleep(29.9)
    assert not epp.refused
    await asyncio.sleep(0.2)
    refused = epp.refused["late"]
    assert (refused.status, refused.drop_reason) == (429, "rejected-ttl-expired")


@runs("flow-control")
async def test_the_first_server_of_a_pool_is_waited_for_for_two_minutes(graph: PluginGraph) -> None:
    epp = QueueingEpp(graph, {})
    epp.ask("early")
    await asyncio.sleep(119.9)
    assert not epp.refused
    await asyncio.sleep(0.2)
    refused = epp.refused["early"]
    assert (refused.status, refused.drop_reason) == (503, "rejected-no-endpoints")


# --- flow-control-tenants.yaml ----------------------------------------------------------------


@runs("flow-control-tenants")
async def test_tenants_get_the_pool_by_their_weights(graph: PluginGraph) -> None:
    epp = QueueingEpp(graph, idle("a", "b"))
    tenants = ("bronze", "silver", "gold")
    for number in range(150):
        for tenant in tenants:
            epp.ask(f"{tenant}-{number}", tenant=tenant)
    while len(epp.went) < 210:
        await epp.end_one()
    # The first of them went into an idle pool, whoever came: that is made up for by the 70th.
    got = Counter(name.partition("-")[0] for name in epp.went[70:])
    assert got == pytest.approx({"bronze": 20, "silver": 40, "gold": 80}, abs=3)


@pytest.mark.parametrize(
    ("tenant", "goes"),
    [("stranger", 4), ("", 4), ("bronze", 10)],
    ids=["nobody that is listed", "nobody at all", "one that is listed"],
)
@runs("flow-control-tenants")
async def test_an_idle_pool_takes_of(graph: PluginGraph, tenant: str, goes: int) -> None:
    epp = QueueingEpp(graph, idle("a", "b"))
    for number in range(10):
        epp.ask(str(number), tenant=tenant)
    await asyncio.sleep(0)
    assert (len(epp.went), epp.waiting) == (goes, 10 - goes)
    if epp.waiting:
        await epp.end_one()
        assert (len(epp.went), epp.waiting) == (goes + 1, 9 - goes)


# --- flow-control-batch.yaml ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_flight", "objective", "goes"),
    [
        (7, BATCH, True),
        (8, BATCH, False),
        (8, "", True),
        (15, "", True),
        (16, "", False),
    ],
    ids=[
        "batch below half",
        "batch at half",
        "interactive at half",
        "interactive for the last place",
        "interactive into a full pool",
    ],
)
@runs("flow-control-batch")
async def test_with_so_many_of_16_places_taken(
    graph: PluginGraph, in_flight: int, objective: str, goes: bool, objects: ObjectStore
) -> None:
    epp = QueueingEpp(graph, idle("a", "b"), objects)
    epp.fill(in_flight)
    epp.ask("it", objective=objective)
    assert ("it" in epp.in_flight) is goes
    assert epp.waiting == (not goes)


@pytest.mark.parametrize(("objective", "seconds"), [(BATCH, 10), ("", 60)])
@runs("flow-control-batch")
async def test_who_waits_waits_for(
    graph: PluginGraph, objective: str, seconds: float, objects: ObjectStore
) -> None:
    epp = QueueingEpp(graph, idle("a", "b"), objects)
    epp.fill(ROOM)
    epp.ask("it", objective=objective)
    await asyncio.sleep(seconds - 0.1)
    assert not epp.refused
    await asyncio.sleep(0.2)
    assert epp.refused["it"].drop_reason == "rejected-ttl-expired"


@runs("flow-control-batch")
async def test_no_more_than_200_batch_requests_wait(
    graph: PluginGraph, objects: ObjectStore
) -> None:
    epp = QueueingEpp(graph, idle("a", "b"), objects)
    epp.fill(ROOM)
    for number in range(201):
        epp.ask(f"batch-{number}", objective=BATCH)
    assert list(epp.refused) == ["batch-200"]
    assert (epp.refused["batch-200"].status, epp.waiting) == (429, 200)
    epp.ask("interactive")
    assert epp.waiting == 201


@runs("flow-control-batch")
async def test_one_of_ten_that_go_is_a_batch_request_while_interactive_ones_wait(
    graph: PluginGraph,
    objects: ObjectStore,
) -> None:
    epp = QueueingEpp(graph, idle("a", "b"), objects)
    epp.fill(ROOM)
    for number in range(100):
        epp.ask(f"batch-{number}", objective=BATCH)
        epp.ask(f"interactive-{number}")
    went: list[str] = []
    while len(went) < 50:
        await epp.end_one()
        went = epp.went[ROOM:]
    got = Counter(name.partition("-")[0] for name in went)
    # Each interactive one earns a tenth of a batch one: after 10 of them one goes, so 4 of 44.
    assert got == {"interactive": 46, "batch": 4}


# --- flow-control-spot.yaml -------------------------------------------------------------------


@runs("flow-control-spot")
async def test_only_sheddable_requests_go_to_a_spot_server_and_only_when_others_are_full(
    graph: PluginGraph,
    objects: ObjectStore,
) -> None:
    epp = QueueingEpp(graph, {**idle("a", "b"), "spot": {"labels": SPOT}}, objects)
    for number in range(ROOM):
        epp.ask(f"batch-{number}", objective=BATCH)
    assert (epp.at("a"), epp.at("b"), epp.at("spot")) == (8, 8, 0)
    epp.ask("interactive")
    epp.ask("batch", objective=BATCH)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert epp.in_flight["batch"].endpoint.name == "spot"
    assert "interactive" not in epp.in_flight
    (parked,) = control_of(epp.flow).ledger.parking.requests
    assert (
        "non-preemptible pod interactive#17 cannot be scheduled on spot instance spot"
    ) in parked.reasons
    await epp.end_one()
    assert epp.in_flight["interactive"].endpoint.name in {"a", "b"}

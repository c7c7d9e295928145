"""Requests in flow control's queues at the director: how a wait ends, and the client's response."""

import asyncio

import pytest
from config.graphs import HEAD
from deploy.queueing import QueueingEpp
from structlog.testing import capture_logs

from epp.building import make_builder
from epp.config import PluginGraph, load_text
from epp.flow_control import Outcome
from epp.flow_control.flows import QueuedRequest
from epp.flow_control.sessions import Job, Session, Statement, actions, placing
from epp.request_control import BadRequestError, PendingDecision, RoutedRequest
from epp.request_control.plugins import EndCause
from tools.harness.controls import control_of

pytestmark = pytest.mark.looptime

CONFIG = HEAD + (
    "featureGates: [flowControl]\n"
    "plugins: [{type: queue-scorer}, {type: concurrency-detector, parameters: {maxConcurrency: 1}}]"
    "\nflowControl:\n"
    "  saturationDetector: {pluginRef: concurrency-detector}\n"
    "  defaultRequestTTL: 10s\n"
    "  noEndpointRequestTTL: 20s\n"
    "  defaultPriorityBand: {maxRequests: 2, maxBytes: %s}\n"
)
Table = dict[str, dict[str, object]]
SERVER: Table = {"a": {}}
NOBODY: Table = {}
SATURATED = (429, "rejected-saturated")
EXPIRED = (429, "rejected-ttl-expired")
NO_ENDPOINTS = (503, "rejected-no-endpoints")
INTERNAL = (500, "")
BODY_BYTES = len('{"model":"tiny","prompt":"Hello","max_tokens":8}')


@pytest.fixture
def graph(request: pytest.FixtureRequest) -> PluginGraph:
    """A pool of one slot, with a queue of two requests and a given number of bytes."""
    return make_builder().build(load_text(CONFIG % getattr(request, "param", "1G"), "f"))


def refusal(epp: QueueingEpp, name: str) -> tuple[int, str]:
    error = epp.refused[name]
    return error.status, error.drop_reason


def full(graph: PluginGraph) -> QueueingEpp:
    epp = QueueingEpp(graph, SERVER)
    epp.fill(1)
    return epp


@pytest.mark.parametrize(
    ("outcome", "pool_is_empty", "want"),
    [
        (Outcome.REJECTED_CAPACITY, False, SATURATED),
        (Outcome.REJECTED_CAPACITY, True, NO_ENDPOINTS),
        (Outcome.REJECTED_NO_ENDPOINTS, True, NO_ENDPOINTS),
        (Outcome.EVICTED_TTL, False, EXPIRED),
        (Outcome.EVICTED_TTL, True, NO_ENDPOINTS),
        (Outcome.EVICTED_NO_ENDPOINTS, True, NO_ENDPOINTS),
        (Outcome.REJECTED_OTHER, False, INTERNAL),
        (Outcome.EVICTED_OTHER, False, INTERNAL),
    ],
)
async def test_an_outcome_is_answered(
    outcome: Outcome, pool_is_empty: bool, want: tuple[int, str], graph: PluginGraph
) -> None:
    epp = full(graph)
    epp.ask("it")
    (flow,) = control_of(epp.flow).ledger.bands[0].in_order()
    flow.head.candidate.turn_away(outcome, "the reason", pool_is_empty=pool_is_empty)
    assert refusal(epp, "it") == want
    assert str(epp.refused["it"]) == "the reason"


async def test_a_request_goes_at_once_while_there_is_room(graph: PluginGraph) -> None:
    assert isinstance(QueueingEpp(graph, SERVER).ask("it"), RoutedRequest)


async def test_a_request_goes_when_the_one_before_it_has_ended(graph: PluginGraph) -> None:
    epp = full(graph)
    epp.ask("it")
    await asyncio.sleep(5)
    assert (epp.waiting, epp.went) == (1, ["filler-0"])
    await epp.end_one()
    assert (epp.waiting, epp.went) == (0, ["filler-0", "it"])


async def test_one_more_than_may_wait_is_turned_away(graph: PluginGraph) -> None:
    epp = full(graph)
    for name in ("first", "second", "third"):
        epp.ask(name)
    assert refusal(epp, "third") == SATURATED
    assert epp.waiting == 2


@pytest.mark.parametrize("graph", [f'"{2 * BODY_BYTES - 1}"'], indirect=True)
async def test_a_body_more_than_may_wait_is_turned_away(graph: PluginGraph) -> None:
    epp = full(graph)
    epp.ask("first")
    epp.ask("second")
    assert refusal(epp, "second") == SATURATED
    assert control_of(epp.flow).ledger.bands.size_bytes == BODY_BYTES


async def test_one_of_the_flow_that_holds_most_gives_way(graph: PluginGraph) -> None:
    epp = full(graph)
    epp.ask("first", tenant="flood")
    epp.ask("second", tenant="flood")
    await asyncio.sleep(1)
    epp.ask("other", tenant="modest")
    assert refusal(epp, "second") == SATURATED
    assert str(epp.refused["second"]) == (
        "a limit on waiting requests was reached; after 1.000 s this request was displaced by one"
        " of a flow that uses less of it"
    )
    for _ in range(2):
        await epp.end_one()
    assert epp.went == ["filler-0", "first", "other"]


async def test_what_is_known_of_a_long_request_id_is_short(graph: PluginGraph) -> None:
    epp = full(graph)
    epp.ask("x" * 60_000)
    (job,) = control_of(epp.flow).ledger.cluster.jobs
    assert len(job) <= 70


async def test_a_body_counts_as_decoded_and_as_rewritten(graph: PluginGraph) -> None:
    epp = full(graph)
    target = "m" * 10_000
    epp.ask("it", target=target)
    assert control_of(epp.flow).ledger.bands.size_bytes > len(target)
    assert (
        control_of(epp.flow).ledger.bands[0].size_bytes
        == control_of(epp.flow).ledger.bands.size_bytes
    )


async def test_one_more_than_may_wait_for_an_empty_pool_is_turned_away(graph: PluginGraph) -> None:
    epp = QueueingEpp(graph, NOBODY)
    for name in ("first", "second", "third"):
        epp.ask(name)
    assert refusal(epp, "third") == NO_ENDPOINTS


@pytest.mark.parametrize(
    ("table", "ttl_ms", "seconds", "want"),
    [
        pytest.param(SERVER, "", 10.0, EXPIRED, id="the band's"),
        pytest.param(SERVER, "2500", 2.5, EXPIRED, id="its own"),
        pytest.param(SERVER, "15000", 10.0, EXPIRED, id="its own, which is too long"),
        pytest.param(NOBODY, "", 20.0, NO_ENDPOINTS, id="that of an empty pool"),
        pytest.param(NOBODY, "2500", 2.5, NO_ENDPOINTS, id="its own for an empty pool"),
    ],
)
async def test_a_request_waits_exactly_for_a_time(
    table: Table,
    ttl_ms: str,
    seconds: float,
    want: tuple[int, str],
    graph: PluginGraph,
) -> None:
    epp = QueueingEpp(graph, table)
    if table:
        epp.fill(1)
    epp.ask("it", ttl_ms=ttl_ms)
    await asyncio.sleep(seconds - 0.001)
    assert epp.waiting == 1
    await asyncio.sleep(0.002)
    assert (epp.waiting, refusal(epp, "it")) == (0, want)


async def test_a_client_that_has_left_is_not_answered(graph: PluginGraph) -> None:
    epp = full(graph)
    decision = epp.ask("it")
    assert isinstance(decision, PendingDecision)
    decision.cancel(EndCause.CLIENT_DISCONNECT)
    assert epp.waiting == 0
    await epp.end_one()
    assert (epp.went, epp.refused) == (["filler-0"], {})


@pytest.mark.parametrize("ttl_ms", ["0", "-1", "1.5", "5s", "1e3", "86400001", "soon", "٣"])
@pytest.mark.parametrize("table", [SERVER, NOBODY], ids=["idle pool", "empty pool"])
async def test_a_time_that_nobody_can_read_is_refused(
    table: Table, ttl_ms: str, graph: PluginGraph
) -> None:
    epp = QueueingEpp(graph, table)
    with pytest.raises(BadRequestError, match=r"x-llm-d-request-ttl-ms is .*whole number of milli"):
        epp.ask("it", ttl_ms=ttl_ms)
    assert epp.waiting == 0


LIMITED = HEAD + (
    "featureGates: [flowControl]\n"
    "plugins:\n"
    "- {type: queue-scorer}\n"
    "- {type: concurrency-detector, parameters: {maxConcurrency: %d}}\n"
    "- type: proportion-fairness-policy\n"
    "  parameters: {halfLifeSeconds: %d, defaultQueue: {limit: {requests: 2}}}\n"
    "flowControl:\n"
    "  saturationDetector: {pluginRef: concurrency-detector}\n"
    "  defaultPriorityBand: {fairnessPolicyRef: proportion-fairness-policy}\n"
)


@pytest.fixture
def limited() -> list[PluginGraph]:
    """One request at a time, and nine, with policies that are not the same; two of each tenant."""
    return [
        make_builder().build(load_text(LIMITED % (slots, half_life), "f"))
        for slots, half_life in ((1, 300), (9, 600))
    ]


async def test_what_waits_when_a_policy_is_reloaded_counts_with_the_new_one(
    limited: list[PluginGraph],
) -> None:
    """Its limit applies, and it is notified of ends; else all queued requests would go at once."""
    before, after = limited
    epp = QueueingEpp(before, SERVER)
    epp.fill(1)
    for number in range(5):
        epp.ask(f"a{number}", tenant="a")
    epp.reload(after)
    await asyncio.sleep(0.1)
    assert epp.went == ["filler-0", "a0", "a1"]
    await epp.end_one()
    assert epp.waiting == 3
    await epp.end_one()
    assert epp.went == ["filler-0", "a0", "a1", "a2"]


async def test_what_has_read_a_request_outlives_it_when_a_reload_comes_while_it_waits(
    limited: list[PluginGraph],
) -> None:
    before, after = limited
    epp = QueueingEpp(before, SERVER)
    epp.fill(1)
    epp.ask("it")
    pipeline = epp.reload(after)
    idle: list[str] = []
    pipeline.when_idle(lambda: idle.append("idle"))
    await epp.end_one()
    assert (epp.went, idle) == (["filler-0", "it"], [])
    await epp.end_one()
    assert idle == ["idle"]
    assert pipeline.open_requests == 0


async def test_an_exception_of_one_request_ends_that_one_and_not_the_session(
    graph: PluginGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    epp = full(graph)
    placed = placing.place

    def place(session: Session, statement: Statement, job: Job) -> bool:
        if isinstance(job, QueuedRequest) and job.request.request_id == "bad":
            raise ZeroDivisionError("a bug that nobody has thought of")
        return placed(session, statement, job)

    monkeypatch.setattr(actions, "place", place)
    epp.ask("bad", tenant="one")
    epp.ask("good", tenant="other")
    with capture_logs() as lines:
        await epp.end_one()
    assert refusal(epp, "bad") == INTERNAL
    assert (epp.went, epp.waiting) == (["filler-0", "good"], 0)
    assert [line["event"] for line in lines if line["log_level"] == "error"] == [
        "request failed inside the EPP"
    ]
    await epp.end_one()
    assert [each.load.in_flight for each in epp.endpoints] == [0]


async def test_faults_that_come_back_are_logged_with_one_traceback(
    graph: PluginGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    epp = full(graph)

    def place(*_: object) -> bool:
        raise ZeroDivisionError("a bug that nobody has thought of")

    monkeypatch.setattr(actions, "place", place)
    epp.ask("first")
    epp.ask("second")
    with capture_logs() as lines:
        await epp.end_one()
    assert set(epp.refused) == {"first", "second"}
    failed = [line for line in lines if line["event"] == "request failed inside the EPP"]
    assert [line["request_id"] for line in failed] == ["first", "second"]
    assert [line["exc_info"] is not None for line in failed] == [True, False]

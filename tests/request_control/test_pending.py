"""Decisions that wait for asynchronous producers, on the loop's virtual clock."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from structlog.testing import capture_logs

from epp.request_control import (
    AllFilteredError,
    EndCause,
    InternalError,
    NoCandidatesError,
    PendingDecision,
    RequestError,
    RoutedRequest,
)
from epp.scheduling import CycleState, Endpoint, LLMRequest, Plugin
from epp.testing import make_endpoint
from request_control.producers import Async, Sync, failures, key
from tools.harness.request_control import Epp, FailingHandler, Outcomes, RefusingFilter, make_pool

pytestmark = pytest.mark.looptime

Outcome = RoutedRequest | RequestError


def ask(epp: Epp) -> tuple[PendingDecision, "asyncio.Future[Outcome]"]:
    """Send the director a request that has to wait; the future gets the outcome."""
    pending = epp.ask()
    assert isinstance(pending, PendingDecision)
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    pending.then(outcome.set_result)
    assert not outcome.done()
    return pending, outcome


async def decided(epp: Epp) -> RoutedRequest:
    """Return the routed request after a wait for producers."""
    outcome = await ask(epp)[1]
    assert isinstance(outcome, RoutedRequest)
    return outcome


class AttachingAsync(Async):
    """Also implements ``attach``."""

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        self.notes.append(f"{self.name} attach")


def others() -> set["asyncio.Task[object]"]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_a_request_that_nothing_applies_to_costs_no_task() -> None:
    epp = Epp(make_pool(), plugins=[Async("a", applies=False), Sync("b", "a")])
    routed = epp.handle()
    assert failures(routed) == {}
    assert others() == set()


async def test_one_task_per_producer_that_applies(looptime: object) -> None:
    epp = Epp(make_pool(), plugins=[Async("a"), Async("b", applies=False), Async("c")])
    _, outcome = ask(epp)
    assert {task.get_name() for task in others()} == {"a for request r-1", "c for request r-1"}
    await outcome
    assert looptime == 0.1


async def test_independent_ones_run_together_and_dependents_after_them(
    looptime: object,
) -> None:
    notes: list[str] = []
    epp = Epp(
        make_pool(),
        plugins=[
            Async("a", seconds=0.2, notes=notes),
            Async("b", seconds=0.3, notes=notes),
            Sync("c", "a", notes=notes),
            Async("d", "c", seconds=0.3, notes=notes),
            Sync("e", "d", "b", notes=notes),
            Sync("f", notes=notes),
        ],
    )
    routed = await decided(epp)
    assert notes == [
        "f prepare",  # waits for nobody
        "a asked at 0",
        "b asked at 0",
        "a answered at 0.2",
        "c prepare",
        "d asked at 0.2",
        "b answered at 0.3",
        "d answered at 0.5",
        "e prepare",
        "c attach",
        "e attach",
        "f attach",
    ]
    assert looptime == 0.5
    assert failures(routed) == {}
    assert routed.endpoint.name == "default/a"


@pytest.mark.parametrize(
    ("plugins", "failed", "seconds"),
    [
        pytest.param([Async("a", seconds=9)], {"a": "timeout"}, 0.4, id="a timeout"),
        pytest.param([Async("a", seconds=9, limit=2)], {"a": "timeout"}, 2, id="its own limit"),
        pytest.param(
            [Async("a", seconds=9, is_stubborn=True)],
            {"a": "timeout"},
            0.4,
            id="a timeout of one that will not be cancelled",
        ),
        pytest.param(
            [Async("a", fails_in="prepare_async")], {"a": "error"}, 0.1, id="an exception"
        ),
        pytest.param(
            [Async("a", fails_in="cancelled")], {"a": "error"}, 0.1, id="a cancellation of its own"
        ),
        pytest.param([Async("a", fails_in="exit")], {"a": "error"}, 0.1, id="it calls sys.exit()"),
        pytest.param(
            [Async("a", fails_in="applies_to"), Async("b")], {"a": "error"}, 0.1, id="applies_to"
        ),
        pytest.param(
            [
                Async("a", fails_in="prepare_async"),
                Sync("b", "a"),
                Async("c", "b"),
                Async("d", seconds=0.3),
                Sync("e", "d"),
            ],
            {"a": "error", "b": "needs a", "c": "needs b"},
            0.3,
            id="its dependents, of both kinds, and nobody else",
        ),
        pytest.param(
            [Sync("a", fails_in="prepare"), Async("b", "a"), Async("c")],
            {"a": "error", "b": "needs a"},
            0.1,
            id="one that needs a synchronous one",
        ),
    ],
)
async def test_a_failure_is_noted_and_the_request_goes_on(
    plugins: Sequence[Plugin], failed: dict[str, str], seconds: float, looptime: object
) -> None:
    epp = Epp(make_pool(), plugins=plugins)
    with capture_logs() as lines:
        routed = await decided(epp)
        routed.close(EndCause.COMPLETED)
    assert failures(routed) == lines[-1]["failed_producers"] == failed
    assert looptime == seconds
    bugs = [name for name, reason in failed.items() if not reason.startswith("needs ")]
    assert epp.total("plugin_failures_total") == len(bugs)
    assert epp.in_flight == epp.director.pipeline.open_requests == 0


async def test_one_that_fails_too_often_is_not_asked_any_more(looptime: object) -> None:
    notes: list[str] = []
    bad = Async("a", seconds=9, notes=notes)
    epp = Epp(make_pool(), plugins=[bad, Sync("b", "a")])
    with capture_logs():
        for _ in range(3):
            await decided(epp)
        routed = epp.handle()  # it needs not wait: nobody is left to ask
    assert failures(routed) == {"a": "disabled", "b": "needs a"}
    assert epp.failures("AsyncDataProducer", bad) == 3
    assert looptime == pytest.approx(1.2)


async def test_requests_it_does_not_apply_to_do_not_speak_for_it() -> None:
    notes: list[str] = []
    bad = AttachingAsync("a", fails_in="prepare_async", notes=notes)
    epp = Epp(make_pool(), plugins=[bad])
    with capture_logs():
        for _ in range(3):
            bad.applies = True
            await decided(epp)
            bad.applies = False
            epp.handle()
        bad.applies = True
        routed = epp.handle()  # it needs not wait: nobody is left to ask
    assert failures(routed) == {"a": "disabled"}
    assert notes.count("a attach") == 2  # where it did not apply, until it was disabled


async def test_a_response_after_the_limit_is_ignored() -> None:
    late = Async("a", seconds=9, is_stubborn=True)
    epp = Epp(make_pool(), plugins=[late])
    with capture_logs():
        routed = await decided(epp)
        await asyncio.sleep(7200)
    assert routed.state.read(key("a")) is None
    assert epp.failures("AsyncDataProducer", late) == 1
    assert epp.director.in_flight == 1


async def test_the_pool_is_looked_at_after_the_wait() -> None:
    epp = Epp(make_pool(), plugins=[Async("a")])
    _, outcome = ask(epp)
    epp.endpoints[:] = [make_endpoint("default/new", address="10.0.0.9:8000")]
    routed = await outcome
    assert isinstance(routed, RoutedRequest)
    assert routed.endpoint.name == "default/new"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        pytest.param(partial(Epp, []), NoCandidatesError, id="an empty pool"),
        pytest.param(
            partial(Epp, make_pool(), filters=[RefusingFilter()]),
            AllFilteredError,
            id="all filtered",
        ),
        pytest.param(
            partial(Epp, make_pool(), handler=FailingHandler()),
            InternalError,
            id="a handler with a bug",
        ),
    ],
)
async def test_a_refusal_after_the_wait_is_the_outcome(
    make: Callable[..., Epp], error: type[RequestError]
) -> None:
    watch = Outcomes()
    epp = make(plugins=[Async("a")], outcomes=watch)
    with capture_logs() as lines:
        outcome = await ask(epp)[1]
    assert type(outcome) is error
    assert [line["event"] for line in lines].count("request refused") == 1
    assert epp.value("request_total") == epp.director.pipeline.open_requests == 0
    assert epp.total("request_error_total") == 1
    assert watch.noted == [error.status]


@pytest.mark.parametrize("seconds", [0, 0.05, 0.15, 0.25], ids="after {} s".format)
@pytest.mark.parametrize("cause", [EndCause.CLIENT_DISCONNECT, EndCause.DRAINED])
async def test_a_decision_taken_back_reserves_nothing_and_calls_nobody(
    seconds: float, cause: EndCause
) -> None:
    notes: list[str] = []
    epp = Epp(
        make_pool(),
        plugins=[Async("a", notes=notes), Async("b", seconds=0.2, notes=notes), Async("c", "b")],
    )
    pending, outcome = ask(epp)
    await asyncio.sleep(seconds)
    assert epp.director.pipeline.open_requests == 1
    epp.clock.now += seconds
    with capture_logs() as lines:
        pending.cancel(cause)
        pending.cancel(cause)  # once is enough
        await asyncio.sleep(60)
    assert not outcome.done()
    assert others() == set()
    assert epp.in_flight == epp.director.in_flight == epp.director.pipeline.open_requests == 0
    assert epp.total("request_total") == epp.total("request_error_total") == 0
    assert epp.total("plugin_failures_total") == 0
    assert lines == [
        {
            "event": "request abandoned before it was decided",
            "log_level": "info",
            "request_id": "r-1",
            "model": "llama",
            "target_model": "llama",
            "duration_seconds": seconds,
            "outcome": cause.value,
        }
    ]


async def test_taking_back_what_is_decided_does_nothing() -> None:
    epp = Epp(make_pool(), plugins=[Async("a")])
    pending, outcome = ask(epp)
    routed = await outcome
    assert isinstance(routed, RoutedRequest)
    pending.cancel(EndCause.CLIENT_DISCONNECT)
    assert epp.in_flight == 1
    routed.close(EndCause.COMPLETED)
    assert epp.in_flight == epp.director.pipeline.open_requests == 0


async def test_who_asks_late_gets_the_outcome_at_once() -> None:
    pending = Epp(make_pool(), plugins=[Async("a")]).ask()
    assert isinstance(pending, PendingDecision)
    await asyncio.sleep(1)
    got: list[Outcome] = []
    pending.then(got.append)
    assert [type(each) for each in got] == [RoutedRequest]


async def test_waiting_requests_do_not_hold_up_each_other(looptime: object) -> None:
    epp = Epp(
        [make_endpoint(f"ns/{i}", address=f"10.0.0.{i}:80") for i in range(4)],
        plugins=[Async("a", seconds=0.3)],
    )
    outcomes = [ask(epp)[1] for _ in range(40)]
    routed_requests = await asyncio.gather(*outcomes)
    assert looptime == 0.3
    assert len(routed_requests) == epp.director.in_flight == 40
    assert [e.load.in_flight for e in epp.endpoints] == [10] * 4


@pytest.mark.parametrize("fails_in", ["", "prepare_async"])
async def test_who_reads_a_key_if_it_is_there_waits_for_it_and_goes_on_without(
    fails_in: str,
) -> None:
    notes: list[str] = []
    plugins: list[Plugin] = [
        Async("a", notes=notes, fails_in=fails_in),
        Sync("b", optional=["a"], notes=notes),
    ]
    with capture_logs():
        routed = await decided(Epp(make_pool(), plugins=plugins))
    assert notes.index("b prepare") == len(notes) - 2
    assert routed.state.read(key("b")) == "b"
    assert routed.state.read(key("a")) == (None if fails_in else "a")
    assert failures(routed) == ({"a": "error"} if fails_in else {})

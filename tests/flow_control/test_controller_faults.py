"""Failing policies and session plugins: no request is lost, and failures are counted."""

from collections.abc import Callable, Iterator, Sequence
from math import nan
from typing import Any, ClassVar

import pytest
from flow_control.driven import FAILED, Driven, RoomDetector, Strict, World
from structlog.testing import capture_logs

from epp.flow_control import Outcome, QueuedRequest, UsageLimitPolicy
from epp.flow_control.dispatch import dispatch_order
from epp.flow_control.plugins import Flow
from epp.flow_control.sessions import (
    Event,
    ExtensionPoints,
    Job,
    Session,
    SessionPlugin,
    Task,
    Verdict,
)
from epp.observability import Metrics, PluginWatch
from epp.scheduling import Endpoint, GuardRails, LLMRequest

EACH = ["a1", "b1", "a2", "b2"]


class Watched(Driven):
    """Counts failures of policies as the metrics do."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        super().__init__(guards=self.rails(disable_after=0))

    def rails(self, disable_after: int) -> GuardRails:
        return GuardRails(observer=PluginWatch(self.metrics), disable_after=disable_after)

    def failures(self, *points: str) -> float:
        """Return how many failures were counted at these extension points."""
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "llm_d_epp_plugin_failures_total"
            and sample.labels["extension_point"] in points
        )


@pytest.fixture
def driven() -> Iterator[Watched]:
    made = Watched()
    with made.loop.running(), capture_logs():
        made.use()
        yield made


def ask_each(driven: Watched, **about: Any) -> None:
    for request_id in EACH:
        driven.ask(request_id, request_id[0], **about)


def go(driven: Watched) -> list[str]:
    driven.room(100)
    driven.loop.settle()
    return driven.world.dispatched


# --- keys of requests ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", [pytest.param("raises", id="raises"), pytest.param("is not a number", id="NaN")]
)
def test_one_without_a_key_goes_after_all_that_have_one(driven: Watched, key: str) -> None:
    driven.ask("faulty", headers={"key": key})
    driven.ask("faulty, too", "b", headers={"key": key})
    ask_each(driven)
    assert go(driven) == [*EACH, "faulty", "faulty, too"]
    assert driven.failures("OrderingPolicy") == 2


@pytest.mark.parametrize(
    "flows", [pytest.param("aaa", id="in one flow"), pytest.param("abc", id="across flows")]
)
def test_keys_that_cannot_be_compared_leave_the_order_of_arrival(
    driven: Watched, flows: str
) -> None:
    for number, (flow, key) in enumerate(zip(flows, ("", "is a text", ""), strict=True)):
        driven.ask(str(number), flow, headers={"key": key})
    assert set(go(driven)) == {"0", "1", "2"}
    assert driven.failures("OrderingPolicy", "FairnessPolicy") >= 1
    assert driven.controller.waiting == 0


@pytest.mark.parametrize("flows", ["aaaa", "abcd", "aabb"])
@pytest.mark.parametrize("leaver", [None, 0, 1])
def test_keys_that_compare_with_some_others_only_hold_up_nobody(
    driven: Watched, flows: str, leaver: int | None
) -> None:
    """The first request hides the incomparable keys of the others until it is dispatched."""
    waiting = []
    for number, (flow, hidden) in enumerate(zip(flows, (None, "x", None, "y"), strict=True)):
        headers = {"key": "is hidden"} | ({"hidden": hidden} if hidden else {})
        waiting.append(driven.ask(str(number), flow, headers=headers))
        driven.loop.now = 1.0
    if leaver is not None:
        driven.cancel(waiting[leaver])
    assert driven.control.ledger.bands[0].in_order()
    assert sorted(go(driven)) == [each for each in "0123" if each != str(leaver)]
    assert driven.failures("OrderingPolicy", "FairnessPolicy") >= 1
    assert driven.controller.waiting == 0


def test_those_with_such_keys_expire_and_are_reloaded_like_others(driven: Watched) -> None:
    driven.use(driven.settings(driven.band(ttl_seconds=5.0)))
    waiting = []
    for hidden in (None, "x", None, "y"):
        headers = {"key": "is hidden"} | ({"hidden": hidden} if hidden else {})
        waiting.append(driven.ask("r", headers=headers))
        driven.loop.now = 1.0
    driven.use(driven.settings(driven.band(ttl_seconds=5.0)))
    driven.loop.advance(10)
    assert [each.ended for each in waiting] == [[Outcome.EVICTED_TTL]] * 4


# --- the other policies -------------------------------------------------------------------------


class FaultyFairness(Strict):
    """Fails in given methods."""

    def __init__(self, world: World, fails_in: str, answer: Any = None) -> None:
        super().__init__(world)
        self.fails_in = fails_in
        self._answer = answer

    def keys(self, flows: Sequence[Flow], now: float) -> list[Any]:
        self._fail("keys")
        return self._answer(flows) if self._answer else super().keys(flows, now)

    def activated(self, flow: Flow, now: float) -> None:
        self._fail("activated")

    def dispatched(self, flow: Flow, queued: QueuedRequest, now: float) -> None:
        self._fail("dispatched")

    def refusal(self, request: LLMRequest, now: float) -> str:
        self._fail("refusal")
        return ""

    def _fail(self, where: str) -> None:
        if self.fails_in == where:
            raise SystemExit("a bug in a policy")


@pytest.mark.parametrize(
    ("where", "answer"),
    [
        *[pytest.param(each, None, id=f"raises in {each}")
          for each in ("keys", "activated", "dispatched", "refusal")],
        pytest.param("", lambda flows: [nan for _ in flows], id="answers NaN"),
        pytest.param("", lambda flows: [], id="answers too few"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("disable_after", [0, 1])
def test_a_fairness_policy_that_fails_leaves_the_order_of_arrival(
    driven: Watched, where: str, answer: Any, disable_after: int
) -> None:
    driven.guards = driven.rails(disable_after)
    faulty = FaultyFairness(driven.world, where, answer)
    driven.use(driven.settings(driven.band(fairness=faulty)))
    ask_each(driven)
    assert go(driven) == EACH
    assert driven.failures("FairnessPolicy") >= 1
    assert driven.ask("straight").ended == [Outcome.DISPATCHED]


def test_keys_of_flows_that_do_not_compare_hold_up_nobody(driven: Watched) -> None:
    def answer(flows: Sequence[Flow]) -> list[Any]:
        return [(0, flow.fairness_id if flow.head.sequence % 2 else None) for flow in flows]

    driven.use(driven.settings(driven.band(fairness=FaultyFairness(driven.world, "", answer))))
    ask_each(driven)
    assert sorted(go(driven)) == sorted(EACH)
    assert driven.failures("FairnessPolicy") >= 1


class FaultyCeilings(UsageLimitPolicy):
    """Returns a given value, or raises a given exception."""

    type: ClassVar[str] = "faulty-ceilings"

    def __init__(self, answer: Any) -> None:
        self.name = "faulty"
        self._answer = answer

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        if self._answer is None:
            raise ZeroDivisionError
        answer: Sequence[float] = self._answer
        return answer


class FaultyDetector(RoomDetector):
    """Raises."""

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        raise ZeroDivisionError


@pytest.mark.parametrize("answer", [None, [nan], [1.0] * 9, []])
def test_a_usage_limit_policy_that_fails_limits_nobody_but_by_a_full_pool(
    driven: Watched, answer: Any
) -> None:
    driven.use(driven.settings(ceilings=FaultyCeilings(answer)))
    ask_each(driven)
    driven.room(2)
    driven.loop.settle()
    assert driven.world.dispatched == EACH[:2]
    assert (driven.failures("UsageLimitPolicy") > 0) is (answer != [])


def test_a_detector_that_fails_says_that_there_is_room(driven: Watched) -> None:
    driven.use(driven.settings(detector=FaultyDetector(driven.world)))
    assert driven.ask("a").ended == [Outcome.DISPATCHED]
    assert driven.failures("SaturationDetector") == 1


# --- requests that fail -------------------------------------------------------------------------


@pytest.mark.parametrize("flaw", ["cannot be chosen for", "cannot be reserved"])
@pytest.mark.parametrize("has_plugins", [False, True])
def test_one_that_fails_in_its_turn_is_answered_and_forgotten(
    driven: Watched, flaw: str, has_plugins: bool
) -> None:
    plugins = (Registering(lambda points: None),) if has_plugins else ()
    driven.use(driven.settings(plugins=plugins))
    faulty = driven.ask("faulty", flaw=flaw)
    driven.ask("next")
    assert go(driven) == ["faulty", "next"]
    assert faulty.ended == [FAILED]
    straight = driven.ask("straight", flaw=flaw)
    assert straight.ended == [FAILED]
    for each in list(driven.world.in_flight):
        driven.finish(each)
    driven.loop.advance(400)
    assert driven.control.ledger.cluster.jobs == {}
    assert driven.control.ledger.bands[0].flows == {}


def test_one_that_ends_while_it_is_answered_is_forgotten(driven: Watched) -> None:
    driven.use(driven.settings(plugins=(Registering(lambda points: None),)))
    candidate = driven.candidate("a")
    take = candidate.take

    def take_and_end(result: Any) -> None:
        take(result)
        driven.finish(candidate)

    candidate.take = take_and_end  # type: ignore[method-assign]  # as a client that is gone
    driven.come(candidate)
    assert go(driven) == ["a"]
    assert driven.control.ledger.bands[0].flows["a"].running == 0
    driven.loop.advance(400)
    assert driven.control.ledger.cluster.jobs == {}
    assert driven.control.ledger.bands[0].flows == {}


def test_a_session_that_fails_by_our_own_fault_loses_nobody(
    driven: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_each(driven)

    def fails(*args: object) -> bool:
        raise RuntimeError("a bug of ours")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(dispatch_order, "heads_of", fails)
        assert go(driven) == []
    assert logs[0]["event"].startswith("a dispatch session failed")
    assert go(driven) == EACH


# --- session plugins ----------------------------------------------------------------------------


class Registering(SessionPlugin):
    """Registers functions of a test."""

    name = "registering"

    def __init__(self, register: Callable[[ExtensionPoints], object]) -> None:
        self._register = register

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        self._register(dispatcher)


def test_a_refused_request_does_not_fail_with_the_error_of_the_one_before(driven: Watched) -> None:
    def capacity(job: Job, tasks: Sequence[Task]) -> Verdict:
        return Verdict(allowed=job.name.startswith("faulty"), reason="b may have no more")

    plugin = Registering(lambda points: points.add_is_job_over_capacity_fn(capacity))
    driven.use(driven.settings(plugins=(plugin,)))
    faulty = driven.ask("faulty", "a", flaw="cannot be chosen for")
    refused = driven.ask("refused", "b")
    go(driven)
    assert (faulty.ended, refused.ended) == ([FAILED], [])
    (parked,) = driven.control.ledger.parking.requests
    assert driven.control.reasons(parked) == ["b may have no more"]


class Opening(SessionPlugin):
    """Fails when a session opens or closes."""

    name = "opening"

    def __init__(self, fails_in: str) -> None:
        self._fails_in = fails_in

    def on_session_open(self, ssn: Session) -> None:
        if self._fails_in == "on_session_open":
            raise ZeroDivisionError

    def on_session_close(self, ssn: Session) -> None:
        if self._fails_in == "on_session_close":
            raise ZeroDivisionError


def bug(*args: object) -> Any:
    raise ZeroDivisionError("a bug in a plugin")


HARMLESS = [
    pytest.param(lambda points: points.add_queue_order_fn(bug), "queue_order", id="queue order"),
    pytest.param(lambda points: points.add_job_order_fn(bug), "job_order", id="job order"),
    pytest.param(lambda points: points.add_event_handler(allocate=bug), "allocate", id="allocate"),
    pytest.param(
        lambda points: points.add_bind_request_mutate_fn(bug), "bind_request_mutate", id="mutate"
    ),
]
REFUSING = [
    pytest.param(lambda points: points.add_pre_predicate_fn(bug), id="pre-predicate"),
    pytest.param(lambda points: points.add_predicate_fn(bug), id="predicate"),
    pytest.param(lambda points: points.add_node_order_fn(bug), id="node order"),
    pytest.param(lambda points: points.add_subset_nodes_fn(bug), id="subset of nodes"),
    pytest.param(lambda points: points.add_is_job_over_capacity_fn(bug), id="job capacity"),
    pytest.param(
        lambda points: points.add_is_task_allocation_on_node_over_capacity_fn(bug),
        id="node capacity",
    ),
]


@pytest.mark.parametrize(("register", "point"), HARMLESS)
def test_a_session_plugin_that_fails_to_say_something_stops_nobody(
    driven: Watched, register: Callable[[ExtensionPoints], object], point: str
) -> None:
    driven.use(driven.settings(plugins=(Registering(register),)))
    ask_each(driven)
    assert go(driven) == EACH
    assert driven.ask("straight").ended == [Outcome.DISPATCHED]
    assert ("registering", point) in driven.observer.faults


@pytest.mark.parametrize("fails_in", ["on_session_open", "on_session_close"])
def test_a_session_plugin_that_fails_around_a_session_stops_nobody(
    driven: Watched, fails_in: str
) -> None:
    driven.use(driven.settings(plugins=(Opening(fails_in),)))
    ask_each(driven)
    assert go(driven) == EACH
    assert driven.observer.faults.count(("opening", fails_in)) >= 1


@pytest.mark.parametrize("register", REFUSING)
def test_a_session_plugin_that_fails_to_let_someone_go_lets_nobody_go(
    driven: Watched, register: Callable[[ExtensionPoints], object]
) -> None:
    driven.use(driven.settings(plugins=(Registering(register),)))
    ask_each(driven)
    assert go(driven) == []
    assert driven.observer.faults
    assert len(driven.control.ledger.parking.requests) == len(EACH)
    assert all(each.reasons for each in driven.control.ledger.parking.requests)
    driven.use()
    assert go(driven) == EACH


def test_the_straight_path_asks_session_plugins_too(driven: Watched) -> None:
    asked: list[str] = []
    events: list[str] = []

    def predicate(task: Any, job: Any, node: Any) -> str | None:
        asked.append(f"predicate {node.name}")
        return "reserved" if node.name == "default/e-0" else None

    def capacity(job: Any, tasks: Any) -> Verdict:
        asked.append("capacity")
        return Verdict(job.queue.fairness_id != "x", "x has enough")

    def register(points: ExtensionPoints) -> None:
        points.add_predicate_fn(predicate)
        points.add_is_job_over_capacity_fn(capacity)
        points.add_node_order_fn(lambda task, node: float(node.name == "default/e-2"))
        points.add_bind_request_mutate_fn(lambda task, node: {"x-node": node})
        points.add_event_handler(allocate=note("+"), deallocate=note("-"))

    def note(sign: str) -> Callable[[Event], None]:
        return lambda event: events.append(f"{sign} {event.node.name}")

    driven.resize(3)
    driven.world.capacity = 9
    driven.use(driven.settings(plugins=(Registering(register),)))
    went = driven.ask("a")
    assert went.endpoint is driven.pool[2]
    assert went.attributes == {"x-node": "default/e-2"}
    assert asked == ["capacity", *(f"predicate default/e-{n}" for n in range(3))]
    waits = driven.ask("x1", "x")
    assert waits.ended == []
    assert waits.queued is not None
    assert list(waits.queued.reasons) == ["x has enough"]
    driven.finish(went)
    assert events == ["+ default/e-2", "- default/e-2"]


def test_plugins_say_who_is_next_before_policies_do(driven: Watched) -> None:
    def register(points: ExtensionPoints) -> None:
        points.add_queue_order_fn(
            lambda left, right, *_: (right.name > left.name) - (right.name < left.name)
        )
        points.add_job_order_fn(lambda left, right: (left.name < right.name) * 2 - 1)

    driven.use(driven.settings(plugins=(Registering(register),)))
    ask_each(driven)
    assert go(driven) == ["b2", "b1", "a2", "a1"]


def test_a_plugin_that_cannot_be_configured_leaves_everything_as_it_was(driven: Watched) -> None:
    before = driven.control.settings
    with pytest.raises(ValueError, match="failed in on_configure: ZeroDivisionError"):
        driven.use(driven.settings(plugins=(Registering(bug),)))
    assert driven.control.settings is before
    ask_each(driven)
    assert go(driven) == EACH

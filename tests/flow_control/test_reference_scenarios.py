"""The scenarios of the reference's integration tests of flow control, with their names."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest
from flow_control.driven import Driven, DrivenCandidate

from epp.flow_control import Outcome
from epp.flow_control.sessions import Event, ExtensionPoints, SessionPlugin
from epp.scheduling import CycleState, Endpoint, SchedulingResult
from epp.testing import make_endpoint
from epp_plugins.flow_control import slo_deadline_ordering
from tools.harness.request_control import Epp

TTL, NO_ENDPOINT_TTL = 60.0, 20.0


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven()
    with made.loop.running():
        made.use(made.settings(made.band(ttl_seconds=TTL), no_endpoint_ttl_seconds=NO_ENDPOINT_TTL))
        yield made


def free(driven: Driven, capacity: float) -> list[str]:
    driven.room(capacity)
    driven.loop.settle()
    return driven.world.dispatched


def test_saturation_feedback_loop(driven: Driven) -> None:
    driven.room(3)
    requests = [driven.ask(str(number)) for number in range(10)]
    driven.loop.settle()
    for done in range(7):
        assert len(driven.world.in_flight) == 3
        assert driven.controller.waiting == 7 - done
        driven.finish(driven.world.in_flight[0])
        driven.loop.settle()
    assert [each.ended for each in requests] == [[Outcome.DISPATCHED]] * 10


def test_concurrent_reads_of_saturation(driven: Driven) -> None:
    driven.room(1)
    driven.ask("a")
    for request_id in "bcd":
        driven.ask(request_id)
        driven.control.capacity.measure()
        assert driven.control.capacity.saturation == {"decode": 1.0}
    driven.loop.settle()
    assert driven.world.dispatched == ["a"]  # nobody takes the place of another one


def test_slo_deadline_order(driven: Driven) -> None:
    ordering = slo_deadline_ordering.SloDeadlineOrderingPolicy(
        "slo", slo_deadline_ordering.Params()
    )
    driven.use(driven.settings(driven.band(ordering=ordering)))
    for request_id, slo in (("none", None), ("late", "900"), ("soon", "100"), ("bad", "x")):
        driven.ask(request_id, headers={"x-llm-d-slo-ttft-ms": slo} if slo else None)
    assert free(driven, 9) == ["soon", "late", "none", "bad"]


def test_priority_back_pressure(driven: Driven) -> None:
    driven.room(2)
    running = [driven.ask("r1"), driven.ask("r2")]
    driven.ask("low", priority=-1)
    driven.ask("high", priority=5)
    driven.finish(running[0])
    driven.loop.settle()
    assert driven.world.dispatched[2:] == ["high"]
    driven.finish(running[1])
    driven.loop.settle()
    assert driven.world.dispatched[2:] == ["high", "low"]


def test_round_robin_fairness(driven: Driven) -> None:
    driven.use(driven.settings(driven.band(fairness="turns")))
    for request_id in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        driven.ask(request_id, request_id[0])
    assert free(driven, 9) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_usage_limit_gating(driven: Driven) -> None:
    driven.use(driven.settings(ceilings={5: 1.0, 0: 0.5}, bands={5: driven.band()}))
    for number in range(4):
        driven.ask(f"0-{number}")
    assert free(driven, 4) == ["0-0", "0-1"]
    driven.ask("5-0", priority=5)
    assert free(driven, 4) == ["0-0", "0-1", "5-0"]


def test_global_and_band_capacity(driven: Driven) -> None:
    settings = driven.settings(driven.band(max_requests=2), max_requests=3, displaces=False)
    driven.use(settings)
    outcomes = [driven.ask(str(each), priority=each).ended for each in (0, 0, 0, 5, 5)]
    assert outcomes == [[], [], [Outcome.REJECTED_CAPACITY], [], [Outcome.REJECTED_CAPACITY]]


def test_byte_capacity(driven: Driven) -> None:
    driven.use(driven.settings(max_bytes=100))
    outcomes = [driven.ask("r", size=size).ended for size in (60, 41, 40, 0, 1)]
    full = [Outcome.REJECTED_CAPACITY]
    assert outcomes == [[], full, [], [], full]


def test_empty_pool_rejects_as_no_endpoints(driven: Driven) -> None:
    driven.use(driven.settings(max_requests=1))
    driven.resize(0)
    driven.ask("a")
    turned_away = driven.ask("b")
    assert turned_away.ended == [Outcome.REJECTED_NO_ENDPOINTS]
    assert turned_away.empty_pool is True


def test_ttl_expiry(driven: Driven) -> None:
    waits = driven.ask("a")
    driven.loop.advance(TTL + 100)
    assert (waits.ended, waits.ended_at) == ([Outcome.EVICTED_TTL], TTL)


def test_caller_cancellation(driven: Driven) -> None:
    waits = driven.ask("a")
    driven.cancel(waits)
    assert driven.controller.waiting == 0
    assert free(driven, 9) == []
    assert driven.observer.seen[-1] == (Outcome.EVICTED_CONTEXT_CANCELLED, "a")


def test_zombie_capacity(driven: Driven) -> None:
    """A cancelled request does not count towards limits."""
    driven.use(driven.settings(driven.band(ttl_seconds=5.0), max_requests=2))
    first, second = driven.ask("a"), driven.ask("b")
    driven.cancel(first)
    assert driven.ask("c").ended == []
    assert driven.ask("d").ended == [Outcome.REJECTED_CAPACITY]
    driven.loop.advance(5)
    assert second.ended == [Outcome.EVICTED_TTL]
    assert driven.ask("e").ended == []


class OnNodes(SessionPlugin):
    """Counts the tasks of each node."""

    name = "on-nodes"

    def __init__(self) -> None:
        self.running: Counter[int] = Counter()

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_event_handler(allocate=self._more, deallocate=self._less)

    def _more(self, event: Event) -> None:
        self.running[id(event.node)] += 1

    def _less(self, event: Event) -> None:
        self.running[id(event.node)] -= 1


def test_endpoint_re_registration_accuracy(driven: Driven) -> None:
    nodes = OnNodes()
    driven.world.capacity = 9
    driven.use(driven.settings(plugins=(nodes,)))
    first = driven.ask("a")
    (endpoint,) = driven.pool
    driven.resize(0)
    driven.pool = (endpoint,)
    driven.controller.endpoint_added(endpoint)
    second = driven.ask("b")
    assert sum(nodes.running.values()) == 2
    driven.finish(first)
    driven.finish(second)
    assert set(nodes.running.values()) == {0}


def test_identity_collision_when_a_pod_is_replaced(driven: Driven) -> None:
    nodes = OnNodes()
    driven.world.capacity = 9
    driven.use(driven.settings(plugins=(nodes,)))
    old = driven.ask("old")
    assert old.queued is not None
    old_node = old.queued.task.node
    driven.pool = (make_endpoint(driven.pool[0].name, address="10.0.0.9:8000"),)
    new = driven.ask("new")
    assert new.endpoint is driven.pool[0]
    assert new.queued is not None
    assert new.queued.task.node is not old_node
    assert sorted(nodes.running.values()) == [1, 1]
    driven.finish(old)
    assert nodes.running[id(new.queued.task.node)] == 1


def test_high_flow_churn_without_deadlock(driven: Driven) -> None:
    driven.use(driven.settings(driven.band(fairness="turns", ttl_seconds=None)))
    requests = []
    for turn in range(20):
        requests += [driven.ask("r", f"flow-{turn}-{number}") for number in range(50)]
        free(driven, 40 * (turn + 1))
        driven.loop.advance(20)  # some flows are idle for long enough to be forgotten
    free(driven, 10**6)
    assert all(each.ended == [Outcome.DISPATCHED] for each in requests)
    assert 0 < len(driven.observer.removed) < 1000
    assert driven.controller.waiting == 0


def test_endpoint_churn_under_load(driven: Driven) -> None:
    rng = random.Random(0)
    requests = []
    for turn in range(100):
        driven.resize(rng.choice([0, 1, 5, 9]))
        requests += [driven.ask("r", f"flow-{number}") for number in range(5)]
        for candidate in rng.sample(driven.world.in_flight, len(driven.world.in_flight) // 2):
            driven.finish(candidate)
        free(driven, 5 + turn % 7)
        assert len(driven.world.in_flight) <= 11
        assert not driven.pool or len(driven.world.in_flight) >= min(5, driven.controller.waiting)
    driven.resize(3)
    free(driven, 10**6)
    assert all(each.ended == [Outcome.DISPATCHED] for each in requests)


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        pytest.param(1, 0, Outcome.EVICTED_NO_ENDPOINTS, id="a pool that empties"),
        pytest.param(0, 0, Outcome.EVICTED_NO_ENDPOINTS, id="a pool that was empty"),
    ],
)
def test_no_endpoint_budget(driven: Driven, before: int, after: int, outcome: Outcome) -> None:
    driven.resize(before)
    waits = driven.ask("a")
    driven.loop.advance(15)
    driven.resize(after)
    began = 15 if before else 0
    driven.loop.advance(NO_ENDPOINT_TTL)
    assert (waits.ended, waits.ended_at) == ([outcome], began + NO_ENDPOINT_TTL)


def test_scale_from_zero_outlives_the_saturation_budget(driven: Driven) -> None:
    driven.use(driven.settings(driven.band(ttl_seconds=2.0), no_endpoint_ttl_seconds=300.0))
    driven.resize(0)
    waits = driven.ask("a")
    driven.loop.advance(200)
    driven.resize(1)
    driven.loop.advance(1.5)
    assert waits.ended == []
    assert free(driven, 1) == ["a"]


# --- and the herd -------------------------------------------------------------------------------


class Scheduled(DrivenCandidate):
    """Chooses with the real scheduler."""

    epp: Epp

    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        scheduler = self.epp.director.pipeline.scheduler
        return scheduler.schedule(self.request, endpoints, CycleState(), preference)


@pytest.mark.parametrize("plugins", [(), (OnNodes(),)], ids=["policies", "session plugins"])
@pytest.mark.parametrize("endpoints", [7, 10])
def test_capacity_that_frees_at_once_is_taken_in_one_session_and_evenly(
    driven: Driven, endpoints: int, plugins: tuple[SessionPlugin, ...]
) -> None:
    driven.use(driven.settings(plugins=plugins))
    driven.resize(endpoints)
    epp = Epp(list(driven.pool))
    waiting = []
    for number in range(500):
        about = driven.candidate(str(number), f"flow-{number % 9}")
        candidate = Scheduled(driven.world, about.request, 0.0)
        candidate.epp = epp
        driven.come(candidate)
        waiting.append(candidate)
    driven.loop.settle()
    sessions = driven.observer.sessions
    free(driven, 50)
    assert driven.observer.sessions == sessions + 1
    assert driven.world.dispatched == [str(number) for number in range(50)]
    loads = [endpoint.load.in_flight for endpoint in driven.pool]
    assert sum(loads) == 50
    assert max(loads) - min(loads) <= 1
    assert driven.controller.waiting == 450

"""When a streamed request is hedged, and how often."""

import json

import pytest

from epp.request_control import EndCause, RoutedRequest
from epp.request_control.hedging import Hedge, Hedging
from tools.harness.request_control import Clock, Epp, make_pool

STREAMED = json.dumps({"model": "m", "prompt": "p", "stream": True}).encode()


class World:
    """A gateway whose requests all have prompts of the same length."""

    def __init__(self, budget: float = 0.02) -> None:
        self.now = 0.0
        self.hedges: list[bool] = []
        self.hedging = Hedging(budget, self.hedges.append)

    def send(self, body_bytes: int = 1000, others: int = 2) -> Hedge:
        return self.hedging.begin(body_bytes, self.now, others)

    def serve(self, seconds: float, times: int = 1, body_bytes: int = 1000) -> list[float | None]:
        """Serve requests one after the other; return their delays."""
        delays = []
        for _ in range(times):
            hedge = self.send(body_bytes)
            self.now += seconds
            hedge.end(self.now, has_succeeded=True)
            delays.append(hedge.delay_seconds)
        return delays

    def learn(self, body_bytes: int = 1000) -> None:
        """Learn from 100 requests, of which two take 1 s and the others 0.1 s."""
        for _ in range(2):
            self.serve(0.1, 49, body_bytes)
            self.serve(1.0, 1, body_bytes)


def test_a_request_is_late_when_it_is_slower_than_nearly_all_of_its_length() -> None:
    world = World(budget=0.05)
    assert world.serve(0.1, 60) == [None] * 60
    world.learn()
    assert world.send().delay_seconds == pytest.approx(0.1)
    assert world.send(body_bytes=100_000).delay_seconds is None
    world.serve(2.0, 100, body_bytes=100_000)
    assert world.send(body_bytes=100_000).delay_seconds == pytest.approx(2.0)


def test_the_share_that_is_never_late_is_what_the_budget_leaves() -> None:
    world = World(budget=0.01)
    world.learn()
    assert world.send().delay_seconds == pytest.approx(1.0)  # 98 % are faster, not 99 %


def test_very_fast_servers_leave_no_time_to_hedge() -> None:
    world = World(budget=0.05)
    world.serve(0.001, 100)
    assert world.send().delay_seconds == 0.01


def test_with_one_endpoint_there_is_no_hedge() -> None:
    world = World()
    world.learn()
    assert world.send(others=0).delay_seconds is None


def test_refused_requests_teach_nothing() -> None:
    world = World()
    for _ in range(200):
        hedge = world.send()
        hedge.end(world.now, has_succeeded=False)
    assert world.send().delay_seconds is None


def test_second_tries_stay_within_the_budget_when_every_response_is_late() -> None:
    world = World(budget=0.02)
    world.learn()
    sent, tries = 0, 0
    for _ in range(50):
        hedges = [world.send() for _ in range(100)]  # all at the same time
        sent += len(hedges)
        world.now += 60.0
        for hedge in hedges:
            tries += hedge.tries(world.now)
            hedge.end(world.now, has_succeeded=False)
    assert 0 < tries <= 0.02 * sent + 2 * 10


def test_requests_in_time_cost_no_budget() -> None:
    world = World(budget=0.02)
    world.learn()
    world.hedges.clear()
    assert None not in world.serve(0.05, 100)
    assert world.hedges == []


def test_each_further_endpoint_is_counted_once() -> None:
    world = World()
    world.learn()
    hedge = world.send(others=2)
    assert hedge.delay_seconds is not None
    tries = [hedge.tries(world.now + hedge.delay_seconds * n) for n in (0.9, 1.1, 2.1, 9.0)]
    assert tries == [0, 1, 2, 2]


@pytest.fixture
def epp() -> Epp:
    """A picker that has served 100 streamed requests in 0.1 s each."""
    epp = Epp(make_pool(), clock=Clock(), hedging_budget=0.05)
    for _ in range(100):
        routed = epp.handle(STREAMED)
        routed.hedge_seconds(1)
        epp.clock.now += 0.1
        routed.response_started(200)
        routed.close(EndCause.COMPLETED)
    return epp


def late(epp: Epp) -> RoutedRequest:
    """Return a request that the gateway has sent to a second endpoint by now."""
    routed = epp.handle(STREAMED)
    assert routed.hedge_seconds(1) == pytest.approx(0.1)
    epp.clock.now += 0.15
    return routed


def hedges(epp: Epp) -> dict[str, float]:
    name = "llm_d_epp_request_hedges_total"
    values = {
        result: epp.metrics.registry.get_sample_value(name, {"result": result})
        for result in ("won", "lost")
    }
    return {result: value for result, value in values.items() if value}


def test_the_second_endpoint_may_win(epp: Epp) -> None:
    routed = late(epp)
    slow = routed.endpoint
    (fast,) = (each for each in epp.endpoints if each is not slow)
    routed.served_by(fast.address)
    assert (slow.load.in_flight, fast.load.in_flight) == (0, 1)
    routed.response_started(200)
    routed.close(EndCause.COMPLETED)
    assert hedges(epp) == {"won": 1}
    assert (slow.load.in_flight, fast.load.in_flight) == (0, 0)


@pytest.mark.parametrize("status", [200, None], ids=["it responds", "the client leaves"])
def test_the_first_endpoint_may_win(epp: Epp, status: int | None) -> None:
    routed = late(epp)
    if status is not None:
        routed.response_started(status)
    routed.close(EndCause.CLIENT_DISCONNECT)
    assert hedges(epp) == {"lost": 1}


def test_without_a_budget_nothing_is_hedged() -> None:
    routed = Epp(make_pool()).handle(STREAMED)
    assert routed.hedge_seconds(1) is None
    assert routed.hedge is None

"""Routed requests that flow control may evict before their response begins."""

import asyncio

import pytest
from flow_control.evicting import Pool

from epp.request_control import EndCause, RoutedRequest
from tools.harness.request_control import Epp, NotingPlugin, Policies

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

BATCH = {"x-llm-d-inference-objective": "batch"}


class Flow:
    """A director with a pool of one slot and evictions."""

    def __init__(self, *, is_on: bool = True) -> None:
        self.pool = Pool(slots=1, is_on=is_on)
        self.noting = NotingPlugin("noting", [])
        self.epp = Epp(
            [self.pool.endpoint],
            plugins=[self.noting],
            policies=Policies(priorities={"batch": -1}),
            flow=self.pool.flow,
        )
        self.revoked: list[str] = []

    def send(self, name: str) -> RoutedRequest:
        """Send a sheddable request while the slot is free."""
        return self.opened(name, self.epp.handle(headers=BATCH, request_id=name))

    def opened(self, name: str, routed: RoutedRequest) -> RoutedRequest:
        """Attach a stream to ``routed`` that ends as soon as it is evicted."""

        def end() -> None:
            self.revoked.append(name)
            routed.close(EndCause.EVICTED)

        routed.on_revoked = end
        return routed


async def test_one_that_went_straight_makes_room_and_gives_all_back() -> None:
    flow = Flow()
    flow.send("batch")
    critical = flow.epp.ask(request_id="critical")
    await asyncio.sleep(0.1)
    assert flow.revoked == ["batch"]
    assert [cause for _, cause in flow.noting.ends] == [EndCause.EVICTED]
    assert not isinstance(critical, RoutedRequest)
    assert isinstance(critical.outcome, RoutedRequest)
    assert (flow.epp.in_flight, flow.epp.director.in_flight) == (1, 1)
    critical.outcome.close(EndCause.ENDED)
    assert (flow.epp.in_flight, flow.epp.director.in_flight) == (0, 0)


async def test_one_that_has_waited_makes_room_too() -> None:
    flow = Flow()
    first = flow.epp.handle(request_id="first")
    batch = flow.epp.ask(headers=BATCH, request_id="batch")
    assert not isinstance(batch, RoutedRequest)
    first.close(EndCause.ENDED)
    await asyncio.sleep(0.1)
    assert isinstance(batch.outcome, RoutedRequest)
    flow.opened("batch", batch.outcome)
    flow.epp.ask(request_id="critical")
    await asyncio.sleep(0.1)
    assert flow.revoked == ["batch"]


async def test_a_response_that_has_begun_is_left_alone() -> None:
    flow = Flow()
    flow.send("batch").response_started(200)
    flow.epp.ask(request_id="critical")
    await asyncio.sleep(1)
    assert flow.revoked == []
    assert flow.pool.flow.waiting == 1
    assert flow.pool.value("revocations_issued_total", priority="-1") == 0


@pytest.mark.parametrize(
    ("headers", "is_on"),
    [
        pytest.param({}, True, id="one that is not sheddable"),
        pytest.param(BATCH, False, id="nobody while it is off"),
    ],
)
async def test_only_what_may_be_evicted_is_kept(headers: dict[str, str], is_on: bool) -> None:
    assert Flow(is_on=is_on).epp.handle(headers=headers).in_flight is None


async def test_one_without_a_stream_is_not_notified() -> None:
    flow = Flow()
    routed = flow.epp.handle(headers=BATCH)
    routed.revoke()
    assert flow.epp.in_flight == 1
    routed.close(EndCause.ENDED)
    assert flow.epp.in_flight == 0

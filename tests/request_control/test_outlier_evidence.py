"""Which ends of requests count against the endpoint that served them."""

import json
from collections.abc import Sequence
from random import Random
from typing import ClassVar

import pytest

from epp.outlier_detection import HealthState, OutlierDetector, OutlierSettings
from epp.request_control import AllFilteredError, EndCause, NoServerRespondsError, ResponseSource
from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest
from tools.harness.request_control import Clock, Epp, make_pool

STREAMED = json.dumps({"model": "m", "prompt": "p", "stream": True}).encode()
WHOLE = json.dumps({"model": "m", "prompt": "p"}).encode()


def watched() -> tuple[Epp, OutlierDetector, Clock]:
    endpoints, clock = make_pool(), Clock()
    outliers = OutlierDetector(
        lambda: endpoints,
        settings=OutlierSettings(),
        clock=clock,
        rng=Random(0),
        waiting=lambda: (),
    )
    for endpoint in endpoints:
        outliers.endpoint_added(endpoint)
    return Epp(endpoints, clock=clock, outliers=outliers), outliers, clock


@pytest.mark.parametrize(
    ("body", "status", "seconds", "cause", "counted"),
    [
        pytest.param(STREAMED, 200, 1.0, EndCause.ENDED, (1, 0), id="a stream"),
        pytest.param(STREAMED, 200, 0.001, EndCause.ENDED, (1, 1), id="a stream cut off"),
        pytest.param(STREAMED, 200, 0.001, EndCause.COMPLETED, (1, 0), id="its end was seen"),
        pytest.param(WHOLE, 200, 0.001, EndCause.ENDED, (1, 0), id="not streamed"),
        pytest.param(WHOLE, 500, 0.001, EndCause.ENDED, (1, 1), id="an error"),
        pytest.param(WHOLE, 404, 0.001, EndCause.ENDED, (1, 0), id="the client's error"),
        pytest.param(WHOLE, 200, 1.0, EndCause.CLIENT_DISCONNECT, (1, 1), id="the client left"),
        pytest.param(WHOLE, None, 1.0, EndCause.CLIENT_DISCONNECT, (1, 1), id="without a response"),
        pytest.param(WHOLE, None, 1.0, EndCause.EVICTED, (0, 0), id="evicted here"),
        pytest.param(STREAMED, 200, 0.001, EndCause.DRAINED, (0, 0), id="stopped here"),
    ],
)
def test_an_end_counts_against_the_server_if_it_says_something_about_it(
    body: bytes, status: int | None, seconds: float, cause: EndCause, counted: tuple[int, int]
) -> None:
    epp, outliers, clock = watched()
    routed = epp.handle(body)
    if status is not None:
        routed.response_started(status)
    clock.now += seconds
    routed.close(cause)
    health = outliers.health_of(routed.endpoint)
    assert health is not None
    assert (health.ended, health.broken) == counted
    assert routed.endpoint.responses[0 if status is None else status // 100] == 1


def test_a_response_that_the_gateway_made_for_its_own_reasons_blames_no_server() -> None:
    epp, outliers, _ = watched()
    for routed in [epp.handle(WHOLE) for _ in range(5)]:
        routed.response_source = ResponseSource.GATEWAY
        routed.response_started(503)
        routed.close(EndCause.COMPLETED)
        health = outliers.health_of(routed.endpoint)
        assert health is not None
        assert (health.state, health.ended) == (HealthState.HEALTHY, 0)


def test_a_response_that_the_gateway_made_for_the_server_blames_it() -> None:
    epp, outliers, _ = watched()
    routed = epp.handle(WHOLE)
    routed.response_source = ResponseSource.GATEWAY_FOR_SERVER
    routed.response_started(503)
    health = outliers.health_of(routed.endpoint)
    assert health is not None
    assert health.reason == "failed response with 503 from the gateway"
    assert routed.unserved() is None  # others work


def test_while_no_server_responds_the_gateways_response_is_replaced() -> None:
    epp, outliers, _ = watched()
    for endpoint, _ in outliers:
        for _ in range(3):
            outliers.responded(endpoint, 502)
    assert outliers.is_panicking
    routed = epp.handle(WHOLE)
    routed.response_started(503)
    assert routed.unserved() is None  # perhaps the server's own
    routed.response_source = ResponseSource.GATEWAY_FOR_SERVER
    error = routed.unserved()
    assert isinstance(error, NoServerRespondsError)
    assert str(error) == (
        "no model server responds: all 2 endpoints are ejected"
        " (3 failed responses in a row, the last with 502)"
    )
    routed.close(EndCause.ERROR)
    assert routed.unserved() is None


class Picky(Filter):
    """Keeps one endpoint, or holds requests for another one."""

    type: ClassVar[str] = "picky"
    name = "picky"

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds  # type: ignore[misc] # per instance

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return [endpoint for endpoint in endpoints if endpoint.name == "default/b"]


def test_an_ejected_endpoint_gets_a_request_that_suits_no_other_but_none_that_is_held() -> None:
    healthy, ejected = make_pool()
    epp = Epp([healthy], ejected=[ejected], filters=[Picky(holds=False)])
    assert epp.handle(WHOLE).endpoint is ejected
    epp = Epp([healthy], ejected=[ejected], filters=[Picky(holds=True)])
    with pytest.raises(AllFilteredError):
        epp.handle(WHOLE)


@pytest.mark.parametrize("status", [200, 503, None], ids=["served", "failed", "no response"])
def test_streamed_requests_are_awaited_until_their_response_begins(status: int | None) -> None:
    epp, _, _ = watched()
    routed, whole = epp.handle(STREAMED), epp.handle(WHOLE)
    endpoint = routed.endpoint
    assert sum(each.awaited for each in epp.endpoints) == 1
    if status is not None:
        routed.response_started(status)
        assert endpoint.awaited == 0
    assert endpoint.heads == (status == 200)
    routed.close(EndCause.CLIENT_DISCONNECT)
    whole.close(EndCause.CLIENT_DISCONNECT)
    assert [each.awaited for each in epp.endpoints] == [0] * len(epp.endpoints)


def test_a_request_is_awaited_where_the_gateway_sent_it() -> None:
    epp, _, _ = watched()
    routed = epp.handle(STREAMED)
    first = routed.endpoint
    (other,) = (each for each in epp.endpoints if each is not first)
    routed.served_by(other.address)
    assert (first.awaited, other.awaited) == (0, 1)
    routed.close(EndCause.COMPLETED)
    assert (first.awaited, other.awaited) == (0, 0)

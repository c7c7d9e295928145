"""Which ends of requests count against the endpoint that served them."""

import json
from random import Random

import pytest

from epp.outlier_detection import OutlierDetector, OutlierSettings
from epp.request_control import EndCause
from tools.harness.request_control import Clock, Epp, make_pool

STREAMED = json.dumps({"model": "m", "prompt": "p", "stream": True}).encode()
WHOLE = json.dumps({"model": "m", "prompt": "p"}).encode()


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
        pytest.param(WHOLE, None, 1.0, EndCause.CLIENT_DISCONNECT, (1, 1), id="without an answer"),
        pytest.param(WHOLE, None, 1.0, EndCause.EVICTED, (0, 0), id="evicted here"),
        pytest.param(STREAMED, 200, 0.001, EndCause.DRAINED, (0, 0), id="stopped here"),
    ],
)
def test_an_end_counts_against_the_server_if_it_says_something_about_it(
    body: bytes, status: int | None, seconds: float, cause: EndCause, counted: tuple[int, int]
) -> None:
    endpoints, clock = make_pool(), Clock()
    outliers = OutlierDetector(
        lambda: endpoints,
        settings=OutlierSettings(),
        clock=clock,
        rng=Random(0),
        scrape_interval=lambda *_: 0.05,
    )
    for endpoint in endpoints:
        outliers.endpoint_added(endpoint)
    routed = Epp(endpoints, clock=clock, outliers=outliers).handle(body)
    if status is not None:
        routed.response_started(status)
    clock.now += seconds
    routed.close(cause)
    health = outliers.health_of(routed.endpoint)
    assert health is not None
    assert (health.ended, health.broken) == counted
    assert routed.endpoint.responses[0 if status is None else status // 100] == 1

"""Requests that flow control evicts."""

import json
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from epp.request_control import EndCause
from tools.harness.ext_proc import FULL_DUPLEX, LEAN, Envoy, Modes, error_headers
from tools.harness.request_control import Epp, NotingPlugin, make_pool
from tools.harness.wires import Wire

pytestmark = pytest.mark.usefixtures("wire")


def evict(wire: Wire, envoy: Envoy) -> None:
    """Evict the stream's request."""
    wire.call(envoy.stream.evict)


@pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX], ids=["lean", "full duplex"])
def test_an_eviction_before_the_response_is_answered_and_released_once(
    wire: Wire, modes: Modes
) -> None:
    noting = NotingPlugin("noting", [])
    epp = Epp(make_pool(), plugins=[noting])
    envoy = Envoy(epp, modes)
    envoy.post()
    envoy.take()
    assert epp.in_flight == 1
    with capture_logs() as lines:
        evict(wire, envoy)
        evict(wire, envoy)
    (reply,) = envoy.replies
    error = reply.immediate_response
    headers = error_headers(error)
    assert (error.status.code, headers["x-llm-d-request-dropped-reason"]) == (429, "evicted")
    assert json.loads(error.body)["error"]["message"] == "request evicted by flow control"
    assert envoy.finished == [(0, "")]
    assert [(line["event"], line["outcome"]) for line in lines] == [("request finished", "evicted")]
    assert [cause for _, cause in noting.ends] == [EndCause.EVICTED]
    assert epp.in_flight == epp.director.in_flight == 0
    envoy.reset()
    assert [cause for _, cause in noting.ends] == [EndCause.EVICTED]


def half_a_body(envoy: Envoy) -> None:
    envoy.request_headers()
    envoy.request_body(b"{", end=False)


def begun(envoy: Envoy) -> None:
    envoy.post()
    envoy.response_headers()


def ended(envoy: Envoy) -> None:
    begun(envoy)
    envoy.response_trailers()


@pytest.mark.parametrize(
    "until",
    [
        pytest.param(half_a_body, id="not yet decided"),
        pytest.param(begun, id="its response has begun"),
        pytest.param(ended, id="over"),
    ],
)
def test_an_eviction_in_another_state_does_nothing(
    wire: Wire, until: Callable[[Envoy], None]
) -> None:
    noting = NotingPlugin("noting", [])
    envoy = Envoy(Epp(make_pool(), plugins=[noting]), LEAN)
    until(envoy)
    envoy.take()
    before = envoy.finished, list(noting.ends)
    evict(wire, envoy)
    assert envoy.replies == []
    assert (envoy.finished, noting.ends) == before

"""Every end of a stream releases its reservation exactly once."""

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from epp.ext_proc import ExtProcSettings, ExtProcState, ExtProcStream
from epp.ext_proc.held_bytes import HeldBytes
from epp.request_control import EndCause, Refusals
from tools.harness.ext_proc import (
    ADAPTIVE,
    BUFFERED,
    FULL_DUPLEX,
    LEAN,
    Envoy,
    Modes,
    error_headers,
    on_no_transport,
)
from tools.harness.request_control import Epp, NotingPlugin, make_pool
from tools.harness.wires import Recorder

pytestmark = pytest.mark.usefixtures("wire")


def completed(envoy: Envoy) -> None:
    envoy.response_headers()
    envoy.response_trailers()


def completed_without_a_body(envoy: Envoy) -> None:
    envoy.response_headers("204", end=True)


def completed_by_the_last_chunk(envoy: Envoy) -> None:
    envoy.response_headers()
    envoy.response_body(end=True)


def within_the_response(end: Callable[[Envoy], None]) -> Callable[[Envoy], None]:
    """Return a step that begins the response before ``end``."""

    def step(envoy: Envoy) -> None:
        envoy.response_headers()
        end(envoy)

    return step


@pytest.mark.parametrize(
    ("modes", "end", "cause"),
    [
        (LEAN, completed, EndCause.COMPLETED),
        (BUFFERED, completed, EndCause.COMPLETED),
        (LEAN, completed_without_a_body, EndCause.COMPLETED),
        (FULL_DUPLEX, completed_by_the_last_chunk, EndCause.COMPLETED),
        (ADAPTIVE, completed_by_the_last_chunk, EndCause.COMPLETED),
        (LEAN, Envoy.reset, EndCause.CLIENT_DISCONNECT),
        (LEAN, within_the_response(Envoy.reset), EndCause.ENDED),
        (BUFFERED, within_the_response(Envoy.reset), EndCause.ENDED),
        (FULL_DUPLEX, within_the_response(Envoy.reset), EndCause.CLIENT_DISCONNECT),
        (ADAPTIVE, within_the_response(Envoy.reset), EndCause.CLIENT_DISCONNECT),
        (LEAN, Envoy.half_close, EndCause.CLIENT_DISCONNECT),
        (LEAN, within_the_response(Envoy.half_close), EndCause.ENDED),
        (LEAN, Envoy.drain, EndCause.DRAINED),
        (LEAN, within_the_response(Envoy.drain), EndCause.DRAINED),
        (FULL_DUPLEX, Envoy.request_headers, EndCause.ERROR),
        (FULL_DUPLEX, Envoy.garble, EndCause.ERROR),
    ],
)
def test_the_reservation_is_released_once(
    modes: Modes, end: Callable[[Envoy], object], cause: EndCause
) -> None:
    plugin = NotingPlugin("p", [])
    envoy = Envoy(Epp(make_pool(), plugins=[plugin]), modes)
    with capture_logs() as lines:
        envoy.post()
        assert envoy.epp.in_flight == envoy.epp.director.in_flight == 1
        assert envoy.epp.total("request_running") == 1
        end(envoy)
        # Envoy resets every stream at its end, and the transport may tell of more than that.
        envoy.reset()
        envoy.half_close()
        envoy.drain()
        envoy.close(EndCause.ERROR)
    assert envoy.epp.in_flight == envoy.epp.director.in_flight == 0
    assert envoy.epp.total("request_running") == 0
    assert plugin.ends == [("default/a", cause)]
    finished = [line for line in lines if line["event"] == "request finished"]
    assert [line["outcome"] for line in finished] == [cause.value]
    assert envoy.stream.state is ExtProcState.CLOSED
    assert not envoy.service.open_streams


@pytest.mark.parametrize("modes", [LEAN, BUFFERED])
@pytest.mark.parametrize("end", ["reset", "half_close"])
def test_an_incomplete_request_reserves_nothing(modes: Modes, end: str) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    envoy.request_headers()
    with capture_logs() as lines:
        getattr(envoy, end)()
    assert [(line["event"], line["outcome"]) for line in lines] == [
        ("request abandoned before its body was complete", "client-disconnect")
    ]
    assert envoy.epp.in_flight == 0
    assert envoy.epp.total("request_total") == 0
    assert not envoy.service.open_streams


def test_a_stream_without_messages_ends_without_a_log_line() -> None:
    envoy = Envoy(Epp(make_pool()))
    with capture_logs() as lines:
        envoy.reset()
    assert lines == []
    assert not envoy.service.open_streams


def test_draining_refuses_an_incomplete_request() -> None:
    envoy = Envoy(Epp(make_pool()), FULL_DUPLEX)
    envoy.request_headers()
    envoy.request_body(b"{", end=False)
    envoy.drain()
    (reply,) = envoy.take()
    assert reply.immediate_response.status.code == 503
    headers = error_headers(reply.immediate_response)
    assert headers["x-llm-d-request-dropped-reason"] == "rejected-shutting-down"
    assert envoy.finished == [(0, "")]


def test_draining_refuses_a_request_without_headers() -> None:
    # Left alone, Envoy would send it on without a destination.
    envoy = Envoy(Epp(make_pool()))
    envoy.drain()
    (reply,) = envoy.take()
    assert reply.immediate_response.status.code == 503
    assert envoy.finished == [(0, "")]
    assert not envoy.service.open_streams


def test_draining_lets_a_response_that_has_begun_pass() -> None:
    envoy = Envoy(Epp(make_pool()), FULL_DUPLEX)
    envoy.post()
    envoy.response_headers()
    envoy.take()
    envoy.drain()
    assert envoy.kinds == []
    assert envoy.finished == [(0, "")]


def test_the_reservation_moves_to_the_endpoint_that_served() -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp)
    envoy.post()
    envoy.response_headers(served="10.0.0.2:8000")
    assert [e.load.in_flight for e in epp.endpoints] == [0, 1]
    with capture_logs() as lines:
        envoy.response_trailers()
    assert epp.in_flight == 0
    assert lines[0]["endpoint"] == "default/b"


def test_the_status_and_the_times_are_logged() -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp)
    envoy.request_headers()
    epp.clock.now += 0.25
    envoy.request_body()
    epp.clock.now += 1
    envoy.response_headers("503")
    epp.clock.now += 1
    with capture_logs() as lines:
        envoy.response_trailers()
    assert lines[0]["status"] == 503
    assert lines[0]["decision_seconds"] == 0.25
    assert lines[0]["duration_seconds"] == 2.25


@on_no_transport  # the service is the test's own
def test_the_service_forgets_a_stream_once() -> None:
    epp = Epp(make_pool())
    forgotten: list[object] = []
    stream = ExtProcStream(
        Recorder(),
        epp.director,
        epp.clock,
        forgotten.append,
        settings=ExtProcSettings(),
        refusals=Refusals(epp.metrics, epp.clock),
        held=HeldBytes(1 << 20, list, epp.clock),
    )
    stream.reset()
    stream.half_closed()
    stream.close(EndCause.ERROR)
    assert forgotten == [stream]

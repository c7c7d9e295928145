"""Limits on the time that streams are idle or open."""

import asyncio
from collections.abc import Callable
from unittest.mock import create_autospec

import pytest
from structlog.testing import capture_logs

from epp.ext_proc import ExtProcSettings, ExtProcStream
from epp.ext_proc.time_limits import TimeLimits
from epp.request_control import EndCause
from tools.harness.ext_proc import FULL_DUPLEX, LEAN, Envoy, Modes, on_no_transport
from tools.harness.held import PatientEnvoy
from tools.harness.request_control import Epp, NotingPlugin, make_pool
from tools.harness.wires import Wire

pytestmark = pytest.mark.usefixtures("wire")

IDLE = ExtProcSettings(stream_idle_timeout_seconds=10)
OPEN = ExtProcSettings(max_stream_seconds=10)
NAMES = {IDLE: "stream-idle", OPEN: "stream-time"}

both_limits = pytest.mark.parametrize(
    "settings", [pytest.param(IDLE, id="silent"), pytest.param(OPEN, id="open")]
)


def sweep(wire: Wire, envoy: Envoy) -> None:
    """Sweep the service's streams."""
    limits = envoy.service.time_limits
    assert limits is not None
    wire.call(limits.sweep)


def met(epp: Epp, settings: ExtProcSettings) -> float:
    """Return how many streams have met the limit."""
    name = "llm_d_epp_request_limit_exceeded_total"
    return epp.metrics.registry.get_sample_value(name, {"limit": NAMES[settings]}) or 0


def begun(envoy: Envoy) -> None:
    envoy.request_headers()


def half_a_body(envoy: Envoy) -> None:
    envoy.request_headers()
    envoy.request_body(b'{"model"', end=False)


def routed(envoy: Envoy) -> None:
    envoy.post()


@both_limits
@pytest.mark.parametrize(
    ("until", "status", "message"),
    [
        pytest.param(begun, 408, "the request did not come in time", id="after the headers"),
        pytest.param(half_a_body, 408, "the request did not come in time", id="within the body"),
        pytest.param(routed, 504, "the request was not answered in time", id="before the response"),
    ],
)
def test_a_time_limit_before_the_response_is_answered(
    wire: Wire,
    settings: ExtProcSettings,
    until: Callable[[Envoy], None],
    status: int,
    message: str,
) -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, settings=settings)
    until(envoy)
    envoy.take()
    epp.clock.now += 9.9
    sweep(wire, envoy)
    assert envoy.replies == []
    epp.clock.now += 0.1
    sweep(wire, envoy)
    (reply,) = envoy.replies
    assert reply.immediate_response.status.code == status
    assert message in reply.immediate_response.body.decode()
    assert envoy.finished == [(0, "")]
    assert not envoy.service.open_streams
    assert epp.in_flight == 0
    assert met(epp, settings) == 1
    sweep(wire, envoy)
    assert met(epp, settings) == 1


def test_a_time_limit_cancels_a_pending_decision(wire: Wire) -> None:
    epp = Epp(make_pool())
    envoy = PatientEnvoy(epp, settings=OPEN)
    envoy.post()
    envoy.take()
    epp.clock.now += 10
    sweep(wire, envoy)
    assert [a.immediate_response.status.code for a in envoy.replies] == [504]
    assert envoy.held.cancelled == [EndCause.TIMED_OUT]
    assert met(epp, OPEN) == 1


@both_limits
def test_a_response_that_does_not_pass_here_continues(
    wire: Wire, settings: ExtProcSettings
) -> None:
    noting = NotingPlugin("noting", [])
    epp = Epp(make_pool(), plugins=[noting])
    envoy = Envoy(epp, LEAN, settings=settings)
    envoy.post()
    envoy.response_headers()
    envoy.take()
    epp.clock.now += 10
    with capture_logs() as lines:
        sweep(wire, envoy)
    assert envoy.replies == []
    assert envoy.finished == [(0, "")]
    assert [line["outcome"] for line in lines] == ["timed-out"]
    assert [cause for _, cause in noting.ends] == [EndCause.TIMED_OUT]
    assert epp.in_flight == 0
    assert met(epp, settings) == 1


@both_limits
def test_a_response_that_does_not_pause_is_detached_a_sweep_later(
    wire: Wire, settings: ExtProcSettings
) -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, FULL_DUPLEX, settings=settings)
    envoy.post()
    envoy.response_headers()
    envoy.response_body(b"one")
    epp.clock.now += 10
    sweep(wire, envoy)
    (reply,) = envoy.response_body(b"two")
    assert reply.response_body.response.body_mutation.streamed_response.body == b"two"
    assert envoy.finished == []
    sweep(wire, envoy)
    assert envoy.finished == [(0, "")]
    sweep(wire, envoy)
    assert epp.in_flight == 0
    assert met(epp, settings) == 1


@on_no_transport
@pytest.mark.looptime
async def test_a_response_is_detached_in_a_pause(wire: Wire) -> None:
    """Envoy keeps no copy of a chunk in flight when its stream ends."""
    epp = Epp(make_pool())
    envoy = Envoy(epp, FULL_DUPLEX, settings=OPEN)
    limits = envoy.service.time_limits
    assert limits is not None
    envoy.post()
    envoy.response_headers()
    epp.clock.now += 10
    sweeping = asyncio.create_task(limits.run())
    await asyncio.sleep(1.5)  # half a second after the sweep, on the loop's virtual clock
    assert envoy.finished == []
    for chunk in (b"one", b"two"):
        (reply,) = envoy.response_body(chunk)
        assert reply.response_body.response.body_mutation.streamed_response.body == chunk
    assert envoy.finished == []
    await asyncio.sleep(0.1)
    assert envoy.finished == [(0, "")]
    assert epp.in_flight == 0
    sweeping.cancel()


@pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX], ids=["lean", "full duplex"])
def test_messages_restart_the_idle_limit(wire: Wire, modes: Modes) -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, modes, settings=IDLE)
    other = Envoy(epp, modes, service=envoy.service)
    other.request_headers()
    steps: list[Callable[[], object]] = [
        envoy.request_headers,
        lambda: envoy.request_body(end=False),
        lambda: envoy.request_body(b"", end=True),
        envoy.response_headers,
    ]
    for step in steps:
        step()
        epp.clock.now += 6
        sweep(wire, envoy)
    assert envoy.finished == []
    envoy.response_trailers()
    assert epp.in_flight == 0
    assert other.finished == [(0, "")]
    assert met(epp, IDLE) == 1


@on_no_transport  # grpc.aio has no stream before its first message
def test_a_stream_without_messages_is_ended(wire: Wire) -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, settings=IDLE)
    epp.clock.now += 10
    with capture_logs() as lines:
        sweep(wire, envoy)
    assert [reply.immediate_response.status.code for reply in envoy.replies] == [408]
    assert envoy.finished == [(0, "")]
    assert [(line["event"], line["duration_seconds"]) for line in lines] == [
        ("request refused", 0.0)
    ]


def test_a_fault_at_the_end_of_one_stream_does_not_affect_the_sweep(wire: Wire) -> None:
    epp = Epp(make_pool())
    first = Envoy(epp, settings=OPEN)
    second = Envoy(epp, service=first.service)
    for envoy in (first, second):
        envoy.post()
        envoy.response_headers()

    def fail(*_: object) -> None:
        raise RuntimeError("a bug at the end")

    first.stream._on_close = fail
    epp.clock.now += 10
    with capture_logs() as lines:
        sweep(wire, first)
    assert second.finished == [(0, "")]
    assert "ending a stream failed" in [line["event"] for line in lines]
    assert epp.in_flight == 0
    first.service.open_streams.clear()


def test_without_limits_nothing_is_watched() -> None:
    envoy = Envoy(Epp(make_pool()))
    assert envoy.service.time_limits is None


@pytest.mark.looptime
@pytest.mark.asyncio
async def test_streams_are_swept_once_a_second() -> None:
    loop = asyncio.get_running_loop()
    ends: list[float] = []
    limits = TimeLimits(idle_seconds=0.0, open_seconds=2.5, clock=loop.time)
    stream = create_autospec(ExtProcStream, instance=True)
    stream.time_out.side_effect = lambda *_: ends.append(loop.time())
    stream.end_in_pause.side_effect = lambda: limits.closed(stream)
    limits.opened(stream)
    watching = asyncio.create_task(limits.run())
    await asyncio.sleep(10)
    watching.cancel()
    assert ends == [3.0]
    stream.end_in_pause.assert_called_once_with()

"""Pending decisions: the replies meanwhile and afterwards, and cancellation."""

import json
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from epp.ext_proc import ExtProcState
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import EndCause
from tools.harness.ext_proc import (
    ADAPTIVE,
    BUFFERED,
    CONTINUE_REQUEST_HEADERS,
    CONTINUE_REQUEST_TRAILERS,
    CONTINUE_RESPONSE_HEADERS,
    CONTINUE_RESPONSE_TRAILERS,
    FULL_DUPLEX,
    LEAN,
    NO_BODIES,
    A,
    Envoy,
    Modes,
    assert_routes,
    echoed,
    on_one_wire,
)
from tools.harness.held import DecidedAtOnce, HeldDecision, PatientEnvoy
from tools.harness.request_control import BODY, Epp, NotingPlugin, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]


def whole(envoy: Envoy) -> None:
    envoy.request_headers()
    envoy.request_body()


def in_chunks(envoy: Envoy) -> None:
    envoy.request_headers()
    chunks = [BODY] if envoy.modes in {BUFFERED, ADAPTIVE} else [BODY[:9], BODY[9:20], BODY[20:]]
    for chunk in chunks:
        envoy.request_body(chunk, end=False)
    envoy.request_body(b"")


def large(envoy: Envoy) -> None:
    envoy.request_headers()
    envoy.request_body(b'{"model": "llama", "prompt": "' + b"x" * 130_000 + b'"}')


def with_trailers(envoy: Envoy) -> None:
    envoy.request_headers()
    envoy.request_body(end=False)
    envoy.request_trailers()


def with_trailers_alone(envoy: Envoy) -> None:
    envoy.request_headers({":path": "/grpc", "x-request-id": "r-1"})
    envoy.request_trailers()


def without_a_body(envoy: Envoy) -> None:
    envoy.request_headers({":path": "/v1/models", "x-request-id": "r-1"}, end=True)


def with_a_repeated_end(envoy: Envoy) -> None:
    envoy.request_headers()
    envoy.request_body()
    envoy.request_body(b"")


def with_an_end_and_trailers(envoy: Envoy) -> None:
    envoy.request_headers()
    envoy.request_body()
    envoy.request_trailers()


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED, ADAPTIVE, NO_BODIES])
@pytest.mark.parametrize(
    "request_of",
    [
        whole,
        in_chunks,
        large,
        with_trailers,
        without_a_body,
        with_a_repeated_end,
        with_an_end_and_trailers,
    ],
)
def test_a_pending_decision_gives_the_same_replies_as_an_immediate_one(
    modes: Modes, request_of: Callable[[Envoy], None]
) -> None:
    straight = Envoy(Epp(make_pool()), modes)
    request_of(straight)
    envoy = PatientEnvoy(Epp(make_pool()), modes)
    request_of(envoy)
    assert envoy.held.is_awaited
    assert envoy.epp.in_flight == 0
    is_buffered = modes in {BUFFERED, ADAPTIVE} and request_of is not without_a_body
    assert envoy.all_replies == ([CONTINUE_REQUEST_HEADERS] if is_buffered else [])
    envoy.decide()
    assert envoy.all_replies == straight.all_replies
    assert envoy.stream.state is ExtProcState.RESPONSE_HEADERS
    assert envoy.epp.in_flight == 1
    assert envoy.held.cancelled == []


@pytest.mark.parametrize("modes", [FULL_DUPLEX, NO_BODIES])
def test_trailers_without_a_body_wait_for_the_decision(modes: Modes) -> None:
    envoy = PatientEnvoy(Epp(make_pool()), modes)
    with_trailers_alone(envoy)
    assert envoy.replies == []
    envoy.decide()
    headers, trailers = envoy.replies
    assert_routes(headers, "request_headers", A)
    assert trailers == CONTINUE_REQUEST_TRAILERS


def test_late_trailers_are_answered_after_a_buffered_body() -> None:
    envoy = PatientEnvoy(Epp(make_pool()), BUFFERED)
    envoy.request_headers()
    assert envoy.request_body(end=False) == []
    assert envoy.request_trailers() == []
    envoy.decide()
    body, trailers = envoy.replies
    assert_routes(body, "request_body", A)
    assert trailers == CONTINUE_REQUEST_TRAILERS


@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED, NO_BODIES])
def test_a_decision_made_at_once_is_answered_at_once(modes: Modes) -> None:
    envoy = PatientEnvoy(Epp(make_pool()), modes, kind=DecidedAtOnce)
    replies = envoy.post()
    kind = "request_body" if modes == BUFFERED else "request_headers"
    assert_routes(replies[0], kind, A)
    if modes == FULL_DUPLEX:
        assert echoed(replies[1:], "request_body") == (BODY, [True])
    assert envoy.stream.state is ExtProcState.RESPONSE_HEADERS


@pytest.mark.parametrize("kind", [HeldDecision, DecidedAtOnce])
@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED])
def test_a_refusal_after_a_pending_decision_is_answered(
    modes: Modes, kind: type[HeldDecision]
) -> None:
    envoy = PatientEnvoy(Epp([]), modes, kind=kind)
    envoy.request_headers()
    envoy.take()
    envoy.line.message(
        pb.ProcessingRequest(
            request_body=pb.HttpBody(body=BODY, end_of_stream=True)
        ).SerializeToString()
    )
    if kind is HeldDecision:
        assert envoy.replies == []
        envoy.decide()
    (reply,) = envoy.replies
    assert reply.immediate_response.status.code == 503
    assert envoy.finished == [(0, "")]
    assert not envoy.service.open_streams
    assert envoy.held.cancelled == []


def test_a_fault_after_the_decision_is_answered_and_released() -> None:
    epp = Epp(make_pool())
    epp.endpoints[0].address = "\udc80"  # cannot be put into a reply
    envoy = PatientEnvoy(epp)
    envoy.post()
    with capture_logs() as lines:
        envoy.decide()
    (reply,) = envoy.replies
    assert reply.immediate_response.status.code == 500
    assert [(e["event"], e["request_id"]) for e in lines if e["log_level"] == "error"] == [
        ("ext_proc stream failed", "r-1")
    ]
    assert epp.in_flight == epp.director.in_flight == 0
    assert not envoy.service.open_streams


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (Envoy.reset, EndCause.CLIENT_DISCONNECT),
        (Envoy.half_close, EndCause.CLIENT_DISCONNECT),
        (Envoy.garble, EndCause.ERROR),
        (Envoy.drain, EndCause.DRAINED),
        (Envoy.request_headers, EndCause.ERROR),
        (Envoy.response_body, EndCause.ERROR),
        (Envoy.response_trailers, EndCause.ERROR),
    ],
)
@pytest.mark.parametrize(
    ("modes", "request_of"),
    [
        pytest.param(FULL_DUPLEX, whole, id="full duplex"),
        pytest.param(FULL_DUPLEX, with_trailers, id="full duplex with trailers"),
        pytest.param(LEAN, in_chunks, id="lean"),
        pytest.param(BUFFERED, whole, id="buffered"),
        pytest.param(BUFFERED, with_trailers, id="buffered with trailers"),
        pytest.param(NO_BODIES, without_a_body, id="no body"),
    ],
)
def test_a_stream_that_ends_cancels_its_pending_decision_once(
    modes: Modes,
    request_of: Callable[[Envoy], None],
    end: Callable[[Envoy], object],
    cause: EndCause,
) -> None:
    plugin = NotingPlugin("p", [])
    envoy = PatientEnvoy(Epp(make_pool(), plugins=[plugin]), modes)
    request_of(envoy)
    end(envoy)
    # Envoy resets every stream at its end, and the transport may tell of more than that.
    envoy.reset()
    envoy.drain()
    envoy.close(EndCause.ERROR)
    assert envoy.held.cancelled == [cause]
    assert envoy.epp.in_flight == envoy.epp.director.in_flight == 0
    assert plugin.ends == []
    assert envoy.stream.state is ExtProcState.CLOSED
    assert not envoy.service.open_streams
    assert envoy.line.recorder.sent_after_finish == 0


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED])
def test_draining_refuses_a_request_that_is_not_decided(modes: Modes) -> None:
    envoy = PatientEnvoy(Epp(make_pool()), modes)
    envoy.post()
    envoy.drain()
    (reply,) = envoy.replies
    assert reply.immediate_response.status.code == 503
    error = json.loads(reply.immediate_response.body)["error"]
    assert error["message"] == "the endpoint picker stopped before the request was decided"
    assert envoy.finished == [(0, "")]


def test_a_message_out_of_order_during_the_decision_is_refused() -> None:
    envoy = PatientEnvoy(Epp(make_pool()))
    envoy.post()
    (reply,) = envoy.request_headers()
    error = json.loads(reply.immediate_response.body)["error"]
    assert error["message"] == "Envoy sent request_headers in state DECIDING"


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED, NO_BODIES])
def test_a_response_of_envoys_own_cancels_the_pending_decision(modes: Modes) -> None:
    envoy = PatientEnvoy(Epp(make_pool()), modes)
    envoy.post()
    assert envoy.response_headers("504") == [CONTINUE_RESPONSE_HEADERS]
    assert envoy.held.cancelled == [EndCause.ERROR]
    assert envoy.response_trailers() == [CONTINUE_RESPONSE_TRAILERS]
    assert envoy.held.cancelled == [EndCause.ERROR]
    assert not envoy.service.open_streams
    assert envoy.epp.in_flight == 0


def test_a_decided_request_ends_like_any_other() -> None:
    plugin = NotingPlugin("p", [])
    envoy = PatientEnvoy(Epp(make_pool(), plugins=[plugin]))
    envoy.post()
    envoy.decide()
    envoy.response_headers()
    envoy.response_trailers()
    assert plugin.ends == [("default/a", EndCause.COMPLETED)]
    assert envoy.held.cancelled == []
    assert envoy.epp.in_flight == 0


def test_trailers_repeated_during_the_decision_are_answered_once() -> None:
    envoy = PatientEnvoy(Epp(make_pool()), BUFFERED)
    whole(envoy)
    for _ in range(3):
        assert envoy.request_trailers() == []
    envoy.decide()
    assert envoy.take()[1:] == [CONTINUE_REQUEST_TRAILERS]

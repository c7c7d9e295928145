"""Every pair of body modes works, or is refused at the first message with a remedy."""

import json
from itertools import product

import pytest
from structlog.testing import capture_logs

from epp.ext_proc import ExtProcSettings, ExtProcState
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.harness.ext_proc import (
    BUFFERED,
    LEAN,
    NO_BODIES,
    A,
    Envoy,
    Mode,
    Modes,
    assert_routes,
    echoed,
    on_one_wire,
)
from tools.harness.request_control import BODY, Epp, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]

ALL = [*Mode.BodySendMode.values(), 17]
PASS_REQUEST_BODY = pb.ProcessingResponse(request_body=pb.BodyResponse())
PASS_RESPONSE_BODY = pb.ProcessingResponse(response_body=pb.BodyResponse())
HELD = {Mode.BUFFERED, Mode.BUFFERED_PARTIAL}


class AheadEnvoy(Envoy):
    """Sends bodies without waiting for the reply to the headers."""

    sends_ahead = True


def name(mode: int) -> str:
    return Mode.BodySendMode.Name(mode) if mode != 17 else "17"


def change(modes: tuple[int, int], sends_ahead: bool) -> str:
    """Return the remedy in the refusal; "" if the pair works."""
    request, response = modes
    if request in {Mode.GRPC, 17} or (request == Mode.STREAMED and not sends_ahead):
        return f"request bodies come in mode {name(request)}"
    if response in {Mode.GRPC, 17}:
        return f"response bodies come in mode {name(response)}"
    return ""


@pytest.mark.parametrize("sends_ahead", [False, True], ids=["waits", "sends ahead"])
@pytest.mark.parametrize(
    "modes", list(product(ALL, ALL)), ids=lambda modes: "/".join(name(mode) for mode in modes)
)
def test_every_pair_works_or_is_refused_at_the_first_message(
    modes: Modes, sends_ahead: bool
) -> None:
    epp = Epp(make_pool())
    envoy = (AheadEnvoy if sends_ahead else Envoy)(epp, modes)
    with capture_logs() as lines:
        replies = envoy.request_headers()
    wrong = change(modes, sends_ahead)
    if wrong:
        (reply,) = replies
        assert reply.immediate_response.status.code == 500
        error = json.loads(reply.immediate_response.body)["error"]
        assert error["stage"] == "ext_proc"
        assert wrong in error["message"]
        logged = [line["why"] for line in lines if line["log_level"] == "error"]
        assert len(logged) == 1
        assert "; set " in logged[0]
        assert epp.total("request_error_total") == 1
        assert [line["event"] for line in lines if "outcome" in line] == ["request refused"]
        assert envoy.finished == [(0, "")]
        return
    replies += [] if modes[0] == Mode.NONE else envoy.request_body()
    assert_request_passes(replies, modes[0])
    assert envoy.response_headers() == [
        pb.ProcessingResponse(response_headers=pb.HeadersResponse())
    ]
    assert epp.in_flight == 1
    if modes[1] == Mode.NONE:
        envoy.response_trailers()
    elif modes[1] == Mode.FULL_DUPLEX_STREAMED:
        assert echoed(envoy.response_body(b"x", end=True), "response_body") == (b"x", [True])
    else:
        assert envoy.response_body(b"x", end=True) == [PASS_RESPONSE_BODY]
    assert epp.in_flight == 0
    assert epp.total("request_error_total") == 0
    assert envoy.stream.state is ExtProcState.CLOSED


def assert_request_passes(replies: list[pb.ProcessingResponse], mode: int) -> None:
    if mode in HELD:
        assert replies[0] == pb.ProcessingResponse(request_headers=pb.HeadersResponse())
        assert_routes(replies[1], "request_body", A)
        assert len(replies) == 2
        return
    assert_routes(replies[0], "request_headers", A)
    if mode == Mode.NONE:
        assert len(replies) == 1
    elif mode == Mode.STREAMED:
        assert replies[1:] == [PASS_REQUEST_BODY]
    else:
        assert echoed(replies[1:], "request_body") == (BODY, [True])


@pytest.mark.parametrize(
    "modes",
    [pair for pair in product(ALL, ALL) if not change(pair, True)],
    ids=lambda modes: "/".join(name(mode) for mode in modes),
)
def test_every_supported_pair_accepts_trailers_of_request_and_response(modes: Modes) -> None:
    epp = Epp(make_pool())
    envoy = AheadEnvoy(epp, modes)
    replies = envoy.request_headers()
    replies += [] if modes[0] == Mode.NONE else envoy.request_body(end=False)
    if modes[0] == Mode.BUFFERED_PARTIAL:  # it looks like a body that was cut off
        assert replies[-1].immediate_response.status.code == 413
        return
    *replies, trailers = replies + envoy.request_trailers()
    assert trailers == pb.ProcessingResponse(request_trailers=pb.TrailersResponse())
    if modes[0] == Mode.FULL_DUPLEX_STREAMED:
        # The end is the trailers', not the body's.
        assert_routes(replies[0], "request_headers", A)
        assert echoed(replies[1:], "request_body") == (BODY, [False])
    else:
        assert_request_passes(replies, modes[0])
    envoy.response_headers()
    if modes[1] == Mode.FULL_DUPLEX_STREAMED:
        assert echoed(envoy.response_body(b"x"), "response_body") == (b"x", [False])
    elif modes[1] != Mode.NONE:
        assert envoy.response_body(b"x") == [PASS_RESPONSE_BODY]
    assert epp.in_flight == 1
    assert envoy.response_trailers() == [
        pb.ProcessingResponse(response_trailers=pb.TrailersResponse())
    ]
    assert epp.in_flight == 0
    assert envoy.stream.state is ExtProcState.CLOSED


def test_a_streamed_body_sent_ahead_passes_chunk_by_chunk_once_complete() -> None:
    envoy = AheadEnvoy(Epp(make_pool()), (Mode.STREAMED, Mode.NONE))
    assert envoy.request_headers() == []
    assert envoy.request_body(BODY[:9], end=False) == []
    assert envoy.request_body(BODY[9:], end=False) == []
    headers, *chunks = envoy.request_body(b"")
    assert_routes(headers, "request_headers", A)
    assert chunks == [PASS_REQUEST_BODY] * 3


def test_trailers_end_a_streamed_body() -> None:
    envoy = AheadEnvoy(Epp(make_pool()), (Mode.STREAMED, Mode.NONE))
    envoy.request_headers()
    envoy.request_body(BODY, end=False)
    headers, chunk, trailers = envoy.request_trailers()
    assert_routes(headers, "request_headers", A)
    assert chunk == PASS_REQUEST_BODY
    assert trailers.WhichOneof("response") == "request_trailers"


def test_a_partial_body_that_is_cut_off_is_too_large() -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, (Mode.BUFFERED_PARTIAL, Mode.NONE))
    envoy.request_headers()
    (reply,) = envoy.request_body(BODY[:20], end=False)
    assert reply.immediate_response.status.code == 413
    assert b"per_connection_buffer_limit_bytes" in reply.immediate_response.body
    assert epp.value("request_limit_exceeded_total", limit="envoy-buffer") == 1
    assert epp.total("request_total") == epp.in_flight == 0


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        # Of a cut-off body no more comes, so the end of the stream may be the natural one.
        pytest.param(Mode.BUFFERED_PARTIAL, "ended", id="cut off"),
        pytest.param(Mode.STREAMED, "client-disconnect", id="streamed"),
    ],
)
def test_the_end_of_the_stream_after_a_part_of_the_response(
    mode: Mode.BodySendMode, outcome: str
) -> None:
    envoy = Envoy(Epp(make_pool()), (Mode.BUFFERED, mode))
    envoy.post()
    envoy.response_headers()
    assert envoy.response_body(b"x") == [PASS_RESPONSE_BODY]
    with capture_logs() as lines:
        envoy.reset()
    assert [line["outcome"] for line in lines] == [outcome]


def test_without_a_protocol_config_full_duplex_is_assumed() -> None:
    envoy = Envoy(Epp(make_pool()), None)
    assert envoy.request_headers() == []
    headers, body = envoy.request_body()
    assert_routes(headers, "request_headers", A)
    assert echoed([body], "request_body") == (BODY, [True])
    envoy.response_headers()
    assert echoed(envoy.response_body(b"x"), "response_body") == (b"x", [False])


@pytest.mark.parametrize(("chunks", "outcome"), [(0, "ended"), (1, "client-disconnect")])
def test_without_a_protocol_config_the_first_chunk_shows_that_the_body_is_sent(
    chunks: int, outcome: str
) -> None:
    envoy = Envoy(Epp(make_pool()), None)
    envoy.post()
    envoy.response_headers()
    for _ in range(chunks):
        envoy.response_body(b"x")
    with capture_logs() as lines:
        envoy.reset()
    assert [line["outcome"] for line in lines] == [outcome]


def test_a_stop_before_the_decision_is_counted() -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp)
    envoy.request_headers()
    envoy.drain()
    (reply,) = envoy.replies
    assert reply.immediate_response.status.code == 503
    assert epp.total("request_error_total") == 1


@pytest.mark.parametrize("modes", [LEAN, BUFFERED])
@pytest.mark.parametrize(
    ("length", "status"),
    [("1000", None), ("1001", 413), ("9" * 5000, 413), ("-1", None), ("x", None)],
)
def test_a_content_length_above_the_limit_is_refused_at_the_headers(
    modes: Modes, length: str, status: int | None
) -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, modes, settings=ExtProcSettings(max_body_bytes=1000))
    headers = {":path": "/v1/completions", "content-length": length}
    refused = [
        reply.immediate_response.status.code
        for reply in envoy.request_headers(headers)
        if reply.HasField("immediate_response")
    ]
    assert refused == ([status] if status else [])
    assert epp.value("request_limit_exceeded_total", limit="body-bytes") == len(refused)


def test_a_body_that_is_not_sent_here_has_no_size_limit() -> None:
    envoy = Envoy(Epp(make_pool()), NO_BODIES, settings=ExtProcSettings(max_body_bytes=1))
    (reply,) = envoy.request_headers({":path": "/", "x-request-id": "r", "content-length": "9"})
    assert_routes(reply, "request_headers", A)


def test_a_body_that_grows_above_the_limit_is_refused() -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, settings=ExtProcSettings(max_body_bytes=1000))
    envoy.request_headers()
    assert envoy.request_body(b"x" * 1000, end=False) == []
    (reply,) = envoy.request_body(b"x", end=False)
    assert reply.immediate_response.status.code == 413
    assert epp.value("request_limit_exceeded_total", limit="body-bytes") == 1
    assert epp.total("request_error_total") == 1
    assert envoy.finished == [(0, "")]


@pytest.mark.parametrize(("size", "refused"), [(500, False), (1100, True)])
def test_headers_above_the_limit_are_refused(size: int, refused: bool) -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, settings=ExtProcSettings(max_header_bytes=1000))
    replies = envoy.request_headers({":path": "/", "x-request-id": "r", "x-big": "b" * size})
    codes = [reply.immediate_response.status.code for reply in replies]
    assert codes == ([431] if refused else [])
    assert epp.value("request_limit_exceeded_total", limit="header-bytes") == int(refused)

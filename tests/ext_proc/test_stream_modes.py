"""The replies, and their order, in each of Envoy's body modes."""

from uuid import UUID

import pytest
from google.protobuf import json_format

from epp.ext_proc import ExtProcState
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.harness.ext_proc import (
    ADAPTIVE,
    BUFFERED,
    CONTINUE_REQUEST_HEADERS,
    CONTINUE_REQUEST_TRAILERS,
    CONTINUE_RESPONSE_HEADERS,
    CONTINUE_RESPONSE_TRAILERS,
    DESTINATION,
    FULL_DUPLEX,
    LEAN,
    NO_BODIES,
    POST,
    A,
    Envoy,
    Mode,
    Modes,
    assert_routes,
    echoed,
    on_one_wire,
    set_headers,
)
from tools.harness.request_control import BODY, Epp, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]

LARGE = b'{"model": "llama", "prompt": "' + b"x" * 300_000 + b'"}'


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN])
@pytest.mark.parametrize(
    ("chunks", "pieces"),
    [
        pytest.param([BODY], 1, id="one chunk"),
        pytest.param([BODY[:9], BODY[9:20], BODY[20:]], 1, id="three chunks, given back as one"),
        pytest.param([BODY, b""], 1, id="an empty last chunk"),
        pytest.param([b"", BODY[:5], b"", BODY[5:], b""], 1, id="empty chunks in between"),
        # 300 032 bytes over 62 000 are 4.8: five pieces.
        pytest.param([LARGE], 5, id="a chunk of 300 KB"),
        pytest.param([LARGE, b""], 5, id="a chunk of 300 KB and an empty one"),
        # 124 000 bytes are two whole pieces; no empty third.
        pytest.param([LARGE[:123_998], b'"}'], 2, id="two whole pieces"),
    ],
)
def test_a_full_duplex_body_is_sent_back_after_the_headers(
    modes: Modes, chunks: list[bytes], pieces: int
) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    assert envoy.request_headers() == []
    for chunk in chunks[:-1]:
        assert envoy.request_body(chunk, end=False) == []
    headers, *body = envoy.request_body(chunks[-1])
    assert_routes(headers, "request_headers", A)
    data, ends = echoed(body, "request_body")
    assert data == b"".join(chunks)
    assert ends == [False] * (pieces - 1) + [True]
    assert envoy.epp.in_flight == 1


def test_trailers_end_a_full_duplex_body() -> None:
    envoy = Envoy(Epp(make_pool()), FULL_DUPLEX)
    envoy.request_headers()
    envoy.request_body(BODY, end=False)
    headers, body, trailers = envoy.request_trailers()
    assert_routes(headers, "request_headers", A)
    assert echoed([body], "request_body") == (BODY, [False])
    assert trailers.WhichOneof("response") == "request_trailers"


def test_trailers_without_a_body_get_no_body_reply() -> None:
    envoy = Envoy(Epp(make_pool()), FULL_DUPLEX)
    envoy.request_headers({":path": "/grpc", "x-request-id": "r-1"})
    headers, trailers = envoy.request_trailers()
    assert_routes(headers, "request_headers", A)
    assert trailers.WhichOneof("response") == "request_trailers"


@pytest.mark.parametrize("modes", [BUFFERED, ADAPTIVE])
def test_a_buffered_request_is_routed_by_the_reply_to_its_body(modes: Modes) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    (headers,) = envoy.request_headers()
    assert headers == CONTINUE_REQUEST_HEADERS
    assert envoy.epp.in_flight == 0
    (body,) = envoy.request_body()
    assert_routes(body, "request_body", A)
    assert envoy.epp.in_flight == 1


def test_a_buffered_body_before_trailers_is_complete_without_an_end_flag() -> None:
    envoy = Envoy(Epp(make_pool()), BUFFERED)
    envoy.request_headers()
    (body,) = envoy.request_body(end=False)
    assert_routes(body, "request_body", A)
    (trailers,) = envoy.request_trailers()
    assert trailers == CONTINUE_REQUEST_TRAILERS
    assert envoy.stream.state is ExtProcState.RESPONSE_HEADERS


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED, ADAPTIVE, NO_BODIES])
def test_a_request_without_a_body_is_routed_at_once(modes: Modes) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    get = {":method": "GET", ":path": "/v1/models", "x-request-id": "r-1"}
    (headers,) = envoy.request_headers(get, end=True)
    assert_routes(headers, "request_headers", A)


def test_a_body_that_is_not_sent_here_is_routed_on_load_alone() -> None:
    envoy = Envoy(Epp(make_pool()), NO_BODIES)
    (headers,) = envoy.request_headers()
    assert_routes(headers, "request_headers", A)
    (trailers,) = envoy.request_trailers()
    assert trailers.WhichOneof("response") == "request_trailers"
    assert envoy.epp.total("request_total") == 1


@pytest.mark.parametrize("header", [{}, {"x-request-id": ""}])
@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED, NO_BODIES])
def test_a_missing_request_id_is_generated_and_set(modes: Modes, header: dict[str, str]) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    replies = envoy.request_headers({":path": "/v1/completions", **header})
    if modes != NO_BODIES:
        replies = envoy.request_body()
    kind = "request_body" if modes == BUFFERED else "request_headers"
    request_id = set_headers(getattr(replies[0], kind).response)["x-request-id"]
    assert UUID(request_id).version == 4
    assert_routes(replies[0], kind, A, x_request_id=request_id)


def test_two_generated_request_ids_differ() -> None:
    ids = set()
    for _ in range(2):
        (reply,) = Envoy(Epp(make_pool()), NO_BODIES).request_headers({":path": "/"})
        ids.add(set_headers(reply.request_headers.response)["x-request-id"])
    assert len(ids) == 2


def test_headers_reach_the_request_in_lower_case_and_survive_bad_bytes() -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, BUFFERED)
    headers = pb.HeaderMap(
        headers=[
            pb.HeaderValue(key="X-LLM-D-Inference-Fairness-ID", raw_value=b"t\xff"),
            pb.HeaderValue(key=":path", value="/v1/completions"),
        ]
    )
    config = pb.ProtocolConfiguration(request_body_mode=Mode.BUFFERED)
    envoy.send(
        pb.ProcessingRequest(
            request_headers=pb.HttpHeaders(headers=headers), protocol_config=config
        )
    )
    envoy.request_body()
    labels = {"model_name": "llama", "target_model_name": "llama", "priority": "0"}
    assert epp.value("request_total", fairness_id="t\N{REPLACEMENT CHARACTER}", **labels) == 1


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED, ADAPTIVE, NO_BODIES])
def test_the_response_headers_pass_unchanged(modes: Modes) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    envoy.post()
    assert envoy.response_headers() == [CONTINUE_RESPONSE_HEADERS]
    assert envoy.epp.in_flight == 1


def test_a_full_duplex_response_is_sent_back_chunk_by_chunk() -> None:
    envoy = Envoy(Epp(make_pool()), FULL_DUPLEX)
    envoy.post()
    envoy.response_headers()
    assert echoed(envoy.response_body(b"one"), "response_body") == (b"one", [False])
    data, ends = echoed(envoy.response_body(LARGE), "response_body")
    assert (data, ends) == (LARGE, [False] * 5)
    assert echoed(envoy.response_body(b"", end=True), "response_body") == (b"", [True])
    assert envoy.stream.state is ExtProcState.CLOSED
    assert envoy.epp.in_flight == 0


@pytest.mark.parametrize(
    ("chunk", "pieces"),
    [
        pytest.param(LARGE, 5, id="300 KB"),
        pytest.param(b"x" * 124_000, 2, id="two whole pieces"),
    ],
)
def test_the_end_flag_of_a_long_last_chunk_is_on_its_last_piece(chunk: bytes, pieces: int) -> None:
    envoy = Envoy(Epp(make_pool()), FULL_DUPLEX)
    envoy.post()
    envoy.response_headers()
    data, ends = echoed(envoy.response_body(chunk, end=True), "response_body")
    assert (data, ends) == (chunk, [False] * (pieces - 1) + [True])


def test_an_adaptive_response_passes_without_an_echo() -> None:
    envoy = Envoy(Epp(make_pool()), ADAPTIVE)
    envoy.post()
    envoy.response_headers()
    empty = pb.ProcessingResponse(response_body=pb.BodyResponse())
    assert envoy.response_body(b"one") == [empty]
    assert envoy.response_body(b"two", end=True) == [empty]
    assert envoy.epp.in_flight == 0


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED, ADAPTIVE])
def test_response_trailers_end_the_exchange(modes: Modes) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    envoy.post()
    envoy.response_headers()
    assert envoy.response_trailers() == [CONTINUE_RESPONSE_TRAILERS]
    assert envoy.epp.in_flight == 0


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED])
@pytest.mark.parametrize("after_headers", [False, True])
def test_a_repeated_end_of_the_request_body_is_not_answered_again(
    modes: Modes, after_headers: bool
) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    envoy.post()
    if after_headers:
        envoy.response_headers()
    assert envoy.request_body(b"") == []
    assert envoy.epp.in_flight == 1
    assert envoy.finished == []


@pytest.mark.parametrize("modes", [LEAN, BUFFERED])
def test_a_response_of_envoys_own_passes_while_the_body_arrives(modes: Modes) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    envoy.request_headers()
    assert envoy.response_headers("413") == [CONTINUE_RESPONSE_HEADERS]
    assert envoy.epp.in_flight == envoy.epp.director.in_flight == 0
    envoy.reset()
    assert not envoy.service.open_streams


def test_the_destination_is_the_same_in_header_and_metadata_for_each_endpoint() -> None:
    epp = Epp(make_pool())
    for address in ("10.0.0.1:8000", "[fd00::2]:8000"):
        epp.endpoints[0].address = address
        for _ in range(2):  # the second comes from the cache
            (reply,) = Envoy(epp, NO_BODIES).request_headers({**POST, DESTINATION: "1.2.3.4:5"})
            assert_routes(reply, "request_headers", address)
        epp.endpoints[0].load.in_flight = 0
        epp.endpoints[0].load.assume(waiting=0, running=0, kv_cache_usage=0)


@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED])
def test_total_scores_of_all_candidates_accompany_the_destination_if_configured(
    modes: Modes,
) -> None:
    envoy = Envoy(Epp(make_pool(), emit_endpoint_scores=True), modes)
    before = envoy.request_headers()
    replies = envoy.request_body()
    (reply,) = (each for each in [*before, *replies] if each.HasField("dynamic_metadata"))
    metadata = json_format.MessageToDict(reply.dynamic_metadata)["envoy.lb"]
    assert metadata == {
        DESTINATION: A,
        f"{DESTINATION}-scores": {"10.0.0.1:8000": 1.0, "10.0.0.2:8000": 0.0},
    }


def test_agentgateways_messages_are_answered() -> None:
    """Full duplex, the end of a body in its last chunk, one address, no gRPC metadata."""
    envoy = Envoy(Epp(make_pool()), FULL_DUPLEX)
    assert envoy.request_headers() == []
    headers, *body = envoy.request_body(BODY, end=True)
    assert_routes(headers, "request_headers", A)
    assert echoed(body, "request_body") == (BODY, [True])
    assert envoy.response_headers(served=A) == [CONTINUE_RESPONSE_HEADERS]
    assert echoed(envoy.response_body(b"data: 1\n\n"), "response_body") == (b"data: 1\n\n", [False])
    last = envoy.response_body(b"data: [DONE]\n\n", end=True)
    assert echoed(last, "response_body") == (b"data: [DONE]\n\n", [True])
    assert envoy.finished == []
    envoy.half_close()
    assert envoy.epp.director.in_flight == 0

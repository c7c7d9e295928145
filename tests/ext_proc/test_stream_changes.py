"""Changes of plugins to bodies and headers of requests and responses."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import (
    REQUEST_HEADERS_TO_SET,
    PreRequest,
    ResponseHead,
    ResponseHeader,
    RoutedRequest,
)
from epp.scheduling import CycleState, Endpoint, LLMRequest, Plugin, SchedulingResult
from tools.harness.ext_proc import (
    ADAPTIVE,
    BUFFERED,
    CONTINUE_RESPONSE_HEADERS,
    DESTINATION,
    FULL_DUPLEX,
    LEAN,
    NO_BODIES,
    POST,
    A,
    Envoy,
    Modes,
    assert_routes,
    changed_headers,
    echoed,
    on_one_wire,
    set_headers,
)
from tools.harness.held import Change, HeldDecision, PatientEnvoy
from tools.harness.request_control import BODY, Epp, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]

SHORT = b'{"model": "m", "prompt": "hello"}'
LONG = b'{"model": "' + b"m" * 130_000 + b'", "prompt": "hello"}'
WITH_LENGTH = {**POST, "content-length": str(len(BODY))}


def rewriting(body: bytes) -> Change:
    def change(exchange: RoutedRequest) -> None:
        exchange.body = body

    return change


class HeadersPlugin(PreRequest, ResponseHeader):
    """Sets given headers on requests and responses, and records response heads."""

    type: ClassVar[str] = "headers"

    def __init__(
        self,
        on_requests: Mapping[str, str | None] | None = None,
        on_responses: Mapping[str, str | None] | None = None,
        *,
        fails: bool = False,
    ) -> None:
        self.name = "headers"
        self.seen: list[tuple[str, ResponseHead]] = []
        self._on_requests = dict(on_requests or {})
        self._on_responses = dict(on_responses or {})
        self._fails = fails

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        state.write(REQUEST_HEADERS_TO_SET, self._on_requests)

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        self.seen.append((served_by.name, response))
        response.set_headers.update(self._on_responses)
        if self._fails:
            raise RuntimeError("a bug in a plugin")


def epp_with(*plugins: Plugin) -> Epp:
    """Return an EPP with ``plugins``."""
    return Epp(make_pool(), plugins=plugins)


@pytest.fixture(params=[None, HeldDecision], ids=["decided at once", "decided later"])
def kind(request: pytest.FixtureRequest) -> type[HeldDecision] | None:
    made: type[HeldDecision] | None = request.param
    return made


def replies_to(
    envoy: PatientEnvoy, headers: Mapping[str, str], steps: Callable[[PatientEnvoy], object]
) -> list[pb.ProcessingResponse]:
    """Return the replies to the message that completes the request."""
    envoy.request_headers(headers)
    steps(envoy)
    if envoy.handler.kind is not None:
        envoy.decide()
    return envoy.take()


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN])
@pytest.mark.parametrize(
    ("body", "pieces"),
    [
        pytest.param(SHORT, 1, id="shorter"),
        # 130 033 bytes over 62 000 are 2.1: three pieces.
        pytest.param(LONG, 3, id="longer than a piece may be"),
        pytest.param(b"x" * 124_000, 2, id="two whole pieces"),
        pytest.param(b"", 1, id="empty"),
    ],
)
def test_a_rewritten_body_replaces_the_received_chunks(
    modes: Modes, body: bytes, pieces: int, kind: type[HeldDecision] | None
) -> None:
    envoy = PatientEnvoy(Epp(make_pool()), modes, kind=kind, change=rewriting(body))

    def in_chunks(envoy: PatientEnvoy) -> None:
        envoy.request_body(BODY[:9], end=False)
        envoy.request_body(BODY[9:], end=False)
        envoy.request_body(b"")

    headers, *echo = replies_to(envoy, WITH_LENGTH, in_chunks)
    assert_routes(headers, "request_headers", A, content_length=str(len(body)))
    assert echoed(echo, "request_body") == (body, [False] * (pieces - 1) + [True])


def test_a_rewritten_body_is_sent_before_the_trailers(kind: type[HeldDecision] | None) -> None:
    envoy = PatientEnvoy(Epp(make_pool()), FULL_DUPLEX, kind=kind, change=rewriting(LONG))

    def with_trailers(envoy: PatientEnvoy) -> None:
        envoy.request_body(end=False)
        envoy.request_trailers()

    headers, *echo, trailers = replies_to(envoy, POST, with_trailers)
    assert_routes(headers, "request_headers", A)
    assert echoed(echo, "request_body") == (LONG, [False] * 3)
    assert trailers == pb.ProcessingResponse(request_trailers=pb.TrailersResponse())


@pytest.mark.parametrize("modes", [BUFFERED, ADAPTIVE])
@pytest.mark.parametrize("body", [SHORT, LONG, b""])
def test_the_reply_to_a_buffered_body_replaces_it(
    modes: Modes, body: bytes, kind: type[HeldDecision] | None
) -> None:
    envoy = PatientEnvoy(Epp(make_pool()), modes, kind=kind, change=rewriting(body))
    reply = replies_to(envoy, WITH_LENGTH, PatientEnvoy.request_body)[-1]
    mutation = reply.request_body.response.body_mutation
    assert mutation.WhichOneof("mutation") == "body"
    assert mutation.body == body
    reply.request_body.response.ClearField("body_mutation")
    assert_routes(reply, "request_body", A, content_length=str(len(body)))


@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED])
def test_no_content_length_is_added(modes: Modes) -> None:
    envoy = PatientEnvoy(Epp(make_pool()), modes, kind=None, change=rewriting(SHORT))
    envoy.request_headers(POST)
    reply = envoy.request_body()[0]
    response = (reply.request_body if modes == BUFFERED else reply.request_headers).response
    assert changed_headers(response) == ({DESTINATION: A}, [])


@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED])
def test_an_unchanged_body_keeps_its_content_length(modes: Modes) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    envoy.request_headers(WITH_LENGTH)
    reply = envoy.request_body()[0]
    assert_routes(reply, "request_body" if modes == BUFFERED else "request_headers", A)


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED, ADAPTIVE, NO_BODIES])
def test_headers_of_plugins_are_set_and_removed_with_the_destination(
    modes: Modes, kind: type[HeldDecision] | None
) -> None:
    headers = {"x-prefiller-host-port": "10.0.0.9:8000", "X-Tier": "gold", "x-secret": None}
    envoy = PatientEnvoy(epp_with(HeadersPlugin(headers)), modes, kind=kind)

    def body(envoy: PatientEnvoy) -> None:
        if modes != NO_BODIES:
            envoy.request_body()

    replies = replies_to(envoy, POST, body)
    (reply,) = [reply for reply in replies if reply.HasField("dynamic_metadata")]
    is_buffered = modes in {BUFFERED, ADAPTIVE}
    response = (reply.request_body if is_buffered else reply.request_headers).response
    assert changed_headers(response) == (
        {DESTINATION: A, "x-prefiller-host-port": "10.0.0.9:8000", "x-tier": "gold"},
        ["x-secret"],
    )
    assert response.clear_route_cache
    metadata = reply.dynamic_metadata.fields["envoy.lb"].struct_value
    assert dict(metadata.items()) == {DESTINATION: A}


def test_headers_of_one_request_are_not_those_of_the_next() -> None:
    epp = epp_with(HeadersPlugin({"x-tier": "gold"}))
    changed = Envoy(epp)
    changed.post()
    changed.reset()
    epp.director.pipeline = epp_with().director.pipeline
    assert_routes(Envoy(epp).post()[0], "request_headers", A)


def test_a_new_request_id_is_set_with_the_headers_of_plugins() -> None:
    envoy = Envoy(epp_with(HeadersPlugin({"x-tier": "gold"})), NO_BODIES)
    (reply,) = envoy.request_headers({":path": "/v1/completions"})
    headers, _ = changed_headers(reply.request_headers.response)
    assert headers.keys() == {DESTINATION, "x-request-id", "x-tier"}


def test_an_invalid_request_header_is_omitted_and_the_request_continues() -> None:
    headers = {"x-model": "a\nb", "x-tier": "gold", DESTINATION: "1.2.3.4:5"}
    envoy = Envoy(epp_with(HeadersPlugin(headers)))
    with capture_logs() as lines:
        reply = envoy.post()[0]
    assert changed_headers(reply.request_headers.response) == (
        {DESTINATION: A, "x-tier": "gold"},
        [],
    )
    assert [(line["event"], line["header"], line["request_id"]) for line in lines] == [
        ("invalid header of a plugin omitted", "x-model", "r-1"),
        ("invalid header of a plugin omitted", DESTINATION, "r-1"),
    ]


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED, ADAPTIVE, NO_BODIES])
def test_headers_of_plugins_are_set_on_the_response(modes: Modes) -> None:
    plugin = HeadersPlugin(on_responses={"x-cache": "hit", "X-Tier": "gold"})
    envoy = Envoy(epp_with(plugin), modes)
    envoy.post()
    (reply,) = envoy.response_headers("201", headers={"Content-Type": "text/plain"})
    response = reply.response_headers.response
    assert changed_headers(response) == ({"x-cache": "hit", "x-tier": "gold"}, [])
    assert not response.clear_route_cache
    assert not reply.HasField("dynamic_metadata")
    ((served_by, head),) = plugin.seen
    assert (served_by, head.status) == ("default/a", 201)
    assert head.headers == {":status": "201", "content-type": "text/plain"}


@pytest.mark.parametrize("fails", [False, True], ids=["that sets nothing", "with a bug"])
def test_a_response_passes_a_plugin_unchanged(fails: bool) -> None:
    plugin = HeadersPlugin(fails=fails)
    envoy = Envoy(epp_with(plugin))
    envoy.post()
    assert envoy.response_headers() == [CONTINUE_RESPONSE_HEADERS]
    assert len(plugin.seen) == 1
    assert len(envoy.response_trailers()) == 1
    assert envoy.epp.in_flight == 0


def test_plugins_see_the_endpoint_that_served_rather_than_the_one_chosen() -> None:
    plugin = HeadersPlugin()
    envoy = Envoy(epp_with(plugin))
    envoy.post()
    envoy.response_headers(served="10.0.0.2:8000")
    assert [name for name, _ in plugin.seen] == ["default/b"]


def test_a_response_that_ends_with_its_headers_gets_them_and_ends_the_stream() -> None:
    envoy = Envoy(epp_with(HeadersPlugin(on_responses={"x-cache": "hit"})))
    envoy.post()
    (reply,) = envoy.response_headers("204", end=True)
    assert set_headers(reply.response_headers.response) == {"x-cache": "hit"}
    assert not envoy.service.open_streams


def test_a_plugin_removes_a_response_header() -> None:
    plugin = HeadersPlugin(on_responses={"x-load": None, "x-cache": "hit"})
    envoy = Envoy(epp_with(plugin))
    envoy.post()
    (reply,) = envoy.response_headers()
    assert changed_headers(reply.response_headers.response) == ({"x-cache": "hit"}, ["x-load"])


def test_an_invalid_response_header_is_omitted() -> None:
    headers = {"x-model": "a\nb", "content-length": "3", "x-cache": "hit"}
    envoy = Envoy(epp_with(HeadersPlugin(on_responses=headers)))
    envoy.post()
    with capture_logs() as lines:
        (reply,) = envoy.response_headers()
    assert set_headers(reply.response_headers.response) == {"x-cache": "hit"}
    assert [line["header"] for line in lines] == ["x-model", "content-length"]


def test_a_response_of_envoys_own_is_shown_to_no_plugin() -> None:
    plugin = HeadersPlugin(on_responses={"x-cache": "hit"})
    envoy = Envoy(epp_with(plugin))
    envoy.request_headers()
    assert envoy.response_headers("413") == [CONTINUE_RESPONSE_HEADERS]
    assert plugin.seen == []

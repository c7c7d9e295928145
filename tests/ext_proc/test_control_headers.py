"""Control headers do not reach the model server."""

import pytest

from epp.ext_proc.control_headers import CLIENT_CONTROL_HEADERS, CONTROL_HEADERS, present
from epp.ext_proc.settings import ExtProcSettings
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import ResponseHead, ResponseHeader
from epp.scheduling import CycleState, Endpoint, LLMRequest
from tools.harness.ext_proc import (
    BUFFERED,
    DESTINATION,
    FULL_DUPLEX,
    POST,
    Envoy,
    Modes,
    changed_headers,
    on_one_wire,
)
from tools.harness.request_control import BODY, Epp, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]


@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED])
def test_control_headers_are_removed_and_the_others_kept(modes: Modes) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    sent = dict.fromkeys(CONTROL_HEADERS, "1") | {"x-mine": "2", DESTINATION: "192.0.2.1:1"}
    envoy.request_headers({**POST, **sent})
    reply = envoy.request_body()[0]
    common = (reply.request_body if modes == BUFFERED else reply.request_headers).response
    headers, removed = changed_headers(common)
    assert headers == {DESTINATION: "10.0.0.1:8000"}
    assert removed == sorted(CONTROL_HEADERS)


@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED])
def test_control_headers_are_kept_for_a_second_endpoint_picker(modes: Modes) -> None:
    """Except headers that name servers or are ignored here."""
    ignored = frozenset({"x-llm-d-slo-ttft-ms", "x-session-token", "epp-profile"})
    settings = ExtProcSettings(keep_control_headers=True, ignored_client_headers=ignored)
    envoy = Envoy(Epp(make_pool()), modes, settings=settings)
    envoy.request_headers({**POST, **dict.fromkeys(CONTROL_HEADERS | ignored, "1")})
    reply = envoy.request_body()[0]
    common = (reply.request_body if modes == BUFFERED else reply.request_headers).response
    _, removed = changed_headers(common)
    assert removed == sorted(ignored | CONTROL_HEADERS - CLIENT_CONTROL_HEADERS)


def test_without_control_headers_there_is_nothing_to_keep() -> None:
    envoy = Envoy(
        Epp(make_pool()), FULL_DUPLEX, settings=ExtProcSettings(keep_control_headers=True)
    )
    envoy.request_headers({**POST, "x-llm-d-inference-objective": "chat"})
    reply = envoy.request_body()[0]
    assert changed_headers(reply.request_headers.response) == ({DESTINATION: "10.0.0.1:8000"}, [])


REPEATED = [("x-tag", "a"), ("cookie", "a=1"), ("x-tag", "b"), ("cookie", "b=2"), ("x-tag", "a")]


@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED])
@pytest.mark.parametrize("target", ["", "other"], ids=["sent on", "renamed"])
def test_repeated_request_headers_pass_unchanged(modes: Modes, target: str) -> None:
    """Only named headers change; a control header is removed with all its values."""
    envoy = Envoy(Epp(make_pool()), modes)
    control = [("x-llm-d-model-name-rewrite", ""), ("x-llm-d-model-name-rewrite", target)]
    envoy.request_headers([*POST.items(), *REPEATED, *control, ("content-length", "37")])
    reply = envoy.request_body()[0]
    common = (reply.request_body if modes == BUFFERED else reply.request_headers).response
    headers, removed = changed_headers(common)
    assert removed == ["x-llm-d-model-name-rewrite"]
    assert set(headers) == {DESTINATION} | ({"content-length"} if target else set())


def test_a_missing_request_id_is_added_to_repeated_headers() -> None:
    envoy = Envoy(Epp(make_pool()), FULL_DUPLEX)
    envoy.request_headers([(":method", "POST"), (":path", "/v1/completions"), *REPEATED])
    reply = envoy.request_body()[0]
    headers, removed = changed_headers(reply.request_headers.response)
    assert removed == []
    assert set(headers) == {DESTINATION, "x-request-id"}


class Stamping(ResponseHeader):
    """Sets a header on every response."""

    type = "stamping"
    name = "stamping"
    header = "x-stamp"

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        response.set_headers[self.header] = "1"


@pytest.mark.parametrize("plugins", [[], [Stamping()]], ids=["untouched", "with one more"])
def test_repeated_response_headers_pass_unchanged(plugins: list[Stamping]) -> None:
    envoy = Envoy(Epp(make_pool(), plugins=plugins), FULL_DUPLEX)
    envoy.post()
    cookies = [("set-cookie", "a=1"), ("set-cookie", "b=2"), ("vary", "x"), ("vary", "y")]
    (reply,) = envoy.response_headers(headers=cookies)
    headers, removed = changed_headers(reply.response_headers.response)
    assert removed == []
    assert headers == ({"x-stamp": "1"} if plugins else {})


def test_a_cookie_of_a_plugin_is_added_to_those_of_the_model_server() -> None:
    stamping = Stamping()
    stamping.header = "set-cookie"
    envoy = Envoy(Epp(make_pool(), plugins=[stamping]), FULL_DUPLEX)
    envoy.post()
    (reply,) = envoy.response_headers(headers=[("set-cookie", "a=1")])
    (option,) = reply.response_headers.response.header_mutation.set_headers
    assert (option.header.key, option.header.raw_value) == ("set-cookie", b"1")
    assert option.append_action == pb.HeaderValueOption.APPEND_IF_EXISTS_OR_ADD


def test_control_headers_are_removed_along_with_other_changes() -> None:
    envoy = Envoy(Epp(make_pool()), BUFFERED)
    headers = {**POST, "x-llm-d-model-name-rewrite": "other", "content-length": str(len(BODY))}
    envoy.request_headers(headers)
    (reply,) = envoy.request_body()
    headers, removed = changed_headers(reply.request_body.response)
    assert removed == ["x-llm-d-model-name-rewrite"]
    assert "content-length" in headers


def test_a_request_without_control_headers_is_unchanged() -> None:
    assert present({"accept": "*/*", DESTINATION: "x"}) == ()

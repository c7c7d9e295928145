"""What is meant for the endpoint picker does not reach the model server."""

import pytest
from request_control.harness import BODY, Epp, make_pool

from epp.ext_proc.control_headers import CONTROL_HEADERS, present
from ext_proc.harness import (
    BUFFERED,
    DESTINATION,
    FULL_DUPLEX,
    POST,
    Envoy,
    Modes,
    changed_headers,
)

pytestmark = pytest.mark.usefixtures("wire")


@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED])
def test_control_headers_are_taken_off_and_the_others_left_alone(modes: Modes) -> None:
    envoy = Envoy(Epp(make_pool()), modes)
    sent = dict.fromkeys(CONTROL_HEADERS, "1") | {"x-mine": "2", DESTINATION: "192.0.2.1:1"}
    envoy.request_headers({**POST, **sent})
    answer = envoy.request_body()[0]
    common = (answer.request_body if modes == BUFFERED else answer.request_headers).response
    headers, removed = changed_headers(common)
    assert headers == {DESTINATION: "10.0.0.1:8000"}
    assert removed == sorted(CONTROL_HEADERS)


def test_also_when_something_else_is_changed() -> None:
    envoy = Envoy(Epp(make_pool()), BUFFERED)
    headers = {**POST, "x-llm-d-model-name-rewrite": "other", "content-length": str(len(BODY))}
    envoy.request_headers(headers)
    (answer,) = envoy.request_body()
    headers, removed = changed_headers(answer.request_body.response)
    assert removed == ["x-llm-d-model-name-rewrite"]
    assert "content-length" in headers


def test_a_request_without_any_is_not_touched() -> None:
    assert present({"accept": "*/*", DESTINATION: "x"}) == ()

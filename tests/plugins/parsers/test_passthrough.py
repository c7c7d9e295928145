"""Requests that no other parser reads pass unchanged."""

import pytest

from epp.parsing.plugins import HttpCall
from epp.testing import make_request
from epp_plugins.parsers.passthrough import Params, PassthroughParser

PARSER = PassthroughParser("passthrough", Params())
MULTIPART = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n'


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(MULTIPART, id="multipart"),
        pytest.param(b"\x00\xff" * 9, id="bytes"),
        pytest.param(b'{"model": "m", "prompt": "x"}', id="JSON"),
    ],
)
def test_a_request_of_any_kind_has_neither_model_nor_prompt(body: bytes) -> None:
    request = PARSER.parse(HttpCall("r-1", "/v1/audio?x=1", {"a": "b"}, body))
    assert (request.request_id, request.path, request.headers) == (
        "r-1",
        "/v1/audio?x=1",
        {"a": "b"},
    )
    assert (request.model, request.target_model, request.prompt, request.stream) == (
        "",
        "",
        b"",
        False,
    )
    assert request.body_bytes == len(body)


def test_a_body_is_not_given_another_model_nor_a_response_read() -> None:
    assert PARSER.claims == ()
    assert PARSER.rewrite(make_request(), b'{"model": "m"}', "other") is None
    assert PARSER.response_reader(make_request(), {}) is None

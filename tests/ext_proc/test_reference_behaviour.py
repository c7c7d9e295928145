"""Differences from the Go EPP that clients see (docs/differences.md), and common behaviour.

In the order of the table of what was tried side by side: what is here, the reference's in comments.
"""

import gzip
import json

import pytest

from epp.ext_proc.settings import ExtProcSettings
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.harness.ext_proc import DESTINATION, FULL_DUPLEX, Envoy, changed_headers, on_one_wire
from tools.harness.request_control import Epp, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]

HEADERS = {":method": "POST", "content-type": "application/json", "x-request-id": "r-1"}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
FIRST = "10.0.0.1:8000"


def answered(
    body: bytes, path: str = COMPLETIONS, *, compat: str = "none", **headers: str
) -> pb.ProcessingResponse:
    """Return the reply to a request with ``body``."""
    settings = ExtProcSettings(compat=compat)  # type: ignore[arg-type] # one of two
    envoy = Envoy(Epp(make_pool()), FULL_DUPLEX, settings=settings)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    envoy.request_headers({**HEADERS, ":path": path, **named})
    return envoy.request_body(body)[0]


def set_on(reply: pb.ProcessingResponse) -> dict[str, str]:
    assert reply.WhichOneof("response") == "request_headers"
    return changed_headers(reply.request_headers.response)[0]


@pytest.mark.parametrize("compat", ["none", "reference"])
@pytest.mark.parametrize("half", [rb"\ud83d", rb"\uDE00"])
def test_1_half_of_a_surrogate_pair_is_routed(half: bytes, compat: str) -> None:
    fields = {
        COMPLETIONS: b'"prompt":"cut %s"',
        CHAT: b'"messages":[{"role":"user","content":"cut %s"}]',
    }
    for path, field in fields.items():
        body = b'{"model":"llama",' + field % half + b"}"
        assert set_on(answered(body, path, compat=compat))[DESTINATION] == FIRST


PROMPTS: tuple[object, ...] = ("", 7, {"a": 1}, [], ["a", 1], [1.5, 2.5], [-1, -2], [[1, 2], [3]])
USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *((COMPLETIONS, {"prompt": prompt}) for prompt in PROMPTS),
        (COMPLETIONS, {"prompt": "x", "cache_salt": 7}),
        (CHAT, {"messages": "hello"}),
        (CHAT, {"messages": [USER | {"content": 7}]}),
        (CHAT, {"messages": [USER | {"content": {"text": "x"}}]}),
        (CHAT, {"messages": [USER | {"role": 7}]}),
        (
            CHAT,
            {"messages": [USER | {"content": [{"type": "image_url", "image_url": "http://x"}]}]},
        ),
        (CHAT, {"messages": [USER | {"content": ["a", "b"]}]}),
        (CHAT, {"messages": [USER], "tools": {"a": 1}}),
        (CHAT, {"messages": [USER], "documents": "text"}),
        (CHAT, {"messages": [USER], "continue_final_message": "yes"}),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:70],
)
def test_2_values_of_another_type_are_the_model_servers_business(
    path: str, fields: dict[str, object]
) -> None:  # the reference: 400
    body = json.dumps({"model": "llama"} | fields).encode()
    assert set_on(answered(body, path))[DESTINATION] == FIRST


def test_3_a_number_beyond_all_numbers_is_passed_on() -> None:  # the reference: 400
    body = b'{"model":"llama","prompt":"x","temperature":1e999}'
    assert set_on(answered(body))[DESTINATION] == FIRST


def test_3_an_empty_frame_is_a_request_without_a_body() -> None:  # the reference: 400
    assert set_on(answered(b""))[DESTINATION] == FIRST


def test_4_a_body_that_is_not_encoded_as_it_says_is_refused() -> None:  # the reference routes it
    body = b'{"model":"llama","prompt":"x"}'
    reply = answered(body, content_encoding="gzip")
    assert reply.immediate_response.status.code == 400
    assert set_on(answered(gzip.compress(body), content_encoding="gzip"))[DESTINATION] == FIRST


@pytest.mark.parametrize("model", [7, None, ["llama"]], ids=str)
def test_5_the_model_must_be_a_text_though_a_header_names_another(model: object) -> None:
    body = json.dumps({"model": model, "prompt": "x"}).encode()
    reply = answered(body, x_llm_d_model_name_rewrite="other")
    is_absent = model is None  # null counts as left out
    assert reply.WhichOneof("response") == (
        "request_headers" if is_absent else "immediate_response"
    )


def test_6_a_body_that_comes_without_its_length_goes_on_without_it() -> None:
    body = b'{"model":"llama","prompt":"x"}'
    rewritten = set_on(answered(body, x_llm_d_model_name_rewrite="other"))
    assert "content-length" not in rewritten
    resent = set_on(
        answered(body, x_llm_d_model_name_rewrite="other", content_length=str(len(body)))
    )
    assert resent["content-length"] == str(len(body))


def test_8_a_trace_begins_here_when_it_is_asked_for() -> None:
    assert "traceparent" not in set_on(answered(b'{"model":"llama","prompt":"x"}'))


def test_10_an_empty_request_id_is_replaced() -> None:  # the reference keeps it
    assert set_on(answered(b'{"model":"llama","prompt":"x"}', x_request_id=""))["x-request-id"]

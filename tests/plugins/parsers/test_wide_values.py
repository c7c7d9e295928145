"""Any JSON in place of a word or a number: it counts as absent, and is not decoded."""

import tracemalloc
from contextlib import suppress

import pytest
from parser_checks import make_call

from epp.parsing.plugins import ParseError, Parser
from epp_plugins.parsers import anthropic, openai, sglang_http, vllm_http

OPENAI = openai.OpenAiParser("openai", openai.Params())
ANTHROPIC = anthropic.AnthropicParser("anthropic", anthropic.Params())
SGLANG = sglang_http.SglangHttpParser("sglang", sglang_http.Params())
VLLM = vllm_http.VllmHttpParser("vllm", vllm_http.Params())
BODY = b'{"model":"m","prompt":"x","messages":[],"input":"x","text":"x","token_ids":[1],%s}'
MANY = 50_000


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"[" + b"{}," * MANY + b"0]", id="a list of objects"),
        pytest.param(b"[" + b"1.5," * MANY + b"0]", id="a list of numbers"),
        pytest.param(b'{"a":[' + b"[]," * MANY + b"0]}", id="lists in an object"),
        # With one of these a text takes four bytes for each of its letters.
        pytest.param(b'"' + b"x" * MANY + "\U0001f600".encode() + b'"', id="a long text"),
        pytest.param(b"9" * MANY, id="a long number"),
    ],
)
@pytest.mark.parametrize(
    ("parser", "path", "field"),
    [
        *((OPENAI, "/v1/completions", field) for field in ("model", "stream", "cache_salt")),
        *((OPENAI, "/v1/completions", f"max_{kind}tokens") for kind in ("", "completion_")),
        (OPENAI, "/v1/responses", "max_output_tokens"),
        (ANTHROPIC, "/v1/messages", "max_tokens"),
        (SGLANG, "/generate", "extra_key"),
        (SGLANG, "/generate", "sampling_params"),
        (VLLM, "/inference/v1/generate", "sampling_params"),
    ],
)
def test_what_is_in_them_takes_no_memory(
    parser: Parser, path: str, field: str, value: bytes
) -> None:
    if field == "sampling_params":
        value = b'{"max_tokens":%s,"max_new_tokens":%s}' % (value, value)
    call = make_call(parser, BODY % (b'"%s":%s' % (field.encode(), value)), path=path)
    tracemalloc.start()
    try:
        with suppress(ParseError):  # where it is the model
            parser.parse(call)
        max_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max_bytes < MANY


def test_they_count_as_absent() -> None:
    odd = b'"stream":[true],"cache_salt":{"a":"b"},"max_tokens":[7]'
    request = OPENAI.parse(make_call(OPENAI, BODY % odd, path="/v1/completions"))
    assert (request.stream, request.cache_salt, request.max_output_tokens) == (False, "", None)

"""Every parser refuses excessively nested JSON."""

import pytest
from parser_checks import make_call

from epp.parsing.plugins import NestedTooDeeplyError, Parser
from epp.request_control import RequestError
from epp_plugins.parsers import anthropic, openai, sglang_http, vllm_http
from tools.harness.request_control import Epp, make_pool

PARSERS: list[Parser] = [
    openai.OpenAiParser("openai", openai.Params()),
    anthropic.AnthropicParser("anthropic", anthropic.Params()),
    sglang_http.SglangHttpParser("sglang", sglang_http.Params()),
    vllm_http.VllmHttpParser("vllm", vllm_http.Params()),
]
FIELDS = (
    *("prompt", "messages", "input", "instructions", "items", "system", "tools", "token_ids"),
    *("text", "input_ids", "sampling_params", "model", "stream", "max_tokens", "nobody_knows"),
)
DEEP = 100_000


def nested(depth: int, *, field: str = "", objects: bool = False, is_whole: bool = True) -> bytes:
    """A body with ``depth`` brackets in ``field``, or around everything."""
    opening, closing = (b'{"a":', b"}") if objects else (b"[", b"]")
    value = opening * depth + (b"1" + closing * depth if is_whole else b"")
    if not field:
        return value
    return b'{"model":"m","prompt":"x","%s":%s}' % (field.encode(), value)


@pytest.mark.parametrize("is_whole", [True, False], ids=["closed", "never closed"])
@pytest.mark.parametrize("objects", [True, False], ids=["objects", "lists"])
@pytest.mark.parametrize(
    ("parser", "claim"), [(parser, claim) for parser in PARSERS for claim in parser.claims]
)
def test_no_parser_follows_a_hundred_thousand_brackets(
    parser: Parser, claim: str, *, objects: bool, is_whole: bool
) -> None:
    for field in FIELDS:
        body = nested(DEEP, field=field, objects=objects, is_whole=is_whole)
        with pytest.raises(NestedTooDeeplyError, match="nested too deeply"):
            parser.parse(make_call(parser, body, path=claim))


@pytest.mark.parametrize("depth", [*range(0, 900, 100), *range(900, 1100, 3), DEEP])
@pytest.mark.parametrize("field", ["prompt", "nobody_knows"])
@pytest.mark.parametrize("target", ["", "other"], ids=["sent on", "renamed"])
def test_any_depth_is_read_or_the_clients_fault(depth: int, field: str, target: str) -> None:
    """How deep the decoder goes depends on the stack below it, so it may fail half-way."""
    epp = Epp(make_pool())
    body = nested(depth, field=field)
    refusal = refusal_of(epp, body, target)
    assert epp.total("internal_faults_total") == 0
    assert epp.value("request_limit_exceeded_total", limit="json-depth") == bool(refusal)
    if depth == DEEP:
        assert refusal == "400: the request body is nested too deeply"
    else:
        assert refusal in {"", "400: the request body is nested too deeply"}
        assert depth >= 500 or not refusal


def refusal_of(epp: Epp, body: bytes, target: str) -> str:
    try:
        epp.handle(body, headers={"x-llm-d-model-name-rewrite": target})
    except RequestError as error:
        return f"{error.status}: {error}"
    return ""

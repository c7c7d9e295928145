"""Requests to SGLang's own API and its responses: valid, unusual and hostile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_checks import make_call, odd_objects, request_or_refusal, usage_of, usages_by_cut

from epp.parsing.plugins import ParseError, ResponseReader, Usage
from epp.scheduling import CycleState, LLMRequest
from epp.testing import make_request
from epp_plugins.data_producers import token
from epp_plugins.parsers.sglang_http import Params, SglangHttpParser
from epp_plugins.state_keys import TOKENIZED_PROMPT

PARSER = SglangHttpParser("sglang", Params())
EVENTS = {"content-type": "text/event-stream"}


def parsed(body: bytes, path: str = "/generate") -> LLMRequest:
    return PARSER.parse(make_call(PARSER, body, path=path))


def reader() -> ResponseReader | None:
    return PARSER.response_reader(make_request(path="/generate"), EVENTS)


@pytest.mark.parametrize(
    ("body", "prompt", "stream", "limit", "salt"),
    [
        pytest.param(
            b'{"text":"Hi","sampling_params":{"max_new_tokens":16,"temperature":0},"stream":true}',
            b'"Hi"',
            True,
            16,
            "",
            id="text",
        ),
        pytest.param(
            b'{"input_ids":[1,2],"extra_key":"tenant","sampling_params":{}}',
            b"[1,2]",
            False,
            None,
            "tenant",
            id="token ids, with a salt",
        ),
        pytest.param(
            b'{"input_ids":[[1],[2]],"sampling_params":[{"max_new_tokens":1}],"extra_key":["a","b"]}',
            b"[[1],[2]]",
            False,
            None,
            "",
            id="several prompts",
        ),
        pytest.param(
            b'{"input_ids":[1],"text":"Hi"}', b"[1]", False, None, "", id="ids before text"
        ),
        pytest.param(
            b'{"input_ids":null,"text":"Hi"}', b'"Hi"', False, None, "", id="null for ids"
        ),
        pytest.param(b'{"input_embeds":[[0.5]]}', b"", False, None, "", id="embeddings"),
    ],
)
def test_a_request_is_read(
    body: bytes, prompt: bytes, stream: bool, limit: int | None, salt: str
) -> None:
    request = parsed(body)
    assert (request.model, request.target_model, request.prompt) == ("", "", prompt)
    assert (request.stream, request.max_output_tokens, request.cache_salt) == (stream, limit, salt)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(b"", "JSON object", id="empty"),
        pytest.param(b"[{}]", "JSON object", id="no object"),
        pytest.param(b'{"prompt":"text"}', "'input_ids', 'text' or", id="another field"),
        pytest.param(b'{"text":null}', "'input_ids', 'text' or", id="null for text"),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(ParseError, match=text):
        parsed(body)


@pytest.mark.parametrize("path", ["/generate", "/generate?x=/y"])
def test_the_path_is_generate(path: str) -> None:
    assert parsed(b'{"text":"Hi"}', path).path == path


@pytest.mark.parametrize("path", ["/v1/generate", "/inference/v1/generate"])
def test_a_path_that_only_ends_so_is_refused(path: str) -> None:
    with pytest.raises(ParseError, match=f"'{path}' is not supported"):
        parsed(b'{"text":"Hi"}', path)


def test_nothing_is_rewritten() -> None:
    body = b'{"text":"Hi"}'
    assert PARSER.rewrite(parsed(body), body, "n") is None


def test_the_ids_are_counted_exactly() -> None:
    state = CycleState()
    producer = token.TokenProducer("tokens", token.Params())
    producer.prepare(parsed(b'{"input_ids":[1,2,3]}'), state)
    prompt = state.read(TOKENIZED_PROMPT)
    assert prompt is not None
    assert prompt.count == 3


FIRST = (
    b'data: {"text":" a","meta_info":{"id":"1","finish_reason":null,"prompt_tokens":5,'
    b'"completion_tokens":1,"cached_tokens":2}}\n\n'
)
LAST = (
    b'data: {"text":" a \\"meta_info\\":{","meta_info":{"id":"1","finish_reason":{"type":"length",'
    b'"length":16},"prompt_tokens":5,"weight_version":"d\xc3\xa9","completion_tokens":16,'
    b'"cached_tokens":2,"e2e_latency":0.25}}\n\n'
)
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("response", "want"),
    [
        pytest.param(FIRST + LAST + DONE, Usage(5, 16, 2), id="events"),
        pytest.param(LAST.removeprefix(b"data: "), Usage(5, 16, 2), id="a whole response"),
        pytest.param(FIRST * 2, None, id="given up early"),
        pytest.param(LAST.replace(b'info":{', b'info" : {'), Usage(5, 16, 2), id="blanks"),
        pytest.param(
            LAST.replace(b',"cached_tokens":2', b""), Usage(5, 16), id="nothing of a cache"
        ),
        pytest.param(
            LAST.replace(b":16,", b':"16",').replace(b":5", b":-5"), None, id="no numbers"
        ),
        pytest.param(LAST[:-20], None, id="cut off"),
        pytest.param(b'{"name":"meta_info"}', None, id="a value of that name"),
        pytest.param(b'{"meta_info":[1]}', None, id="a list"),
        pytest.param(b'{"error":{"message":"m"}}' + DONE, None, id="an error"),
    ],
)
def test_usage_wherever_the_response_is_cut(response: bytes, want: Usage | None) -> None:
    assert usages_by_cut(reader, response) == {want}


def test_log_probabilities_hide_the_usage_only_beyond_64_kib() -> None:
    # 11 bytes each: 5000 are 55 kB, 6000 are 66 kB
    found = []
    for count in (5000, 6000):
        numbers = b'"output_token_logprobs":[%s0],' % (b"-0.1234567," * count)
        response = LAST.replace(b'"prompt_tokens"', numbers + b'"prompt_tokens"')
        found.append(usage_of(reader(), response[:9999], response[9999:]))
    assert found == [Usage(5, 16, 2), None]


def test_a_compressed_response_is_not_looked_at() -> None:
    assert PARSER.response_reader(make_request(), {**EVENTS, "content-encoding": "br"}) is None


@given(odd_objects(("input_ids", "text", "input_embeds", "sampling_params", "stream", "extra_key")))
def test_no_body_does_more_than_be_refused(body: bytes) -> None:
    request = request_or_refusal(PARSER, body, path="/generate")
    if request is not None:
        assert request.model == ""


@given(
    st.lists(st.binary(max_size=20) | st.sampled_from([FIRST, LAST, b'"meta_info"', b":", b"{"]))
)
def test_no_response_is_too_odd(pieces: list[bytes]) -> None:
    assert usage_of(reader(), *pieces) in (None, Usage(5, 16, 2))


def test_a_response_nested_without_end_has_no_usage() -> None:
    assert usage_of(reader(), b'"meta_info":' + b'{"a":' * 1_000_000) is None


def test_8_mb_are_read_in_linear_time() -> None:
    """About 20 ms; were it quadratic, minutes: the time limit of a test would end it."""
    body = b'{"text":"' + b"x" * 4_000_000 + b'","input_embeds":[' + b"0," * 2_000_000 + b"0]}"
    assert len(parsed(body).prompt) == 4_000_002
    assert usage_of(reader(), *[b'x"meta_info"' * 100] * 6000, LAST) == Usage(5, 16, 2)

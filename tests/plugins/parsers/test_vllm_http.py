"""Requests to vLLM with token ids: valid, unusual and hostile."""

import pytest
from hypothesis import given
from parser_checks import make_call, odd_objects, request_or_refusal, usage_of, usages_by_cut

from epp.parsing.plugins import ParseError, Usage
from epp.scheduling import CycleState, LLMRequest
from epp.testing import make_request
from epp_plugins.data_producers import token
from epp_plugins.parsers.vllm_http import Params, VllmHttpParser
from epp_plugins.state_keys import TOKENIZED_PROMPT

PARSER = VllmHttpParser("vllm", Params())


def parsed(body: bytes) -> LLMRequest:
    return PARSER.parse(make_call(PARSER, body))


@pytest.mark.parametrize(
    ("body", "model", "stream", "limit", "salt"),
    [
        pytest.param(
            b'{"request_id":"g-1","model":"m","token_ids":[1, 2],"sampling_params":'
            b'{"max_tokens":32,"temperature":0.5},"stream":true,"cache_salt":"s"}',
            "m",
            True,
            32,
            "s",
            id="all there is",
        ),
        pytest.param(
            b'{"token_ids":[1, 2],"sampling_params":{}}', "", False, None, "", id="no model"
        ),
        pytest.param(
            b'{"model":null,"token_ids":[1, 2],"stream":null,"cache_salt":null,'
            b'"sampling_params":null}',
            "",
            False,
            None,
            "",
            id="nulls",
        ),
        pytest.param(
            b'{"model":"m","token_ids":[1, 2],"sampling_params":[{"max_tokens":3}],"cache_salt":4}',
            "m",
            False,
            None,
            "",
            id="wrong types count as absent",
        ),
        pytest.param(
            b'{"model":"m","token_ids":[1, 2],"sampling_params":{"max_tokens":1.5},"priority":-1,'
            b'"kv_transfer_params":{"do_remote_decode":true},"features":{"mm_hashes":{"image":["h"]}}}',
            "m",
            False,
            None,
            "",
            id="half a token, and fields that do not matter",
        ),
    ],
)
def test_a_request_is_read(
    body: bytes, model: str, stream: bool, limit: int | None, salt: str
) -> None:
    request = parsed(body)
    assert (request.model, request.target_model, request.prompt) == (model, model, b"[1, 2]")
    assert (request.stream, request.max_output_tokens, request.cache_salt) == (stream, limit, salt)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(b"", "JSON object", id="empty"),
        pytest.param(b'"x"', "JSON object", id="no object"),
        pytest.param(b'{"model":"m","prompt":"text"}', "'token_ids'", id="text"),
        pytest.param(b'{"model":"m","token_ids":null}', "'token_ids'", id="null for ids"),
        pytest.param(
            b'{"model":["m"],"token_ids":[1]}', "model not found", id="a list for a model"
        ),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(ParseError, match=text):
        parsed(body)


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(
            b'{"token_ids":[1],"model":"m"}', b'{"token_ids":[1],"model":"n"}', id="named"
        ),
        pytest.param(b'{"token_ids":[1]}', b'{"model":"n","token_ids":[1]}', id="not named"),
    ],
)
def test_another_model_is_put_in(body: bytes, want: bytes) -> None:
    assert PARSER.rewrite(parsed(body), body, "n") == want


def test_the_ids_are_counted_exactly() -> None:
    state = CycleState()
    producer = token.TokenProducer("tokens", token.Params())
    producer.prepare(parsed(b'{"token_ids":[7, 70000, 7]}'), state)
    prompt = state.read(TOKENIZED_PROMPT)
    assert prompt is not None
    # 70000 = 0x011170
    assert (prompt.count, prompt.data) == (3, bytes.fromhex("07000000 70110100 07000000"))


EVENTS = (
    b'data: {"request_id":"g-1","choices":[{"index":0,"token_ids":[5]}],"usage":null}\n\n'
    b'data: {"request_id":"g-1","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":10,'
    b'"total_tokens":17,"prompt_tokens_details":{"cached_tokens":4}}}\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize(
    ("response", "want"),
    [
        pytest.param(EVENTS, Usage(7, 10, 4), id="events"),
        pytest.param(
            b'{"request_id":"g-1","choices":[{"index":0,"token_ids":[5,6],"finish_reason":"stop"}]}',
            None,
            id="a whole response, which has none",
        ),
    ],
)
def test_usage_wherever_the_response_is_cut(response: bytes, want: Usage | None) -> None:
    assert usages_by_cut(lambda: PARSER.response_reader(make_request(), {}), response) == {want}


def test_a_compressed_response_is_not_looked_at() -> None:
    assert PARSER.response_reader(make_request(), {"content-encoding": "zstd"}) is None


@given(odd_objects(("model", "token_ids", "sampling_params", "stream", "cache_salt")))
def test_no_body_does_more_than_be_refused(body: bytes) -> None:
    if request_or_refusal(PARSER, body) is not None:
        usage = usage_of(PARSER.response_reader(parsed(body), {}), body)
        assert usage is None


def test_8_mb_are_read_in_linear_time() -> None:
    """About 20 ms; were it quadratic, minutes: the time limit of a test would end it."""
    body = b'{"token_ids":[' + b"1," * 4_000_000 + b'1],"sampling_params":{"max_tokens":1}}'
    assert parsed(body).max_output_tokens == 1

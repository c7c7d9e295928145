"""Requests and responses of the Anthropic API: valid, unusual and hostile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_checks import make_call, odd_objects, request_or_refusal, usage_of, usages_by_cut

from epp.parsing.plugins import ParseError, ResponseReader, Usage
from epp.scheduling import CycleState, LLMRequest
from epp.testing import make_request
from epp_plugins.data_producers import token
from epp_plugins.parsers.anthropic import AnthropicParser, Params
from epp_plugins.state_keys import TOKENIZED_PROMPT

PARSER = AnthropicParser("anthropic", Params())
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
WHOLE = {"content-type": "application/json"}
HELLO = b'[{"role":"user","content":"Hello"}]'


def parsed(body: bytes, path: str = MESSAGES) -> LLMRequest:
    return PARSER.parse(make_call(PARSER, body, path=path))


def reader(headers: dict[str, str], path: str = MESSAGES) -> ResponseReader | None:
    return PARSER.response_reader(make_request(path=path), headers)


@pytest.mark.parametrize(
    ("body", "tools", "stream", "limit"),
    [
        pytest.param(b'{"model":"m","max_tokens":64,"messages":%s}', b"", False, 64, id="plain"),
        pytest.param(b'{"model":"m","messages":%s,"stream":true}', b"", True, None, id="streaming"),
        pytest.param(
            b'{"model":"m","system":"Be brief.","messages":%s}',
            b'"Be brief."',
            False,
            None,
            id="a system prompt",
        ),
        pytest.param(
            b'{"model":"m","system":[{"type":"text","text":"s","cache_control":'
            b'{"type":"ephemeral"}}],"messages":%s,"tools":[{"name":"t","input_schema":{}}]}',
            b'[{"name":"t","input_schema":{}}][{"type":"text","text":"s","cache_control":'
            b'{"type":"ephemeral"}}]',
            False,
            None,
            id="tools stand before the system prompt",
        ),
        pytest.param(
            b'{"model":"m","system":null,"tools":[],"messages":%s}',
            b"",
            False,
            None,
            id="null and no tools are none",
        ),
        pytest.param(
            b'{"model":"m","messages":%s,"max_tokens":"many","stream":"yes","temperature":[]}',
            b"",
            False,
            None,
            id="wrong types count as absent",
        ),
        pytest.param(
            b'{"model":"m","messages":%s,"max_tokens":true,"metadata":{"user_id":"u"}}',
            b"",
            False,
            None,
            id="true is no number",
        ),
    ],
)
@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS, MESSAGES + "?beta=true"])
def test_a_request_is_read(
    body: bytes, tools: bytes, stream: bool, limit: int | None, path: str
) -> None:
    request = parsed(body % HELLO, path)
    assert (request.model, request.target_model, request.path) == ("m", "m", path)
    assert (request.prompt, request.tools) == (HELLO, tools)
    assert (request.stream, request.max_output_tokens) == (stream, limit)
    assert request.body_bytes == len(body % HELLO)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(b"", "JSON object", id="empty"),
        pytest.param(b"[]", "JSON object", id="no object"),
        pytest.param(b'{"model":"m","messages":[', "JSON object", id="cut off"),
        pytest.param(b'{"model":"m"}', "'messages'", id="no messages"),
        pytest.param(b'{"model":"m","messages":null}', "'messages'", id="null for messages"),
        pytest.param(b'{"messages":[]}', "model not found", id="no model"),
        pytest.param(
            b'{"messages":[],"model":7}', "model not found", id="a model that is a number"
        ),
        pytest.param(b'{"x":' + b"[" * 100_000, "JSON object|deeply", id="nested without end"),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(ParseError, match=text):
        parsed(body)


def test_the_model_may_be_left_out_where_something_else_names_it() -> None:
    call = make_call(PARSER, b'{"messages":[]}', path=MESSAGES, may_lack_model=True)
    assert PARSER.parse(call).model == ""


def test_another_model_replaces_the_name_and_nothing_else() -> None:
    body = b'{"max_tokens": 1e2, "model" : "m", "messages":[{"model":"m"}]}'
    want = b'{"max_tokens": 1e2, "model" : "n", "messages":[{"model":"m"}]}'
    assert PARSER.rewrite(parsed(body), body, "n") == want


def test_another_system_prompt_changes_the_first_tokens_and_the_same_one_does_not() -> None:
    producer = token.TokenProducer("tokens", token.Params())
    data = []
    for system, question in ((b'"one"', b'"a"'), (b'"one"', b'"b"'), (b'"two"', b'"a"')):
        state = CycleState()
        content = b'[{"role":"user","content":%s}]' % question
        producer.prepare(
            parsed(b'{"model":"m","system":%s,"messages":%s}' % (system, content)), state
        )
        prompt = state.read(TOKENIZED_PROMPT)
        assert prompt is not None
        # ("one" + [{"role":"user","content":"a"}]) has 5 + 31 bytes, so 36 / 4
        assert prompt.count == 9
        data.append(prompt.data)
    assert data[0][:4] == data[1][:4] != data[2][:4]


START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1",'
    b'"role":"assistant","content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":25,"output_tokens":1}}}\n\n'
)
TEXT = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
    b'{"type":"text_delta","text":"\\"usage\\":{\\"input_tokens\\":9}"}}\n\n'
)
DELTA = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":15}}\n\n'
)
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
CACHED_START = START.replace(
    b'{"input_tokens":25,',
    b'{"input_tokens":25,"cache_creation_input_tokens":40,"cache_read_input_tokens":100,'
    b'"cache_creation":{"ephemeral_5m_input_tokens":40},',
)


@pytest.mark.parametrize(
    ("response", "want"),
    [
        pytest.param(START + TEXT + DELTA + STOP, Usage(25, 15), id="the two parts together"),
        # 25 fresh, 100 read from the cache, 40 written to it
        pytest.param(CACHED_START + TEXT + DELTA, Usage(165, 15, 100), id="a cached prefix"),
        pytest.param(
            START
            + DELTA.replace(b'"output', b'"input_tokens":5,"cache_read_input_tokens":20,"output'),
            Usage(25, 15, 20),  # 5 + 20: what the end says replaces the 25
            id="the end knows better what was cached",
        ),
        pytest.param(
            CACHED_START + DELTA.replace(b'"output', b'"input_tokens":null,"output'),
            Usage(165, 15, 100),
            id="null says nothing",
        ),
        pytest.param(
            START + DELTA + DELTA.replace(b"15", b"30"), Usage(25, 30), id="deltas are totals"
        ),
        pytest.param(START + TEXT, Usage(25, 1), id="given up early"),
        pytest.param(TEXT + STOP, None, id="no usage"),
        pytest.param(
            START.replace(b'{"input_tokens":25', b'{ "input_tokens" : 25').replace(
                b":{ ", b" : { "
            ),
            Usage(25, 1),
            id="blanks",
        ),
        pytest.param(START.replace(b"25", b'"25"').replace(b":1}", b":-1}"), None, id="no numbers"),
        pytest.param(b"", None, id="nothing"),
    ],
)
def test_usage_of_events_wherever_they_are_cut(response: bytes, want: Usage | None) -> None:
    assert usages_by_cut(lambda: reader(EVENTS), response) == {want}


@pytest.mark.parametrize(
    ("response", "want"),
    [
        pytest.param(
            b'{"id":"msg_1","content":[{"type":"text","text":"Hi"}],"stop_reason":"end_turn",'
            b'"usage":{"input_tokens":12,"output_tokens":6}}',
            Usage(12, 6),
            id="plain",
        ),
        pytest.param(
            b'{"content":[],"usage":{"input_tokens":3,"cache_creation_input_tokens":0,'
            b'"cache_read_input_tokens":2048,"output_tokens":6,"server_tool_use":'
            b'{"web_search_requests":1},"service_tier":"standard"}}',
            Usage(2051, 6, 2048),  # 3 + 2048
            id="cached",
        ),
        pytest.param(
            b'{"content":[{"type":"tool_use","name":"usage","input":{"usage":{"input_tokens":9,'
            b'"cache_read_input_tokens":9}}}],"usage":{"input_tokens":12,"output_tokens":6}}',
            Usage(12, 6),
            id="what a tool is called with is no usage",
        ),
        pytest.param(
            b'{"type":"error","error":{"type":"overloaded_error","message":"m"}}',
            None,
            id="an error",
        ),
        pytest.param(b'{"usage":{"input_tokens":12,"output_tok', None, id="cut off"),
    ],
)
def test_usage_of_a_whole_response(response: bytes, want: Usage | None) -> None:
    assert usages_by_cut(lambda: reader(WHOLE), response) == {want}


def test_the_count_of_tokens_has_no_usage() -> None:
    assert reader(WHOLE, COUNT_TOKENS) is None
    assert reader(WHOLE, COUNT_TOKENS + "?beta=true") is None


def test_a_compressed_response_is_not_looked_at() -> None:
    assert reader({**EVENTS, "content-encoding": "gzip"}) is None


FIELDS = ("model", "messages", "system", "tools", "max_tokens", "stream", "cache_salt")


@given(st.binary(max_size=300) | odd_objects(FIELDS))
def test_no_body_does_more_than_be_refused(body: bytes) -> None:
    request = request_or_refusal(PARSER, body, path=MESSAGES)
    if request is not None and request.model:
        rewritten = PARSER.rewrite(request, body, "other")
        assert rewritten is not None
        again = request_or_refusal(PARSER, rewritten, path=MESSAGES)
        assert again is not None
        assert (again.model, again.prompt) == ("other", request.prompt)


@given(
    st.lists(
        st.binary(max_size=20)
        | st.sampled_from(
            [START, DELTA, b'"usage":', b"{", b"}", b'"', b"\\", b'{"input_tokens":']
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_no_response_is_too_odd(pieces: list[bytes], of_events: bool) -> None:
    usage = usage_of(reader(EVENTS if of_events else WHOLE), *pieces)
    assert usage is None or usage.prompt_tokens >= usage.cached_tokens >= 0


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"model":"m","messages":["' + b"x" * 8_000_000 + b'"]}', id="a long text"),
        pytest.param(b'{"model":"m","messages":[' + b"0," * 4_000_000 + b"0]}", id="many messages"),
        pytest.param(
            b'{"model":"m","messages":[],"a":"' + b"\\n" * 4_000_000 + b'"}', id="escapes"
        ),
        pytest.param(b'{"a":1,' * 1_100_000, id="nested without end"),
    ],
)
def test_8_mb_are_read_in_linear_time(body: bytes) -> None:
    """About 10 ms; were it quadratic, minutes: the time limit of a test would end it."""
    request_or_refusal(PARSER, body, path=MESSAGES)

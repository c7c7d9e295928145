"""Bodies of the OpenAI APIs: valid, unusual and hostile."""

import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_checks import make_call, odd_objects, request_or_refusal, usage_of

from epp.parsing.plugins import ParseError, Usage
from epp.scheduling import LLMRequest
from epp.testing import make_request
from epp_plugins.parsers.openai import OpenAiParser, Params
from epp_plugins.parsers.surrogates import without_half_pairs
from tools.fuzz.growth import calls

PARSER = OpenAiParser("openai", Params())
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
CONVERSATIONS = "/v1/conversations"
IMAGES = "/v1/images/generations"
DEEP = 100_000


def parsed(body: bytes, path: str = COMPLETIONS) -> LLMRequest:
    return PARSER.parse(make_call(PARSER, body, path=path, headers={"a": "b"}))


@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        pytest.param(COMPLETIONS, b'{"model":"m","prompt":"hi"}', b'"hi"', id="a string"),
        pytest.param(
            COMPLETIONS, b'{"model":"m", "prompt" :  "hi"  }', b'"hi"', id="blanks around it"
        ),
        pytest.param(
            COMPLETIONS,
            '{"model":"m","prompt":"héé 你"}'.encode(),
            '"héé 你"'.encode(),
            id="unicode",
        ),
        pytest.param(
            COMPLETIONS,
            rb'{"model":"m","prompt":"\u4f60\ud83d\ude00"}',
            rb'"\u4f60\ud83d\ude00"',
            id="escapes stay as they are",
        ),
        pytest.param(
            COMPLETIONS, b'{"model":"m","prompt":["a","b"]}', b'["a","b"]', id="several strings"
        ),
        pytest.param(COMPLETIONS, b'{"model":"m","prompt":[1, 2]}', b"[1, 2]", id="token ids"),
        pytest.param(
            COMPLETIONS, b'{"model":"m","prompt":[[1],[2,3]]}', b"[[1],[2,3]]", id="nested ids"
        ),
        pytest.param(COMPLETIONS, b'{"model":"m","prompt":""}', b'""', id="an empty string"),
        pytest.param(
            CHAT,
            b'{"messages":[{"role":"user","content":"x"}],"model":"m"}',
            b'[{"role":"user","content":"x"}]',
            id="chat messages",
        ),
        pytest.param(
            CHAT + "?prompt=/completions",
            b'{"model":"m","messages":[],"prompt":"no"}',
            b"[]",
            id="a query string",
        ),
        pytest.param("/x/y/completions", b'{"model":"m","prompt":1}', b"1", id="a path prefix"),
        pytest.param(
            CHAT + "/render", b'{"model":"m","messages":[{}]}', b"[{}]", id="a chat to be rendered"
        ),
        pytest.param(
            COMPLETIONS + "/render", b'{"model":"m","prompt":"x"}', b'"x"', id="one to be rendered"
        ),
        pytest.param(RESPONSES, b'{"model":"m","input":"x"}', b'"x"', id="an input string"),
        pytest.param(
            RESPONSES,
            b'{"input":[{"role":"user","content":"x"}],"instructions":null,"model":"m"}',
            b'[{"role":"user","content":"x"}]',
            id="an input list",
        ),
        pytest.param(
            EMBEDDINGS, b'{"model":"m","input":["a","b"]}', b'["a","b"]', id="texts to embed"
        ),
        pytest.param(EMBEDDINGS, b'{"model":"m","input":[1,2]}', b"[1,2]", id="token ids to embed"),
        pytest.param(
            CONVERSATIONS, b'{"model":"m","items":[{"a":1}]}', b'[{"a":1}]', id="a conversation"
        ),
        pytest.param(IMAGES, b'{"model":"m","prompt":"a cat","n":2}', b'"a cat"', id="an image"),
        pytest.param(
            COMPLETIONS,
            b'{"model":"n","prompt":"a","model":"m","prompt":"b"}',
            b'"b"',
            id="duplicate keys: the last counts",
        ),
        pytest.param(COMPLETIONS, b'{"m\\u006fdel":"m","prompt":"x"}', b'"x"', id="an escaped key"),
        pytest.param(
            COMPLETIONS,
            b'{"model":"m","prompt":"\xff\xfe"}',
            b'"\xff\xfe"',
            id="bytes that are no UTF-8 stay as they are",
        ),
        pytest.param(
            COMPLETIONS,
            b'{"model":"m","prompt":' + b"[" * 400 + b"]" * 400 + b"}",
            b"[" * 400 + b"]" * 400,
            id="an array nested 400 deep",
        ),
    ],
)
def test_the_prompt_is_the_raw_json_of_its_field(path: str, body: bytes, prompt: bytes) -> None:
    request = parsed(body, path)
    assert request.model == request.target_model == "m"
    assert request.prompt == prompt
    assert request.prompt in body
    assert request.body_bytes == len(body)
    assert (request.request_id, request.path) == ("r-1", path)
    assert request.headers == {"a": "b"}


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        pytest.param(COMPLETIONS, b" ", "not a JSON object", id="blank"),
        pytest.param(COMPLETIONS, b"hello", "not a JSON object", id="no JSON"),
        pytest.param(COMPLETIONS, b"[]", "not a JSON object", id="an array"),
        pytest.param(COMPLETIONS, b"null", "not a JSON object", id="null"),
        pytest.param(COMPLETIONS, b'{"model":"m","prompt":"x"', "not a JSON", id="cut off"),
        pytest.param(COMPLETIONS, b'{"model":"m","prompt":"x"}x', "trailing", id="something after"),
        pytest.param(COMPLETIONS, b'{"model":"m","prompt":NaN}', "invalid", id="NaN"),
        pytest.param(COMPLETIONS, b'{"model":"m\xff","prompt":""}', "Unicode", id="a bad model"),
        pytest.param(
            COMPLETIONS,
            b'{"model":"' + b"m" * 4096 + b'","prompt":""}',
            "takes more than 4096 bytes",
            id="a model of 4098 bytes",
        ),
        pytest.param(COMPLETIONS, b'{"prompt":"x"}', "model not found", id="no model"),
        pytest.param(COMPLETIONS, b'{"model":"","prompt":"x"}', "model not found", id="no name"),
        pytest.param(COMPLETIONS, b'{"model":1,"prompt":"x"}', "model not found", id="a number"),
        pytest.param(
            COMPLETIONS, b'{"model":null,"prompt":"x"}', "model not found", id="a null model"
        ),
        pytest.param(
            COMPLETIONS, b'{"model":["m"],"prompt":"x"}', "model not found", id="a list of models"
        ),
        pytest.param(COMPLETIONS, b'{"model":"m"}', "field 'prompt'", id="no prompt"),
        pytest.param(
            COMPLETIONS, b'{"model":"m","prompt": null }', "field 'prompt'", id="a null prompt"
        ),
        pytest.param(CHAT, b'{"model":"m","prompt":"x"}', "field 'messages'", id="no messages"),
        pytest.param(
            CHAT, b'{"model":"m","messages":null}', "field 'messages'", id="null messages"
        ),
        pytest.param(RESPONSES, b'{"model":"m"}', "field 'input'", id="no input"),
        pytest.param(EMBEDDINGS, b'{"model":"m","input":null}', "field 'input'", id="null input"),
        pytest.param(EMBEDDINGS, b'{"input":"x"}', "model not found", id="no model to embed with"),
        pytest.param(IMAGES, b'{"model":"m"}', "field 'prompt'", id="no picture"),
        pytest.param(IMAGES, b'{"model":1,"prompt":"x"}', "model not found", id="a model 1"),
        pytest.param(COMPLETIONS, b"[" * DEEP, "not a JSON object", id="deep arrays"),
        pytest.param(COMPLETIONS, b'{"a":' * DEEP, "nested too deeply", id="deep objects"),
        pytest.param(
            COMPLETIONS, b'{"model":"m","prompt":' + b"[" * DEEP, "nested too", id="a deep prompt"
        ),
        pytest.param(
            COMPLETIONS,
            b'{"model":"m","prompt":"","max_tokens":' + b"[" * DEEP,
            "nested too",
            id="a deep limit",
        ),
    ],
)
def test_the_error_for_a_body_that_breaks_its_promise_says_why(
    path: str, body: bytes, text: str
) -> None:
    with pytest.raises(ParseError, match=text):
        parsed(body, path)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        pytest.param({}, None, id="absent"),
        pytest.param({"max_tokens": 7}, 7, id="max_tokens"),
        pytest.param({"max_completion_tokens": 8}, 8, id="the new name"),
        pytest.param({"max_tokens": 7, "max_completion_tokens": 8}, 8, id="both: the new one"),
        pytest.param({"max_tokens": 7, "max_completion_tokens": None}, 7, id="the new one null"),
        pytest.param({"max_tokens": 0}, 0, id="zero"),
        pytest.param({"max_tokens": 2**63 - 1}, 2**63 - 1, id="the largest"),
        pytest.param({"max_tokens": 2**63}, None, id="more than a server can count"),
        pytest.param({"max_tokens": -(10**400)}, None, id="more than a float can be"),
        pytest.param({"max_tokens": -7}, -7, id="below zero"),
        pytest.param({"max_tokens": "7"}, None, id="a string"),
        pytest.param({"max_tokens": 7.5}, None, id="a float"),
        pytest.param({"max_tokens": True}, None, id="a boolean"),
        pytest.param({"max_tokens": [7]}, None, id="a list"),
        pytest.param({"max_tokens": {"a": 1}}, None, id="an object"),
    ],
)
def test_the_output_limit_is_an_int_or_unknown(
    fields: dict[str, object], limit: int | None
) -> None:
    body = json.dumps({"model": "m", "prompt": "x", **fields}).encode()
    assert parsed(body).max_output_tokens == limit


@pytest.mark.parametrize(
    ("value", "expected"), [("true", True), ("false", False), ('"true"', False), ("1", False)]
)
def test_only_true_streams(value: str, expected: bool) -> None:
    body = f'{{"model":"m","prompt":"x","stream":{value}}}'.encode()
    assert parsed(body).stream is expected


def test_a_limit_of_5000_digits_is_unknown() -> None:
    assert (
        parsed(b'{"model":"m","prompt":"x","max_tokens":%b}' % (b"9" * 5000)).max_output_tokens
        is None
    )


@pytest.mark.parametrize("size", [4094, 5000])
def test_a_model_is_as_long_as_a_name_can_be(size: int) -> None:
    body = b'{"model":"%b","prompt":"%b"}' % (b"m" * 4094, b"x" * size)
    assert parsed(body).model == "m" * 4094


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"s"', "s"),
        ("1", ""),
        ("null", ""),
        (f'"{"s" * 4094}"', "s" * 4094),
        (f'"{"s" * 4095}"', ""),
    ],
)
def test_a_salt_that_is_no_string_or_too_long_is_none(value: str, expected: str) -> None:
    body = f'{{"model":"m","prompt":"x","cache_salt":{value}}}'.encode()
    assert parsed(body).cache_salt == expected


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    body=st.binary()
    | _JSON.map(lambda value: json.dumps(value).encode())
    | st.builds(
        lambda head, tail: head + tail,
        st.sampled_from([b'{"model":"m","prompt":', b'{"model":', b'{"prompt":1,"model":"m"}']),
        st.binary(),
    ),
    path=st.sampled_from(PARSER.claims),
)
def test_any_bytes_are_parsed_or_refused(body: bytes, path: str) -> None:
    try:
        request = parsed(body, path)
    except ParseError:
        return
    is_a_part = request.prompt in body or request.prompt in (without_half_pairs(body) or b"")
    assert is_a_part or path == "/responses"


def has_lone_surrogate(value: object) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    return any("\ud800" <= character <= "\udfff" for character in text)


@given(
    prompt=_JSON.filter(lambda value: value is not None),
    others=st.dictionaries(st.text().filter(lambda key: key != "model"), _JSON, max_size=3),
    model=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    is_ascii=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
def test_the_prompt_is_an_exact_slice_of_the_body(
    prompt: object, others: dict[str, object], model: str, is_ascii: bool, indent: int | None
) -> None:
    document = {**others, "model": model, "prompt": prompt}
    text = json.dumps(document, ensure_ascii=is_ascii, indent=indent)
    body = text.encode("utf-8", "surrogatepass")
    if "Infinity" in text or has_lone_surrogate(document):
        return  # no JSON in the sense of RFC 8259, or of I-JSON; refused or not, as it comes
    request = parsed(body)
    assert request.prompt in body
    assert request.model == model
    assert json.loads(request.prompt) == prompt


@pytest.mark.parametrize(
    ("value", "tools"),
    [
        pytest.param('[{"type": "function"}]', b'[{"type": "function"}]', id="a list"),
        pytest.param("[]", b"", id="an empty list"),
        pytest.param("null", b"", id="null"),
        pytest.param('"odd"', b'"odd"', id="what the model server will refuse"),
    ],
)
def test_tools_are_the_raw_json_of_their_field(value: str, tools: bytes) -> None:
    body = f'{{"model": "m", "messages": [], "tools": {value}}}'.encode()
    assert parsed(body, CHAT).tools == tools


def test_without_tools_there_are_none() -> None:
    assert parsed(b'{"model": "m", "prompt": "x"}').tools == b""


def test_instructions_stand_before_the_input_of_a_response() -> None:
    body = b'{"model": "m", "input": [{"role": "user"}], "instructions": "Be kind", "tools": [1]}'
    request = parsed(body, RESPONSES)
    assert request.prompt == b'["Be kind",[{"role": "user"}]]'
    assert request.tools == b"[1]"


def test_the_limit_of_a_response_has_a_name_of_its_own() -> None:
    body = b'{"model": "m", "input": "x", "max_output_tokens": 9, "max_tokens": 3}'
    assert parsed(body, RESPONSES).max_output_tokens == 9


@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        pytest.param(CONVERSATIONS, b"{}", b"", id="an empty conversation"),
        pytest.param(CONVERSATIONS, b'{"items": null, "model": null}', b"", id="all null"),
        pytest.param(IMAGES, b'{"prompt": "x"}', b'"x"', id="a picture"),
    ],
)
def test_some_apis_need_no_model(path: str, body: bytes, prompt: bytes) -> None:
    request = parsed(body, path)
    assert (request.model, request.prompt) == ("", prompt)
    assert PARSER.rewrite(request, body, "other") is None


def test_a_picture_with_a_model_can_have_another() -> None:
    body = b'{"prompt": "x", "model": "m"}'
    want = b'{"prompt": "x", "model": "n"}'
    assert PARSER.rewrite(parsed(body, IMAGES), body, "n") == want


def test_a_body_may_lack_the_model_that_is_named_elsewhere() -> None:
    body = b'{"prompt": "x"}'
    request = PARSER.parse(make_call(PARSER, body, path=COMPLETIONS, may_lack_model=True))
    assert (request.model, request.target_model) == ("", "")
    assert PARSER.rewrite(request, body, "m") == b'{"model":"m","prompt": "x"}'


FIELDS = ["model", "prompt", "messages", "input", "items", "instructions", "tools", "max_tokens"]


@given(body=odd_objects(FIELDS), path=st.sampled_from(PARSER.claims))
def test_fields_of_any_type_are_read_or_refused(body: bytes, path: str) -> None:
    request = request_or_refusal(PARSER, body, path=path)
    assert request is None or request.path == path


# --- responses --------------------------------------------------------------------------------


USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 10,
    "total_tokens": 17,
    "prompt_tokens_details": {"cached_tokens": 4},
}
RESPONSE_USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 10,
    "output_tokens_details": {"reasoning_tokens": 3},
}
WANT = Usage(7, 10, 4)
CHUNK = {"id": "c", "choices": [{"delta": {"content": 'say "usage":{"prompt_tokens":1}'}}]}
SPACED, TIGHT = (", ", ": "), (",", ":")


def events(*each: object, separators: tuple[str, str] = TIGHT, prefix: str = "data: ") -> bytes:
    lines = [f"{prefix}{json.dumps(event, separators=separators)}\n\n" for event in each]
    return ("".join(lines) + f"{prefix}[DONE]\n\n").encode()


def response_events(**options: Any) -> bytes:
    created = {"type": "response.created", "response": {"status": "queued", "usage": None}}
    tools = [{"parameters": {"properties": {"usage": {"type": "object"}}}}]
    done = {"type": "response.completed", "response": {"tools": tools, "usage": RESPONSE_USAGE}}
    return events(created, {"type": "response.output_text.delta", "delta": "x"}, done, **options)


RESPONSE_BODIES = {
    "a JSON body": json.dumps({"id": "x", "choices": [], "usage": USAGE}).encode(),
    "an indented one": json.dumps({"usage": USAGE, "choices": []}, indent=2).encode(),
    "events that say null until the last": events(
        CHUNK | {"usage": None}, CHUNK | {"usage": None}, {"choices": [], "usage": USAGE}
    ),
    "events without a blank after the colon": events(
        CHUNK, CHUNK | {"usage": USAGE}, prefix="data:"
    ),
    "events with blanks within": events(
        CHUNK | {"usage": None}, {"choices": [], "usage": USAGE}, separators=SPACED
    ),
    "a usage that grows": events(
        CHUNK | {"usage": USAGE | {"completion_tokens": 1}}, CHUNK | {"usage": USAGE}
    ),
    "a response": json.dumps({"object": "response", "usage": RESPONSE_USAGE}).encode(),
    "events of a response": response_events(),
    "events of a response with blanks": response_events(separators=SPACED),
    "carriage returns": events(CHUNK, {"usage": USAGE}).replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("response", RESPONSE_BODIES.values(), ids=RESPONSE_BODIES)
def test_the_last_usage_is_found_however_the_response_is_cut(response: bytes) -> None:
    rng = random.Random(0)
    cuts = [sorted(rng.choices(range(len(response) + 1), k=rng.randrange(12))) for _ in range(300)]
    assert {found(response, []), *(found(response, each) for each in cuts)} == {WANT}
    assert usage_of(reader(), *(response[at : at + 1] for at in range(len(response)))) == WANT


def reader() -> Any:
    return PARSER.response_reader(make_request(), {"content-type": "text/event-stream"})


def found(response: bytes, cuts: list[int]) -> Usage | None:
    edges = [0, *cuts, len(response)]
    return usage_of(reader(), *(response[a:b] for a, b in pairwise(edges)))


COUNT = st.integers(0, 10**6)
EVENT = st.dictionaries(
    st.sampled_from(["id", "usage", "choices", 'us"age', "response"]),
    st.none()
    | st.text(max_size=6)
    | st.just('"usage":{"prompt_tokens":1}')
    | st.just({"prompt_tokens": 3, "service": '}"\\'}),
)


@given(
    before=st.lists(EVENT, max_size=4),
    prompt=COUNT,
    completion=COUNT,
    data=st.data(),
    separators=st.sampled_from([SPACED, TIGHT]),
    prefix=st.sampled_from(["data:", "data: ", ""]),
)
def test_any_cut_of_any_stream_gives_the_same_usage(
    *,
    before: list[dict[str, object]],
    prompt: int,
    completion: int,
    data: st.DataObject,
    separators: tuple[str, str],
    prefix: str,
) -> None:
    usage = {"prompt_tokens": prompt, "note": '}{"', "completion_tokens": completion}
    response = events(*before, {"usage": usage}, separators=separators, prefix=prefix)
    cuts = data.draw(st.lists(st.integers(0, len(response)), max_size=6).map(sorted))
    assert found(response, cuts) == Usage(prompt, completion)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"usage": null}', id="null"),
        pytest.param(b'{"usage": {}}', id="an empty object"),
        pytest.param(b'{"usage": {"prompt_tokens": "7"}}', id="a string"),
        pytest.param(b'{"usage": {"prompt_tokens": -7}}', id="less than none"),
        pytest.param(
            b'{"usage": {"prompt_tokens": 1' + b"0" * 400 + b"}}", id="more than a float can be"
        ),
        pytest.param(b'{"usage": {"prompt_tokens": 7', id="cut off"),
        pytest.param(b'{"usage": {"prompt_tokens": 7, x}}', id="no JSON"),
        pytest.param(b'{"x": "\\"usage\\":{\\"prompt_tokens\\":7}"}', id="text that says so"),
        pytest.param(b'["usage", {"prompt_tokens": 7}]', id="a value of that name"),
        pytest.param(b'{"usage": {"prompt_tokens": 7' + b" " * 10_000, id="longer than is carried"),
    ],
)
def test_a_response_that_does_not_say_has_no_usage(response: bytes) -> None:
    assert usage_of(reader(), response) is None
    assert usage_of(reader(), *(response[at : at + 1] for at in range(len(response)))) is None


def test_a_response_says_one_of_the_counts_only() -> None:
    assert usage_of(reader(), b'{"usage": {"prompt_tokens": 7}}') == Usage(7, 0, 0)


@pytest.mark.parametrize(
    ("headers", "is_read"),
    [
        pytest.param({}, True, id="no headers"),
        pytest.param({"content-type": "application/json; charset=utf-8"}, True, id="JSON"),
        pytest.param({"content-type": "Text/Event-Stream"}, True, id="events"),
        pytest.param({"content-encoding": "identity"}, True, id="identity"),
        pytest.param({"content-encoding": "gzip"}, False, id="gzip"),
        pytest.param({"content-type": "image/png"}, False, id="a picture"),
    ],
)
def test_only_a_response_that_can_be_read_is(headers: dict[str, str], is_read: bool) -> None:
    assert (PARSER.response_reader(make_request(), headers) is not None) is is_read


def test_little_is_kept_of_a_response() -> None:
    scan = reader()
    for _ in range(100):
        scan.feed(b'data: {"usage": {"a": "' + b"x" * 1000)
        assert len(scan.first) + len(scan.last) + len(scan._carried) <= 8192


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b'{"usage":' + b"{", id="never closed"),
        pytest.param(b'{"usage":{"a":"b",', id="flat"),
        pytest.param(b'{"usage":{"a":{},', id="with another in it"),
    ],
)
@pytest.mark.parametrize("more", [b"{", b'"a":"b",'], ids=["brackets", "strings"])
def test_a_usage_without_an_end_is_given_up(start: bytes, more: bytes) -> None:
    def work(size: int) -> int:
        scan, piece = reader(), start + more * size
        return calls(lambda: scan.feed(piece))

    work(20_000)  # what a process does once is not counted
    assert work(200_000) == work(20_000)


def test_a_usage_that_is_too_long_is_not_read() -> None:
    counts = b'"prompt_tokens":1,"note":"'
    for length, found_usage in ((8000, Usage(1)), (9000, None)):
        response = b'{"usage":{' + counts + b"x" * length + b'"}}'
        assert found(response, [len(response)]) == found_usage

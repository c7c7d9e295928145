"""Bodies of the OpenAI APIs, good, odd and hostile."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.parsing import ParseError, parse
from epp.scheduling import LLMRequest

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
DEEP = 100_000


def parsed(body: bytes, path: str = COMPLETIONS) -> LLMRequest:
    return parse("r-1", path, {"a": "b"}, body)


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
        pytest.param(COMPLETIONS, b'{"model":"m\xff","prompt":""}', "utf-8", id="a bad model"),
        pytest.param(
            COMPLETIONS, rb'{"model":"\ud800","prompt":""}', "surrogate", id="a lone surrogate"
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
        pytest.param(
            COMPLETIONS,
            b'{"model":"m","prompt":"","max_tokens":' + b"9" * 5000 + b"}",
            "out of range",
            id="a number of 5000 digits",
        ),
    ],
)
def test_a_body_that_breaks_its_promise_is_told_why(path: str, body: bytes, text: str) -> None:
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
        pytest.param({"max_tokens": 10**40}, 10**40, id="a huge int"),
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


@pytest.mark.parametrize(("value", "expected"), [('"s"', "s"), ("1", ""), ("null", "")])
def test_a_salt_that_is_no_string_is_none(value: str, expected: str) -> None:
    body = f'{{"model":"m","prompt":"x","cache_salt":{value}}}'.encode()
    assert parsed(body).cache_salt == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(COMPLETIONS, b"", id="no body"),
        pytest.param("/v1/models", b"", id="another path without a body"),
        pytest.param("/v1/embeddings", b'{"model":"m","input":"x"}', id="another path"),
        pytest.param("/v1/audio", b"\x00\xff", id="no JSON at another path"),
        pytest.param("", b"{}", id="no path"),
    ],
)
def test_what_is_no_completion_is_scheduled_on_load_alone(path: str, body: bytes) -> None:
    request = parsed(body, path)
    assert (request.model, request.target_model, request.prompt) == ("", "", b"")
    assert request.body_bytes == len(body)
    assert request.path == path


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
    path=st.sampled_from([COMPLETIONS, CHAT, "/"]),
)
def test_any_bytes_are_parsed_or_refused(body: bytes, path: str) -> None:
    try:
        request = parsed(body, path)
    except ParseError:
        return
    assert request.prompt in body


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
    assert parse("r", "/v1/chat/completions", {}, body).tools == tools


def test_without_tools_there_are_none() -> None:
    assert parse("r", COMPLETIONS, {}, b'{"model": "m", "prompt": "x"}').tools == b""

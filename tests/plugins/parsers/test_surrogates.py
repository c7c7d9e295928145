"""Lone surrogates, which JavaScript sends for a text that is cut within an emoji."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.parsing.plugins import HttpCall, NotJsonError
from epp.scheduling import LLMRequest
from epp_plugins.parsers.anthropic import AnthropicParser
from epp_plugins.parsers.anthropic import Params as AnthropicParams
from epp_plugins.parsers.openai import OpenAiParser, Params
from epp_plugins.parsers.surrogates import MAX_ESCAPES, without_half_pairs

CHAT = "/chat/completions"
PARSER = OpenAiParser("openai", Params())


def parsed(body: bytes, claim: str = CHAT) -> LLMRequest:
    return PARSER.parse(HttpCall("r", f"/v1{claim}", {}, body, claim, False))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(rb'"a\ud83d"', rb'"a\ufffd"', id="the first half"),
        pytest.param(rb'"\ude00 b"', rb'"\ufffd b"', id="the second half"),
        pytest.param(rb'"\uD83D\uD83D\uDE00"', rb'"\ufffd\uD83D\uDE00"', id="before a pair"),
        pytest.param(rb'"\ude00\ud83d"', rb'"\ufffd\ufffd"', id="both, in the wrong order"),
        pytest.param(rb'"\\\ud83d"', rb'"\\\ufffd"', id="after an escaped backslash"),
        pytest.param(rb'"\ud83d\n"', rb'"\ufffd\n"', id="before another escape"),
    ],
)
def test_each_half_reads_as_one_unknown_character(text: bytes, expected: bytes) -> None:
    assert without_half_pairs(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(rb'"\ud83d\ude00"', id="a pair"),
        pytest.param(rb'"\\ud83d"', id="an escaped backslash and letters"),
        pytest.param(rb'"\ud7ff\ue000"', id="around the surrogates"),
        pytest.param(rb'"\ud83"', id="a digit is missing"),
        pytest.param(b'"plain"', id="no escape"),
        pytest.param(b"\\" * 64 + rb"ud83d", id="escaped backslashes"),
        pytest.param(b"\\", id="a backslash at the end"),
    ],
)
def test_what_is_no_half_is_left_alone(text: bytes) -> None:
    assert without_half_pairs(text) is None


@given(
    st.text(st.characters() | st.characters(categories=["Cs"]) | st.sampled_from("\\u\U0001f600"))
)
def test_any_text_reads_as_go_reads_it(text: str) -> None:
    body = json.dumps(text).encode()
    mended = without_half_pairs(body) or body
    assert len(mended) == len(body)
    # Pairs that stand in the text as two halves are one character in JSON.
    whole = json.loads(body).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    got = json.loads(mended)
    assert got.count("\ufffd") >= whole.count("\ufffd")
    assert not any("\ud800" <= character <= "\udfff" for character in got)


@pytest.mark.parametrize("half", [rb"\ud83d", rb"\uDE00"])
def test_requests_with_half_a_pair_are_routed(half: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"cut ' + half + b'"}],"stream":true}'
    request = parsed(body)
    assert (request.model, request.stream) == ("m", True)
    assert request.prompt == b'[{"role":"user","content":"cut \\ufffd"}]'
    assert request.body_bytes == len(body)
    anthropic = AnthropicParser("anthropic", AnthropicParams())
    call = HttpCall("r", "/v1/messages", {}, body, "/messages", False)
    assert anthropic.parse(call).prompt == request.prompt


def test_a_model_name_with_half_a_pair_is_read_too() -> None:
    assert parsed(rb'{"model":"m\ud83d","messages":[]}').model == "m\ufffd"


def test_a_rewrite_changes_the_model_and_leaves_the_half_as_it_came() -> None:
    body = rb'{"model":"m","messages":[{"content":"\ud83d"}]}'
    request = parsed(body)
    assert PARSER.rewrite(request, body, "other") == body.replace(b'"m"', b'"other"')


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(rb'{"model":"m","messages":"\ud83d"', id="cut off"),
        pytest.param(
            b'{"model":"m","messages":"' + rb"\ud83d" * (MAX_ESCAPES + 1) + b'"}', id="too many"
        ),
    ],
)
def test_bodies_that_are_faulty_otherwise_are_refused(body: bytes) -> None:
    with pytest.raises(NotJsonError):
        parsed(body)

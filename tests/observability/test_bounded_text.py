"""Client text in logs: truncated, escaped and bounded."""

import json
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.observability.bounded_text import (
    MAX_CHARS,
    MAX_TRACEBACK_CHARS,
    bounded,
    cut,
    cut_middle,
    json_line,
    printable,
    traceback_text,
)

ANY_TEXT = st.text(st.characters(codec=None), max_size=50)
HOSTILE = "\x1b[2J\x07\x7f\x9b31m\u202eevil\u2066\u200f\u061c\u2028\u2029\ufeff\U000e0041\ud800"
ESCAPED = r"\x1b[2J\x07\x7f\x9b31m\u202eevil\u2066\u200f\u061c\u2028\u2029\ufeff\U000e0041\ud800"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llama", "llama"),
        ("m" * MAX_CHARS, "m" * MAX_CHARS),
        ("m" * (MAX_CHARS + 1), "m" * MAX_CHARS + "…+1"),
        ("m" * 1_000_000, "m" * MAX_CHARS + f"…+{1_000_000 - MAX_CHARS}"),
        ("m" * MAX_CHARS + "…+12", "m" * MAX_CHARS + "…+12"),
        ("m" * MAX_CHARS + "…+" + "1" * 40, "m" * MAX_CHARS + "…+42"),
        ("m" * MAX_CHARS + "…+½", "m" * MAX_CHARS + "…+3"),
    ],
    ids=["short", "just short", "one more", "long", "cut before", "not by us", "nor this"],
)
def test_a_text_is_cut_and_says_how_much_is_left_out(text: str, expected: str) -> None:
    assert cut(text) == expected
    assert cut(cut(text)) == expected


def test_of_a_long_traceback_both_ends_are_left() -> None:
    assert cut_middle("abcdefghij", 4) == "ab\n…+6…\nij"
    assert cut_middle("abcd", 4) == "abcd"


def test_what_acts_on_a_terminal_is_escaped() -> None:
    assert printable(HOSTILE) == ESCAPED
    assert json_line({"model": HOSTILE}) == (
        rb'{"model": "\u001b[2J\u0007\u007f\u009b31m\u202eevil\u2066\u200f\u061c\u2028\u2029\ufeff'
        rb'\udb40\udc41\ud800"}'
    )


def test_text_of_all_languages_stays() -> None:
    text = "Übergröße 模型 नमस्ते שלום 👩‍👩‍👧"  # joiners are part of words and of emoji
    assert printable(text) == text
    assert json_line(text).decode() == f'"{text}"'


def is_harmless(text: str) -> bool:
    return not any(
        unicodedata.category(each) in {"Cc", "Cs", "Zl", "Zp"}
        or unicodedata.bidirectional(each) in {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI"}
        or each in "\u2068\u2069\u200e\u200f\u061c"
        for each in text
    )


@given(ANY_TEXT)
def test_no_text_has_anything_harmful_left(text: str) -> None:
    assert is_harmless(printable(text))
    line = json_line({"text": text})
    assert is_harmless(line.decode())
    assert json.loads(line) == {"text": text}


class Row(msgspec.Struct):
    name: str


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (0.5, 0.5),
        (-(10**30), -(10**30)),
        (1 << 1_000_000, "integer of 1000001 bits"),
        (b"a prompt", "8 bytes"),
        (["m" * 300, ("a", {"b"})], ["m" * 256 + "…+44", ["a", ["b"]]]),
        ({"k" * 300: 1, 2: "two"}, {"k" * 256 + "…+44": 1, "2": "two"}),
        (Row("m" * 300), {"name": "m" * 256 + "…+44"}),
        (Broken(), "Broken, which cannot be printed"),
        ({"a": Broken()}, {"a": "Broken, which cannot be printed"}),
        ([*range(1000)], [*range(127), "…+873"]),
        ({n: n for n in range(1000)}, {**{str(n): n for n in range(127)}, "…": "+873"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_plain_and_bounded(value: object, expected: object) -> None:
    assert bounded(value) == expected


def test_a_value_that_holds_itself_is_bounded() -> None:
    value: list[object] = []
    value.append(value)
    assert len(json_line(bounded(value))) < 1000


def test_a_tree_has_no_more_values_than_a_list_may_have() -> None:
    tree: object = "leaf"
    for _ in range(6):
        tree = [tree] * 10
    assert json_line(bounded(tree)).count(b"leaf") <= 128


class UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def raised(error: Exception, depth: int) -> Exception:
    def fail(more: int) -> None:
        if more:
            fail(more - 1)
        raise error

    try:
        fail(depth)
    except Exception as caught:
        return caught
    raise AssertionError


def test_a_traceback_has_the_innermost_calls_and_the_error() -> None:
    text = traceback_text(raised(ValueError("no such model"), 900))
    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith("ValueError: no such model")
    assert text.count("in fail") <= 40


def test_a_traceback_that_quotes_a_body_is_cut_in_the_middle() -> None:
    text = traceback_text(raised(ValueError("start " + "x" * 1_000_000 + " end"), 0))
    assert text.startswith("Traceback (most recent call last):")
    assert "ValueError: start xxx" in text
    assert text.endswith("xxx end")
    assert len(text) < MAX_TRACEBACK_CHARS + 50


def test_an_error_that_fails_to_say_what_it_is_has_a_traceback() -> None:
    assert "UnsayableError" in traceback_text(raised(UnsayableError(), 0))

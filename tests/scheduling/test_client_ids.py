"""Ids of clients: short ones are unchanged, long ones are shortened and stay distinct."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling import bounded_id

HEX_DIGITS = 32
ANYTHING = st.text(st.characters(exclude_categories=()), max_size=200)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="none"),
        pytest.param("alice", id="short"),
        pytest.param("x" * 64, id="64 bytes"),
        pytest.param("ä" * 32, id="64 bytes, 32 characters"),
        pytest.param("€#" * 16, id="64 bytes that look like a hash"),
    ],
)
def test_what_takes_64_bytes_at_most_stays(text: str) -> None:
    assert bounded_id(text) == text


@pytest.mark.parametrize(
    ("text", "start"),
    [
        pytest.param("team-a/" + "x" * 58, "team-a/" + "x" * 24, id="65 bytes"),
        pytest.param("x" * 50_000, "x" * 31, id="50 KB"),
        pytest.param("ä" * 33, "ä" * 15, id="66 bytes of 33 characters, cut between two"),
        pytest.param("\U0001f600" * 17, "\U0001f600" * 7, id="wide ones"),
        pytest.param("a\ud800b", "ab", id="half a character, which has no bytes"),
        pytest.param("\udfff" * 100, "", id="many of them"),
    ],
)
def test_what_takes_more_is_its_beginning_and_a_hash(text: str, start: str) -> None:
    short = bounded_id(text)
    before, sharp, digits = short.rpartition("#")
    assert (before, sharp, len(digits)) == (start, "#", HEX_DIGITS)
    assert set(digits) <= set("0123456789abcdef")
    assert short == bounded_id(text)


def test_the_hash_is_the_same_in_every_replica_and_release() -> None:
    assert bounded_id("x" * 65) == "x" * 31 + "#9537c5fdf120482f7d58d25e9ed583f5"


@given(ANYTHING)
def test_an_id_takes_at_most_64_bytes_and_can_be_written(text: str) -> None:
    assert len(bounded_id(text).encode()) <= 64


@given(ANYTHING, ANYTHING)
def test_different_ids_stay_different(left: str, right: str) -> None:
    assert (bounded_id(left) == bounded_id(right)) == (left == right)


@given(st.text(max_size=100), st.integers(0, 99))
def test_one_character_far_behind_makes_another_id(text: str, place: int) -> None:
    long = "x" * 100 + text.ljust(100, "x")
    other = long[: 100 + place] + "\x00" + long[101 + place :]
    assert (bounded_id(long) == bounded_id(other)) == (long == other)

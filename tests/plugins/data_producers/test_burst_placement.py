"""Placement of a burst's requests: common prefixes together, and the load balanced."""

from array import array
from collections import Counter
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from epp_plugins.data_producers.burst_placement import PlacementRules, common_blocks, place

REPLICAS = ["r0", "r1", "r2"]


def hashes(text: str) -> bytes:
    """Return a prompt with one block per letter, chained: equal as far as the letters are."""
    return array(
        "Q", [xxh3_64_intdigest(text[: end + 1].encode()) for end in range(len(text))]
    ).tobytes()


def placed(prompts: str, rules: PlacementRules, replicas: list[str] | None = None) -> str:
    """Return the number of each prompt's replica, ``-`` for none; prompts are parted by blanks."""
    texts = [hashes(text) for text in prompts.split(" ")]
    found = place(texts, REPLICAS if replicas is None else replicas, rules)
    return "".join("-" if each is None else each[1:] for each in found)


@pytest.mark.parametrize(
    ("prompts", "rules", "want"),
    [
        pytest.param("a a a b b c", PlacementRules(), "00011-", id="groups, and one alone"),
        pytest.param("a bb a bb", PlacementRules(), "1010", id="longer prompts first"),
        pytest.param("a a b b c c d d", PlacementRules(), "00112200", id="in balance"),
        pytest.param("a a a a b", PlacementRules(max_per_replica=2), "0011-", id="two each"),
        # Three replicas with one each, then the one that has least.
        pytest.param(
            "a a a a", PlacementRules(max_per_replica=1), "0120", id="more than there are"
        ),
        pytest.param("abc abd xyz", PlacementRules(), "---", id="alike, but nothing asked"),
        pytest.param(
            "abc abd xyz", PlacementRules(min_colocate_blocks=2), "01-", id="no fair share left"
        ),  # the fair share is ceil(2 / 3) = 1
        pytest.param(
            "abc abd abe abf xyz",
            PlacementRules(min_colocate_blocks=2),
            "0011-",
            id="together up to the fair share",
        ),  # ceil(4 / 3) = 2
        pytest.param(
            "abc abd abe abf",
            PlacementRules(min_colocate_blocks=3),
            "----",
            id="too little in common",
        ),
        pytest.param(
            "abcd abcd abce abxx",
            PlacementRules(min_colocate_blocks=2),
            "0011",
            id="a group first, whole, and it fills its replica",
        ),  # ceil(4 / 3) = 2; the last has two blocks in common with the third
        # r0: 4 blocks; abce: 1 more there, of a fair share of ceil(12 / 3) = 4: r0 is full.
        pytest.param(
            "abcd abcd abce wxyz wxyz",
            PlacementRules(min_colocate_blocks=2, by_blocks=True),
            "00211",
            id="balanced by blocks",
        ),
        pytest.param("aaaa aaaa b b c c", PlacementRules(by_blocks=True), "001122", id="by blocks"),
        # r0 has 4 blocks, r1 1, r2 1: the third short group goes to r1.
        pytest.param(
            "aaaa aaaa b b c c d d",
            PlacementRules(by_blocks=True),
            "00112211",
            id="long ones weigh",
        ),
        pytest.param("", PlacementRules(min_colocate_blocks=1), "-", id="an empty prompt"),
    ],
)
def test_placement(prompts: str, rules: PlacementRules, want: str) -> None:
    assert placed(prompts, rules) == want


def test_without_replicas_nothing_is_placed() -> None:
    assert placed("a a b", PlacementRules(), []) == "---"
    assert place([], REPLICAS, PlacementRules()) == []


@pytest.mark.parametrize(
    ("one", "other", "want"),
    [("abc", "abd", 2), ("abc", "abc", 3), ("abc", "ab", 2), ("abc", "x", 0), ("", "a", 0)],
)
def test_common_blocks(one: str, other: str, want: int) -> None:
    assert common_blocks(hashes(one), hashes(other)) == want
    assert common_blocks(hashes(other), hashes(one)) == want


@given(
    prompts=st.lists(st.text("ab", max_size=5), max_size=30),
    count=st.integers(1, 4),
    rules=st.builds(
        PlacementRules,
        st.sampled_from([-1, 1, 2]),
        st.integers(0, 3),
        st.booleans(),
    ),
)
def test_groups_stay_together_and_only_what_has_something_in_common_is_placed(
    prompts: list[str], count: int, rules: PlacementRules
) -> None:
    replicas = [f"r{number}" for number in range(count)]
    places = place([hashes(each) for each in prompts], replicas, rules)
    members = Counter(prompts)
    assert len(places) == len(prompts)
    least = rules.min_colocate_blocks
    for text, at in zip(prompts, places, strict=True):
        shares = bool(least) and any(
            len(text) >= least and other != text and other[:least] == text[:least]
            for other in prompts
        )
        assert (at is not None) is (bool(text) and (members[text] > 1 or shares))
    for text, number in members.items():
        used = {at for each, at in zip(prompts, places, strict=True) if each == text}
        most = 1 if rules.max_per_replica < 0 else ceil(number / rules.max_per_replica)
        assert len(used) == min(count, most) or used == {None}

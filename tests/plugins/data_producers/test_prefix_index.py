import random
from collections import OrderedDict
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp_plugins.data_producers.prefix_index import (
    SLICE_RUNS,
    PrefixIndex,
    PrefixIndexStatistics,
)
from epp_plugins.data_producers.prefix_tree import _NOTHING_BELOW, Run

BIG = 1000


def chain(text: str) -> list[int]:
    """Return chained hashes, one per letter: equal ones mean equal texts up to there."""
    value, hashes = 1, []
    for letter in text:
        value = (value * 0x9E3779B97F4A7C15 + ord(letter)) % 2**64
        hashes.append(value)
    return hashes


def made(held: dict[str, list[str]], capacity: int = BIG) -> PrefixIndex:
    index = PrefixIndex()
    for endpoint, texts in held.items():
        for text in texts:
            index.add(endpoint, chain(text), capacity)
    return index


def runs(index: PrefixIndex) -> list[Run]:
    return [run for firsts in index._tree.firsts for run in firsts.values()]


def cleared(index: PrefixIndex) -> PrefixIndex:
    """Have the memory of everyone who left taken back."""
    while index._leaving:
        index._clear_slice()
    return index


def digits(value: int) -> set[int]:
    return {number for number in range(value.bit_length()) if value >> number & 1}


def check(index: PrefixIndex) -> None:
    """Assert what is always true of the tree, the LRUs and the counters."""
    tree = index._tree
    holders = {holder.number: holder for holder in (*index._holders.values(), *index._leaving)}
    assert len(holders) == len(index._holders) + len(index._leaving), "a number of two"
    assert not holders.keys() & set(index._free)
    assert index._gone == sum(holder.bit for holder in index._leaving)
    blocks = dict.fromkeys(holders, 0)
    children: dict[Run, list[Run]] = {}
    known = runs(index)
    for run in known:
        children.setdefault(run.parent, []).append(run)
    for run in known:
        start = run.end - len(run.hashes)
        assert run.hashes
        assert start == run.parent.end
        assert run.parent is tree.root or run.parent in known
        held, cut = digits(run.held), digits(run.cut)
        assert cut < held, "nobody holds the last block"
        # A holder of a run holds the one above whole.
        assert run.parent is tree.root or held <= digits(run.parent.held & ~run.parent.cut)
        for number in held:
            holder = holders[number]
            below = sum(number in digits(child.held) for child in children.get(run, ()))
            assert below == sum(
                1 << at for at, bits in enumerate(run.below) if number in digits(bits)
            )
            assert run.holds_below(holder.bit) == (below > 0)
            assert below or run in holder.ends
            if number in cut:
                assert next(iter(holder.ends)) is run
                assert start < holder.cut < run.end
            blocks[number] += (holder.cut if number in cut else run.end) - start
        assert all(digits(bits) <= held for bits in run.below)
    for number, holder in holders.items():
        assert holder.blocks == blocks[number]
        assert all(run in known and run.held & holder.bit for run in holder.ends)
        assert index._names[number] == holder.name
    assert len(index) == sum(len(run.hashes) for run in known)
    assert tree.runs == len(known)
    assert tree.shared == sum(run.held.bit_count() > 1 for run in known)
    assert tree.digits == sum(len(run.below) for run in known)
    assert index._ends == sum(len(holder.ends) for holder in holders.values())
    assert index._entries == sum(blocks.values())
    assert index.bytes <= index.max_bytes
    assert not _NOTHING_BELOW
    assert not tree.root.held


@pytest.mark.parametrize(
    ("held", "want"),
    [
        pytest.param({}, {}, id="nobody holds anything"),
        pytest.param({"x": ["ab"]}, {"x": 2}, id="a leading part"),
        pytest.param({"x": ["abcd"]}, {"x": 4}, id="the whole prompt"),
        pytest.param({"x": ["abcdef"]}, {"x": 4}, id="a longer prompt"),
        pytest.param({"x": ["abcd"], "y": ["a"]}, {"x": 4, "y": 1}, id="a shorter one of another"),
        pytest.param({"x": ["a"], "y": ["abcd"]}, {"x": 1, "y": 4}, id="a longer one of another"),
        pytest.param({"x": ["a", "ab", "abc"]}, {"x": 3}, id="a conversation"),
        pytest.param({"x": ["zbcd"]}, {}, id="another head"),
        pytest.param({"x": ["abzz"]}, {"x": 2}, id="another middle"),
        pytest.param({"x": ["abcz"]}, {"x": 3}, id="another last block"),
        pytest.param({"x": ["az"], "y": ["abcz"]}, {"x": 1, "y": 3}, id="they part twice"),
        pytest.param({"x": ["abz", "abc"], "y": ["aby"]}, {"x": 3, "y": 2}, id="three ways"),
    ],
)
def test_match(held: dict[str, list[str]], want: dict[str, int]) -> None:
    index = made(held)
    assert index.match(chain("abcd")) == want
    check(index)


def test_matching_no_blocks_is_no_match() -> None:
    assert made({"x": ["a"]}).match([]) == {}


@pytest.mark.parametrize("length", range(1, 70))
def test_where_prompts_part_is_found(length: int) -> None:
    index = made({"x": ["a" * 64]})
    assert index.match(chain("a" * length)) == {"x": min(length, 64)}
    assert index.match(chain("a" * (length - 1) + "b")) == (
        {"x": min(length - 1, 64)} if length > 1 else {}
    )


def test_the_least_recently_sent_tail_goes_first() -> None:
    index = made({"x": ["abc", "ayz"]}, 4)  # five blocks: c, the tail of the older one, has to go
    assert index.match(chain("abc")) == {"x": 2}
    assert index.match(chain("ayz")) == {"x": 3}
    check(index)


def test_a_head_sent_again_outlives_what_followed_it() -> None:
    index = made({"x": ["abc", "k", "a", "lm"]}, 4)
    assert index.match(chain("abc")) == {"x": 1}
    assert index.match(chain("k")) == {"x": 1}
    check(index)


def test_an_end_is_as_young_as_what_was_sent_through_it() -> None:
    index = made({"x": ["ab", "k", "abc", "l"]}, 4)
    assert index.match(chain("k")) == {}
    assert index.match(chain("abc")) == {"x": 3}
    check(index)


def test_a_prompt_longer_than_the_capacity_keeps_its_head() -> None:
    index = PrefixIndex()
    index.add("x", range(10), 4)
    assert index.match(range(10)) == {"x": 4}
    assert len(index) == 4
    check(index)


def test_without_capacity_nothing_is_held() -> None:
    index = made({"x": ["abc"]})
    index.add("x", chain("abd"), 0)
    assert index.match(chain("abc")) == {}
    assert (len(index), index.statistics().endpoints) == (0, 0)
    check(index)


def test_a_prompt_longer_than_the_capacity_leaves_nothing_behind() -> None:
    index = PrefixIndex()
    for number in range(5):
        index.add("x", chain(f"{number}bcdefgh"), 3)
    assert (len(index), len(runs(index))) == (3, 1)
    index.remove("x")
    assert len(cleared(index)) == 0


def test_a_smaller_capacity_counts_at_the_next_prompt() -> None:
    index = made({"x": ["abc", "k"]})
    index.add("x", [], 2)
    assert index.match(chain("abc")) == {"x": 1}
    assert index.match(chain("k")) == {"x": 1}
    check(index)


def test_a_much_smaller_capacity_is_reached_in_slices() -> None:
    index = made({"x": [f"{letter}bc" for letter in "klmnopqrst"]})  # 30 blocks in 10 runs
    index._evicted_runs = 4
    left = []
    for _ in range(3):
        index.add("x", [], 5)
        left.append(index.statistics().entries)
        check(index)
    assert left == [18, 6, 5]


def test_evictions_of_one_endpoint_do_not_cut_what_others_hold() -> None:
    index = made({"x": ["abcdef"], "y": ["abcdef"]}, 6)
    for text in "klm":
        index.add("x", chain(text), 6)
    assert index.match(chain("abcdef")) == {"x": 3, "y": 6}
    assert len(runs(index)) == 4, "the run of y is still one"
    index.add("y", chain("n"), 5)  # nobody holds e and f now
    assert index.match(chain("abcdef")) == {"x": 3, "y": 4}
    assert len(index) == 4 + 4
    index.add("z", chain("abcx"), 6)
    check(index)


def test_a_cut_one_counts_up_to_its_cut_where_others_hold_more() -> None:
    index = made({"x": ["abcd"], "y": ["abcdef"]})
    index.add("x", chain("k"), 3)  # leaves a and b
    assert index.match(chain("abcdef")) == {"x": 2, "y": 6}
    check(index)


def test_a_cut_prompt_sent_again_is_whole_again() -> None:
    index = made({"x": ["abcd", "y"], "y": ["abcd"]})
    index.add("x", chain("k"), 4)
    assert index.match(chain("abcd")) == {"x": 2, "y": 4}
    index.add("x", chain("abcd"), 5)
    assert index.match(chain("abcd")) == {"x": 4, "y": 4}
    assert index.statistics().entries == 5 + 4
    check(index)
    index.add("x", chain("l"), 2)  # cut again; what follows it makes it whole, too
    index.add("x", chain("abcdef"), 7)
    assert index.match(chain("abcdef")) == {"x": 6, "y": 4}
    check(index)


def test_a_removed_endpoint_is_forgotten() -> None:
    index = made({"x": ["ab", "kl"], "y": ["a"]})
    index.remove("x")
    index.remove("unknown")
    assert index.match(chain("ab")) == {"y": 1}
    assert (len(cleared(index)), len(runs(index))) == (1, 1)
    index.add("x", chain("kl"), BIG)
    assert index.match(chain("kl")) == {"x": 2}
    assert index.match(chain("ab")) == {"y": 1}
    check(index)


def test_a_conversation_of_many_turns_needs_no_deep_stack() -> None:
    index, turns = PrefixIndex(), 5_000
    hashes = [*range(turns)]
    for turn in range(0, turns + 1, 5):
        index.add("x", hashes[:turn], turns)
    assert index.match(hashes) == {"x": turns}
    index.add("y", hashes, turns)
    index.remove("x")
    cleared(index)
    check(index)
    index.add("y", [2**64 - 1], 1)
    assert len(runs(index)) == 1


def test_the_callers_list_stays_the_callers() -> None:
    index, hashes = PrefixIndex(), chain("abcd")
    index.add("x", hashes, 4)
    index.add("x", chain("abz"), 4)
    hashes.clear()
    assert index.match(chain("abcd")) == {"x": 3}


def test_statistics_count_what_was_asked_and_found() -> None:
    index = made({"x": ["ab"], "y": ["a"]})
    index.match(chain("abcd"))
    index.match(chain("k"))
    assert index.statistics() == PrefixIndexStatistics(
        hashes=2,
        entries=3,
        endpoints=2,
        bytes=index.bytes,
        lookups=2,
        asked_blocks=5,
        hit_blocks=2,
    )


class Model:
    """The index in the plainest words: blocks, and one LRU of them per endpoint."""

    def __init__(self) -> None:
        self.held: dict[str, OrderedDict[int, None]] = {}

    def add(self, endpoint: str, hashes: list[int], capacity: int) -> None:
        own = self.held.setdefault(endpoint, OrderedDict())
        for block in reversed(hashes):
            own.pop(block, None)
            own[block] = None
        while len(own) > capacity:
            own.popitem(last=False)

    def match(self, hashes: list[int]) -> dict[str, int]:
        walked = list(takewhile(lambda h: any(h in own for own in self.held.values()), hashes))
        counts = {name: sum(h in own for h in walked) for name, own in self.held.items()}
        return {name: count for name, count in counts.items() if count}


# Parts of three long prompts, and what leaves them anywhere.
TEXTS = st.builds(
    lambda text, length, more: text[:length] + more,
    st.sampled_from(["aaaaaaaaaaaa", "aaaabbbbbbbb", "baaaaaaaaaaa"]),
    st.integers(0, 12),
    st.text("ab", max_size=2),
)
STEPS = st.tuples(
    st.sampled_from(["add"] * 7 + ["remove"]),
    st.sampled_from("xyz"),
    TEXTS,
    st.sampled_from([3, 10, 14]),
)
Steps = list[tuple[str, str, str, int]]


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=40), st.lists(TEXTS, max_size=5), st.sampled_from([1, 3, 256]))
def test_it_does_what_the_model_does(steps: Steps, asked: list[str], slice_runs: int) -> None:
    index, model = PrefixIndex(slice_runs=slice_runs), Model()
    questions = [chain(text) for text in {*asked, *(text for _, _, text, _ in steps)}]
    for verb, endpoint, text, capacity in steps:
        if verb == "add":
            index.add(endpoint, chain(text), capacity)
            model.add(endpoint, chain(text), capacity)
        else:
            index.remove(endpoint)
            model.held.pop(endpoint, None)
        for hashes in questions:
            assert index.match(hashes) == model.match(hashes)
        distinct = len({h for own in model.held.values() for h in own})
        assert len(index) >= distinct if index._leaving else len(index) == distinct
        assert index.statistics().entries == sum(map(len, model.held.values()))
        assert index.statistics().endpoints == sum(map(bool, model.held.values()))
        check(index)
    for endpoint in "xyz":
        index.remove(endpoint)
    assert not runs(cleared(index))
    assert (len(index), index.bytes, index._gone) == (0, 0, 0)


@given(st.lists(STEPS, max_size=30))
def test_hits_are_the_blocks_that_the_model_finds(steps: Steps) -> None:
    index, model, hits = PrefixIndex(), Model(), 0
    for verb, endpoint, text, capacity in steps:
        if verb == "remove":
            index.remove(endpoint)
            model.held.pop(endpoint, None)
        index.match(chain(text))
        hits += max(model.match(chain(text)).values(), default=0)
        index.add(endpoint, chain(text), capacity)
        model.add(endpoint, chain(text), capacity)
    assert index.statistics().hit_blocks == hits
    assert index.statistics().asked_blocks == sum(len(text) for _, _, text, _ in steps)


@given(st.lists(STEPS, max_size=40), st.integers(0, 4000), st.sampled_from([1, 256]))
def test_the_budget_holds_after_every_step(steps: Steps, budget: int, slice_runs: int) -> None:
    index, model = PrefixIndex(budget, slice_runs=slice_runs), Model()
    for verb, endpoint, text, capacity in steps:
        if verb == "add":
            index.add(endpoint, chain(text), capacity)
            model.add(endpoint, chain(text), capacity)
        else:
            index.remove(endpoint)
            model.held.pop(endpoint, None)
        assert index.bytes <= budget
        check(index)
        # What is given up for the budget is a tail, as for the capacity.
        held = model.match(chain(text))
        assert all(n <= held.get(name, 0) for name, n in index.match(chain(text)).items())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add"] * 5 + ["remove"]),
            st.sampled_from("xyz"),
            st.lists(st.integers(0, 4), max_size=8),
            st.sampled_from([2, 6, 20]),
        ),
        max_size=40,
    )
)
def test_hashes_that_clients_made_equal_do_no_harm(
    steps: list[tuple[str, str, list[int], int]],
) -> None:
    index = PrefixIndex()
    for verb, endpoint, hashes, capacity in steps:
        if verb == "add":
            index.add(endpoint, hashes, capacity)
        else:
            index.remove(endpoint)
        assert all(1 <= n <= len(hashes) for n in index.match(hashes).values())
    for endpoint in "xyz":
        index.remove(endpoint)
    assert (len(cleared(index)), index.bytes, len(runs(index))) == (0, 0, 0)


def filled(budget: int, *, endpoints: int, prompts: int) -> PrefixIndex:
    index, drawn = PrefixIndex(budget), random.Random(7).getrandbits
    for number in range(prompts):
        index.add(f"e{number % endpoints}", [drawn(64) for _ in range(4)], BIG * BIG)
    return index


def test_one_that_is_sent_more_pays_for_it() -> None:
    index, drawn = filled(100_000, endpoints=3, prompts=150), random.Random(8).getrandbits
    quiet = [chain("quiet"), chain("still")]
    for hashes in quiet:
        index.add("quiet", hashes, BIG)
    for _ in range(2000):
        index.add("e0", [drawn(64) for _ in range(4)], BIG)
    assert [index.match(hashes) for hashes in quiet] == [{"quiet": 5}, {"quiet": 5}]
    assert [index._holders[name].blocks for name in ("e1", "e2")] == [200, 200]
    assert index.bytes <= 100_000
    check(index)


def test_a_newcomer_grows_at_the_cost_of_those_with_more() -> None:
    index, drawn = filled(100_000, endpoints=3, prompts=1000), random.Random(8).getrandbits
    mine = [[drawn(64) for _ in range(4)] for _ in range(20)]
    for hashes in mine:
        index.add("new", hashes, BIG)
    assert [index.match(hashes) for hashes in mine] == [{"new": 4}] * 20
    blocks = {name: holder.blocks for name, holder in index._holders.items()}
    others = [blocks[f"e{n}"] for n in range(3)]
    assert max(others) - min(others) <= 80, "as much as the newcomer has got"
    check(index)


def test_who_has_left_goes_first_for_the_budget() -> None:
    index = filled(100_000, endpoints=3, prompts=1000)
    index._slice_runs = 1
    before = {name: holder.blocks for name, holder in index._holders.items()}
    index.remove("e2")
    for number in range(10):
        # Three times as large as one of e2.
        index.add("e0", chain(f"{number}" + "m" * 99), BIG * BIG)
    assert index._holders["e1"].blocks == before["e1"]
    assert index._holders["e0"].blocks == before["e0"] + 1000
    assert index._leaving
    check(index)


def test_a_budget_that_holds_nothing_holds_nothing() -> None:
    index = PrefixIndex(100)
    index.add("x", chain("abc"), BIG)
    assert (index.match(chain("abc")), index.bytes) == ({}, 0)


def test_removing_is_hidden_at_once_and_cleared_in_slices() -> None:
    index, prompts = PrefixIndex(), 3 * SLICE_RUNS
    for number in range(prompts):
        index.add("x", [number], BIG)
    index.add("y", [0], BIG)
    index.remove("x")
    assert (index.match([0]), index.match([1])) == ({"y": 1}, {})
    assert len(index) == prompts, "nothing is cleared yet"
    left = []
    for _ in range(4):
        index.add("y", [0], BIG)
        left.append(len(index))
    # The last block of x is y's too.
    assert left == [2 * SLICE_RUNS + 1, SLICE_RUNS + 1, 1, 1]
    assert (index._gone, index._leaving) == (0, [])
    check(index)


def test_a_number_is_given_again_only_when_its_bits_are_gone() -> None:
    index = PrefixIndex()
    for number in range(SLICE_RUNS + 1):
        index.add("x", [number], BIG)
    index.remove("x")
    index.add("x", [1], BIG)  # the same name, while the old bits are cleared
    assert index._holders["x"].number == 1
    assert (index.match([0]), index.match([1]), index.match([SLICE_RUNS])) == ({}, {"x": 1}, {})
    index.add("y", [2], BIG)  # clears the last of the old ones first
    assert index._holders["y"].number == 0
    assert (index.match([2]), index.match([SLICE_RUNS])) == ({"y": 1}, {})
    check(index)


@pytest.mark.parametrize("count", [2, 29, 30, 31, 64, 130])
def test_one_walk_finds_the_longest_prefix_of_every_endpoint(count: int) -> None:
    index, hashes = PrefixIndex(), [*range(count)]
    for number in range(count):
        index.add(f"e{number}", hashes[: number + 1], BIG)
    assert index.match(hashes) == {f"e{n}": n + 1 for n in range(count)}
    for number in range(count):
        index.add(f"e{number}", hashes, BIG)
    assert index.match(hashes) == {f"e{n}": count for n in range(count)}
    index.remove("e1")
    index.add("other", hashes[:1], BIG)
    assert index.match(hashes) == {
        "other": 1,
        **{f"e{n}": count for n in range(count) if n != 1},
    }
    check(index)


def test_the_names_of_a_set_follow_its_numbers() -> None:
    index = made({"x": ["a"], "y": ["a"], "z": ["a"]})
    assert index.match(chain("a")) == {"x": 1, "y": 1, "z": 1}
    index.remove("y")
    index.add("new", chain("a"), BIG)
    assert index.match(chain("a")) == {"x": 1, "new": 1, "z": 1}
    assert index._holders["new"].number == 1

from collections import OrderedDict
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp_plugins.data_producers.prefix_index import PrefixIndex, PrefixIndexStatistics

BIG = 1000


@pytest.mark.parametrize(
    ("held", "want"),
    [
        pytest.param({}, {}, id="nobody holds anything"),
        pytest.param({"a": [1, 2]}, {"a": 2}, id="a leading part"),
        pytest.param({"a": [1, 2, 3, 4]}, {"a": 4}, id="the whole prompt"),
        pytest.param({"a": [1, 2, 3, 4], "b": [1]}, {"a": 4, "b": 1}, id="runs of holders"),
        pytest.param({"a": [2, 3, 4]}, {}, id="without its head it counts nothing"),
        # The reference's rule: every holder of each hash counts, until nobody holds one.
        pytest.param({"a": [1, 2, 3], "b": [1, 3]}, {"a": 3, "b": 2}, id="a gap of one holder"),
        pytest.param({"a": [1, 2], "b": [2, 3]}, {"a": 2, "b": 2}, id="a holder of later blocks"),
        pytest.param({"a": [1, 2, 9, 4]}, {"a": 2}, id="another middle"),
    ],
)
def test_match(held: dict[str, list[int]], want: dict[str, int]) -> None:
    index = PrefixIndex()
    for endpoint, hashes in held.items():
        index.add(endpoint, hashes, BIG)
    assert index.match([1, 2, 3, 4]) == want


def test_matching_no_blocks_is_no_match() -> None:
    index = PrefixIndex()
    index.add("a", [1], BIG)
    assert index.match([]) == {}


def test_the_least_recently_sent_tail_goes_first() -> None:
    index = PrefixIndex()
    index.add("a", [1, 2, 3], 4)
    index.add("a", [1, 8, 9], 4)  # five blocks: 3, the tail of the older prompt, has to go
    assert index.match([1, 2, 3]) == {"a": 2}
    assert index.match([1, 8, 9]) == {"a": 3}


def test_a_prompt_longer_than_the_capacity_keeps_its_head() -> None:
    index = PrefixIndex()
    index.add("a", range(10), 4)
    assert index.match(range(10)) == {"a": 4}
    assert len(index) == 4


def test_a_removed_endpoint_is_forgotten_and_its_bit_used_again() -> None:
    index = PrefixIndex()
    index.add("a", [1, 2], BIG)
    index.add("b", [1], BIG)
    index.remove("a")
    index.remove("unknown")
    assert index.match([1, 2]) == {"b": 1}
    index.add("c", [7], BIG)
    assert index._holders["c"].bit == 1
    assert index.match([7, 1]) == {"c": 1, "b": 1}


def test_statistics_count_what_was_asked_and_found() -> None:
    index = PrefixIndex()
    index.add("a", [1, 2], BIG)
    index.add("b", [1], BIG)
    index.match([1, 2, 3, 4])
    index.match([5])
    assert index.statistics() == PrefixIndexStatistics(
        hashes=2, entries=3, endpoints=2, lookups=2, asked_blocks=5, hit_blocks=2
    )


class Model:
    """The index in the plainest words."""

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


HASHES = st.lists(st.integers(0, 12), unique=True, max_size=10)
STEPS = st.tuples(
    st.sampled_from(["add", "add", "remove"]), st.sampled_from("abcde"), HASHES, st.integers(1, 8)
)


@given(st.lists(STEPS, max_size=20), HASHES)
def test_it_does_what_the_model_does(
    steps: list[tuple[str, str, list[int], int]], asked: list[int]
) -> None:
    index, model = PrefixIndex(), Model()
    for verb, endpoint, hashes, capacity in steps:
        if verb == "add":
            index.add(endpoint, hashes, capacity)
            model.add(endpoint, hashes, capacity)
        else:
            index.remove(endpoint)
            model.held.pop(endpoint, None)
        assert index.match(asked) == model.match(asked)
    assert len(index) == len({h for own in model.held.values() for h in own})
    assert index.statistics().entries == sum(map(len, model.held.values()))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 9))))
def test_what_an_endpoint_holds_of_a_prompt_is_a_leading_part(
    steps: list[tuple[str, int, int]],
) -> None:
    """Chains share their first three blocks, as prompts with one system prompt do."""
    chains = [[0, 1, 2, *range(10 * n, 10 * n + 6)] for n in range(1, 5)]
    index = PrefixIndex()
    for endpoint, chain, length in steps:
        index.add(endpoint, chains[chain][:length], 7)
        for hashes in chains:
            for name, count in index.match(hashes).items():
                held = index._holders[name].hashes
                assert [h for h in hashes if h in held] == hashes[:count]

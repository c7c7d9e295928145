"""Prompts of requests in flight stay in the prefix index, as they do in a server's cache."""

from collections import OrderedDict
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plugins.data_producers.test_prefix_index import BIG, Steps, chain, check, made

from epp_plugins.data_producers.prefix_index import SPARED_RUNS, PrefixIndex, PromptUse


def used(index: PrefixIndex, text: str, capacity: int, endpoint: str = "x") -> PromptUse:
    use = index.add_in_use(endpoint, chain(text), capacity)
    assert use is not None
    return use


def held(index: PrefixIndex, *texts: str) -> list[int]:
    """Return how much of each text x holds."""
    return [index.match(chain(text)).get("x", 0) for text in texts]


def test_a_prompt_in_use_stays_while_younger_ones_leave() -> None:
    index = PrefixIndex()
    used(index, "ab", 4)
    for text in ("kl", "mn", "op"):
        index.add("x", chain(text), 4)
    assert held(index, "ab", "kl", "mn", "op") == [2, 0, 0, 2]
    check(index)


def test_a_released_prompt_is_the_youngest() -> None:
    index = PrefixIndex()
    use = used(index, "ab", 6)
    for text in ("kl", "mn"):
        index.add("x", chain(text), 6)
    index.release(use)
    index.add("x", chain("op"), 6)
    index.add("x", chain("qr"), 6)
    assert held(index, "ab", "kl", "mn") == [2, 0, 0], "the others were sent after it"
    index.add("x", chain("st"), 6)
    assert held(index, "ab") == [0]
    check(index)


def test_a_prompt_stays_until_its_last_use_ends() -> None:
    index = PrefixIndex()
    first, second = used(index, "ab", 2), used(index, "ab", 2)
    index.release(first)
    index.add("x", chain("kl"), 2)
    assert held(index, "ab", "kl") == [2, 0]
    index.release(second)
    index.add("x", chain("kl"), 2)
    assert held(index, "ab", "kl") == [0, 2]


def test_a_shared_beginning_stays_with_the_prompt_in_use() -> None:
    index = made({"x": ["abc"]})
    used(index, "abz", 4)
    index.add("x", chain("k"), 4)
    assert held(index, "abc", "abz", "k") == [2, 3, 1]


def test_more_in_use_than_fits_is_held_until_it_is_released() -> None:
    index = PrefixIndex()
    uses = [used(index, text, 3) for text in ("ab", "kl", "mn")]
    assert held(index, "ab", "kl", "mn") == [2, 2, 2]
    for use in uses:
        index.release(use)
    index.add("x", [], 3)
    assert held(index, "ab", "kl", "mn") == [0, 1, 2]
    check(index)


def test_an_eviction_passes_by_a_limited_number_of_prompts_in_use() -> None:
    index = PrefixIndex()
    for number in range(SPARED_RUNS + 10):
        used(index, f"{number:03d}", BIG)
    index.add("x", chain("kl"), BIG)
    left = []
    for _ in range(2):
        index.add("x", [], 10)
        left.append(held(index, "kl", "000"))
    assert left == [[2, 3], [0, 3]]
    check(index)


def test_a_use_at_an_endpoint_that_has_left_ends_without_effect() -> None:
    index = PrefixIndex()
    use = used(index, "ab", 4)
    index.remove("x")
    index.add("x", chain("ab"), 4)
    index.release(use)
    assert held(index, "ab") == [2]
    check(index)


def test_the_budget_evicts_prompts_in_use() -> None:
    index = PrefixIndex(2_000)
    uses = [used(index, f"{number:03d}", BIG) for number in range(50)]
    assert index.bytes <= 2_000
    check(index)
    for use in uses:
        index.release(use)
    assert held(index, "049") == [3]
    check(index)


@pytest.mark.parametrize(
    "hashes",
    [pytest.param([], id="no blocks"), pytest.param([2, 7], id="a block with the hash of another")],
)
def test_what_cannot_be_found_is_not_in_use(hashes: list[int]) -> None:
    index = PrefixIndex()
    for prompt in ([1], [1, 2]):
        index.add("x", prompt, 4)
    assert index.add_in_use("x", hashes, 4) is None
    index.add("x", chain("abcd"), 4)
    assert index.match(chain("abcd")) == {"x": 4}


class Cache:
    """A server's cache in the plainest words: blocks, of which those in use are not evicted."""

    def __init__(self) -> None:
        self.blocks: OrderedDict[int, None] = OrderedDict()
        self.in_use: list[list[int]] = []

    def add(self, hashes: list[int], capacity: int, *, is_in_use: bool) -> None:
        if is_in_use:
            self.in_use.append(hashes)
        self.touch(hashes)
        kept = {block for prompt in self.in_use for block in prompt}
        for block in [each for each in self.blocks if each not in kept]:
            if len(self.blocks) <= capacity:
                break
            del self.blocks[block]

    def release(self, number: int) -> None:
        self.touch(self.in_use.pop(number))

    def touch(self, hashes: Iterable[int]) -> None:
        for block in reversed([*hashes]):
            self.blocks.pop(block, None)
            self.blocks[block] = None


TEXTS = st.builds(
    lambda text, length, more: text[:length] + more,
    st.sampled_from(["aaaaaaaa", "aaabbbbb", "baaaaaaa"]),
    st.integers(1, 8),
    st.text("ab", max_size=2),
)


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "use", "use", "release", "remove"]),
            st.sampled_from("xy"),
            TEXTS,
            st.sampled_from([12, 14, 20]),
        ),
        max_size=40,
    )
)
def test_it_holds_what_a_cache_that_keeps_running_prompts_holds(steps: Steps) -> None:
    index = PrefixIndex()
    caches, uses = {"x": Cache(), "y": Cache()}, {"x": list[PromptUse](), "y": list[PromptUse]()}
    for verb, endpoint, text, capacity in steps:
        cache, own, hashes = caches[endpoint], uses[endpoint], chain(text)
        if verb == "remove":
            index.remove(endpoint)
            caches[endpoint], uses[endpoint] = Cache(), []
        elif verb == "release" and own:
            number = capacity % len(own)
            index.release(own.pop(number))
            cache.release(number)
        elif verb == "use":
            own.append(used(index, text, capacity, endpoint))
            cache.add(hashes, capacity, is_in_use=True)
        else:
            index.add(endpoint, hashes, capacity)
            cache.add(hashes, capacity, is_in_use=False)
        assert {h.name: h.blocks for h in index._holders.values() if h.blocks} == {
            name: len(each.blocks) for name, each in caches.items() if each.blocks
        }
        for _, _, asked, _ in steps:
            wanted = chain(asked)
            assert index.match(wanted) == {
                name: count
                for name, each in caches.items()
                if (count := sum(block in each.blocks for block in wanted))
            }
        check(index)

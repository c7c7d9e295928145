import random
from collections.abc import Callable, Mapping, Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from epp.observability.metric_children import Histogram
from epp.observability.plugins import PluginCounter, PluginLabels
from epp.parsing.plugins import Usage
from epp.request_control.plugins import RESPONSE_USAGE, EndCause
from epp.scheduling import (
    NEVER_SCRAPED,
    CycleState,
    Endpoint,
    LLMRequest,
    Plugin,
    ProfileResult,
    Scheduler,
    SchedulerProfile,
    SchedulingResult,
    ScoredEndpoint,
    StateKey,
    WeightedScorer,
)
from epp.testing import make_endpoint, make_request
from epp_plugins.data_producers.approx_prefix_cache import (
    ApproxPrefixCacheProducer,
    Params,
)
from epp_plugins.data_producers.prefix_hashes import LONG_PROMPT_BYTES, hash_blocks, seed_of
from epp_plugins.data_producers.token import Params as TokenParams
from epp_plugins.data_producers.token import TokenProducer
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.pickers.max_score import Params as PickerParams
from epp_plugins.profile_handlers.single_profile import Params as HandlerParams
from epp_plugins.profile_handlers.single_profile import SingleProfileHandler
from epp_plugins.scorers.prefix_cache import Params as ScorerParams
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer
from epp_plugins.state_keys import (
    PREFILL_PROFILE,
    PREFIX_MATCHES,
    PrefixMatches,
    prefix_matches_of,
)

BLOCK = 64 * 4  # bytes in the smallest block
DEFAULT_NAME = "approx-prefix-cache-producer"


def made(
    parameters: Mapping[str, object] | None = None, name: str = DEFAULT_NAME
) -> ApproxPrefixCacheProducer:
    return ApproxPrefixCacheProducer(name, msgspec.convert(parameters or {}, Params))


def looked_up(
    producer: ApproxPrefixCacheProducer,
    prompt: bytes,
    endpoints: Sequence[Endpoint],
    *,
    model: str = "llama",
    salt: str = "",
) -> tuple[CycleState, PrefixMatches]:
    """Prepare and attach as the director does."""
    request = make_request(prompt=prompt, target_model=model, cache_salt=salt)
    state = CycleState()
    TokenProducer("token", TokenParams()).prepare(request, state)
    producer.prepare(request, state)
    producer.attach(request, endpoints, state)
    matches = state.read(prefix_matches_of(producer.name))
    assert matches is not None
    return state, matches


def chosen(producer: ApproxPrefixCacheProducer, state: CycleState, **profiles: Endpoint) -> None:
    """Tell the producer of a decision; the first profile is the primary."""
    results = {n: ProfileResult(n, [ScoredEndpoint(e, 1.0)]) for n, e in profiles.items()}
    producer.post_schedule(make_request(), SchedulingResult(results, next(iter(results))), state)


@given(st.integers(0, 3 * LONG_PROMPT_BYTES), st.sampled_from([256, 512, 1000]))
@example(LONG_PROMPT_BYTES, 256)
@example(LONG_PROMPT_BYTES - 1, 256)
@example(LONG_PROMPT_BYTES + 1, 256)
def test_each_hash_is_seeded_with_the_one_before(size: int, block_bytes: int) -> None:
    data = bytes(n % 251 for n in range(size))
    want, seed = [], 7
    for start in range(0, size, block_bytes):
        seed = xxh3_64_intdigest(data[start : start + block_bytes], seed)
        want.append(seed)
    assert hash_blocks(data, block_bytes, 7) == want


@pytest.mark.parametrize(
    ("second", "want", "total"),
    [
        pytest.param(b"x" * (3 * BLOCK), 3, 3, id="the same prompt"),
        pytest.param(b"x" * (3 * BLOCK) + b"more", 3, 4, id="a longer one: its partial block"),
        pytest.param(b"x" * (2 * BLOCK) + b"y" * BLOCK, 2, 3, id="another third block"),
        pytest.param(b"y" + b"x" * (3 * BLOCK - 1), 0, 3, id="another first byte"),
        pytest.param(b"x" * 10, 0, 1, id="a piece of the first block"),
    ],
)
def test_the_second_prompt_finds_what_the_first_left(second: bytes, want: int, total: int) -> None:
    producer, pod = made(), make_endpoint("a")
    state, first = looked_up(producer, b"x" * (3 * BLOCK), [pod])
    assert (first.blocks, first.total_blocks) == ({}, 3)
    chosen(producer, state, default=pod)
    _, matches = looked_up(producer, second, [pod])
    assert matches.blocks.get("a", 0) == want
    assert (matches.total_blocks, matches.block_size) == (total, 64)


def test_a_partial_last_block_matches_its_repeat() -> None:
    producer, pod = made(), make_endpoint("a")
    state, _ = looked_up(producer, b"x" * (BLOCK + 7), [pod])
    chosen(producer, state, default=pod)
    assert looked_up(producer, b"x" * (BLOCK + 7), [pod])[1].blocks == {"a": 2}


@pytest.mark.parametrize(
    ("model", "salt"),
    [("other", ""), ("llama", "tenant"), ("llam", "a")],
    ids=["another model", "another salt", "the same letters split elsewhere"],
)
def test_models_and_salts_share_nothing(model: str, salt: str) -> None:
    producer, pod = made(), make_endpoint("a")
    state, _ = looked_up(producer, b"x" * BLOCK, [pod])
    chosen(producer, state, default=pod)
    assert looked_up(producer, b"x" * BLOCK, [pod], model=model, salt=salt)[1].blocks == {}


def test_a_lone_surrogate_in_a_model_name_is_hashed() -> None:
    assert seed_of("\ud800", "\udfff") != seed_of("\ud801", "\udfff")


def test_a_request_without_a_prompt_has_no_blocks() -> None:
    producer, pod = made(), make_endpoint("a")
    state, matches = looked_up(producer, b"", [pod])
    assert (matches.blocks, matches.total_blocks) == ({}, 0)
    chosen(producer, state, default=pod)
    assert len(producer.index) == 0


@pytest.mark.parametrize(
    ("params", "engine_block", "want"),
    [
        pytest.param({}, 0, 64, id="the default 16 is raised"),
        pytest.param({}, 16, 64, id="an engine's 16 is raised"),
        pytest.param({}, 128, 128, id="an engine's 128 is taken"),
        pytest.param({"autoTune": False}, 128, 64, id="the engine is ignored without autoTune"),
        pytest.param({"blockSizeTokens": 256}, 0, 256, id="configured"),
        pytest.param({"blockSizeTokens": 256}, 128, 128, id="the engine goes first"),
        pytest.param({"blockSize": 256}, 0, 256, id="the deprecated name"),
        pytest.param({"blockSize": 256, "blockSizeTokens": 128}, 0, 128, id="the new name wins"),
    ],
)
def test_block_size(params: dict[str, object], engine_block: int, want: int) -> None:
    pods = [make_endpoint("a", cache_block_size=engine_block), make_endpoint("b")]
    _, matches = looked_up(made(params), b"x" * 4096, pods)
    assert matches.block_size == want
    assert matches.total_blocks == 4096 // (4 * want)


@pytest.mark.parametrize(
    ("params", "want"),
    [
        pytest.param({"maxPrefixTokensToMatch": 128}, 2, id="tokens"),
        pytest.param(
            {"maxPrefixTokensToMatch": 128, "maxPrefixBlocksToMatch": 5}, 2, id="tokens win"
        ),
        pytest.param(
            {"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 5}, 5, id="blocks otherwise"
        ),
    ],
)
def test_no_more_is_hashed_than_allowed(params: dict[str, object], want: int) -> None:
    _, matches = looked_up(made(params), b"x" * (10 * BLOCK), [make_endpoint("a")])
    assert matches.total_blocks == want


def test_hashes_are_made_once_per_block_size() -> None:
    producer, pod = made(), make_endpoint("a")
    request = make_request(prompt=b"x" * 4096)
    state, _ = looked_up(producer, request.prompt, [pod])
    hashed = state.read(StateKey[dict[int, list[int]]](f"hashed-prompt/{producer.name}"))
    assert hashed is not None
    first = hashed[64]
    producer.attach(request, [pod], state)
    producer.attach(request, [make_endpoint("b", cache_block_size=128)], state)
    assert list(hashed) == [64, 128]
    assert hashed[64] is first


def test_every_look_up_is_fresh() -> None:
    producer, pod = made(), make_endpoint("a")
    waits, before = looked_up(producer, b"x" * BLOCK, [pod])
    other, _ = looked_up(producer, b"x" * BLOCK, [pod])
    chosen(producer, other, default=pod)
    producer.attach(make_request(prompt=b"x" * BLOCK), [pod], waits)
    assert before.blocks == {}
    assert waits.read(PREFIX_MATCHES) == PrefixMatches({"a": 1}, 1, 64)


def test_a_burst_sees_itself_where_only_the_scheduler_runs() -> None:
    producer, pods = made(), [make_endpoint("a"), make_endpoint("b")]
    picker = MaxScorePicker("pick", PickerParams(), rng=random.Random(0))
    scheduler = Scheduler(
        SingleProfileHandler("single", HandlerParams()),
        {"default": SchedulerProfile(name="default", picker=picker)},
        post_schedule=[producer],
    )
    waits, _ = looked_up(producer, b"x" * BLOCK, pods)
    state, _ = looked_up(producer, b"x" * BLOCK, pods)
    chosen_name = scheduler.schedule(make_request(), pods, state).endpoints[0].endpoint.name
    producer.attach(make_request(prompt=b"x" * BLOCK), pods, waits)
    assert waits.read(PREFIX_MATCHES) == PrefixMatches({chosen_name: 1}, 1, 64)


@pytest.mark.parametrize("name", [None, "first-stage"], ids=["by default", "named by a handler"])
def test_a_prefill_endpoint_holds_the_prompt_too(name: str | None) -> None:
    producer, pods = made(), [make_endpoint(n) for n in "abc"]
    state, _ = looked_up(producer, b"x" * BLOCK, pods)
    if name is not None:
        state.write(PREFILL_PROFILE, name)
    chosen(producer, state, **{"decode": pods[0], name or "prefill": pods[1], "encode": pods[2]})
    assert looked_up(producer, b"x" * BLOCK, pods)[1].blocks == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("parameters", "cache_blocks", "cache_block_size", "want"),
    [
        # 20 blocks of 16 tokens are 320 tokens, twice that before more is known: 10 blocks of 64.
        pytest.param({}, 20, 16, 10, id="the engine's cache, in blocks of the index"),
        # 3 blocks of 128 tokens, hashed by 64 tokens: 6 blocks, twice that before more is known.
        pytest.param({"autoTune": False}, 3, 128, 12, id="larger blocks of the engine"),
        pytest.param({}, 0, 0, 3, id="unknown"),
        pytest.param({}, 5, 0, 3, id="the engine's blocks are of unknown size"),
        pytest.param({}, 1, 16, 3, id="twice the engine's cache is less than a block"),
        pytest.param({}, -20, 16, 3, id="the engine's page is wrong"),
    ],
)
def test_capacity(
    parameters: dict[str, object], cache_blocks: int, cache_block_size: int, want: int
) -> None:
    producer = made({"lruCapacityPerServer": 3, **parameters})
    pod = make_endpoint("a", cache_blocks=cache_blocks, cache_block_size=cache_block_size)
    state, _ = looked_up(producer, b"x" * (15 * BLOCK), [pod])
    chosen(producer, state, default=pod)
    _, matches = looked_up(producer, b"x" * (15 * BLOCK), [pod])
    assert matches.blocks == {"a": want}


def test_the_capacity_follows_the_engine() -> None:
    producer, pod = made(), make_endpoint("a", cache_blocks=20, cache_block_size=16)
    state, _ = looked_up(producer, b"x" * (10 * BLOCK), [pod])
    chosen(producer, state, default=pod)
    assert looked_up(producer, b"x" * (10 * BLOCK), [pod])[1].blocks == {"a": 10}
    pod.metrics = make_endpoint(
        cache_blocks=4, cache_block_size=16
    ).metrics  # twice that: 2 blocks of 64
    state, _ = looked_up(producer, b"k" * BLOCK, [pod])
    chosen(producer, state, default=pod)
    assert looked_up(producer, b"x" * (10 * BLOCK), [pod])[1].blocks == {"a": 1}
    assert looked_up(producer, b"k" * BLOCK, [pod])[1].blocks == {"a": 1}


def mixed() -> tuple[ApproxPrefixCacheProducer, list[Endpoint]]:
    """Return a producer that knows endpoints with blocks of 64, 128 and 192 tokens."""
    producer = made()
    pods = [make_endpoint(f"b{size}", cache_block_size=size) for size in (192, 64, 128)]
    for pod in pods:
        state, _ = looked_up(producer, b"s" * 10, pods)
        chosen(producer, state, default=pod)
    return producer, pods


@pytest.mark.parametrize(
    ("holder", "blocks", "want"),
    [
        # Of 7 blocks of 64 tokens and one of 10 more bytes (8 in all):
        pytest.param("b64", 8, 8, id="the smallest: all"),
        pytest.param("b64", 5, 5, id="the smallest: 5 blocks"),
        pytest.param("b128", 8, 8, id="twice as large: all, 3 whole and a partial one"),
        pytest.param("b128", 5, 4, id="twice as large: 2 of its blocks are 4"),
        pytest.param("b192", 8, 8, id="three times as large: all"),
        pytest.param("b192", 5, 3, id="three times as large: 1 of its blocks is 3"),
        pytest.param("b192", 2, 0, id="three times as large: no whole block"),
    ],
)
def test_each_endpoint_is_compared_by_its_own_block_size(
    holder: str, blocks: int, want: int
) -> None:
    producer, pods = mixed()
    prompt = b"x" * (7 * BLOCK) + b"partial..."
    (pod,) = (pod for pod in pods if pod.name == holder)
    sent = prompt if blocks == 8 else prompt[: blocks * BLOCK] + b"y" * BLOCK
    state, _ = looked_up(producer, sent, pods)
    chosen(producer, state, default=pod)
    _, matches = looked_up(producer, prompt, pods)
    assert matches.blocks.get(holder, 0) == want
    assert matches.blocks.keys() <= {holder}
    assert (matches.total_blocks, matches.block_size) == (8, 64)


def test_a_prompt_of_one_short_block_counts_once_per_endpoint() -> None:
    producer, pods = mixed()
    _, matches = looked_up(producer, b"s" * 10, pods)
    assert matches == PrefixMatches({"b64": 1, "b128": 1, "b192": 1}, 1, 64)


def test_all_of_a_prompt_is_all_of_it_in_every_size() -> None:
    producer = made()
    pods = [make_endpoint(f"b{size}", cache_block_size=size) for size in (128, 192)]
    for pod in pods:
        state, _ = looked_up(producer, b"x" * (3 * BLOCK), pods)
        chosen(producer, state, default=pod)
    # 192 tokens are one block of 192, or one of 128 and a partial one.
    _, matches = looked_up(producer, b"x" * (3 * BLOCK), pods)
    assert matches == PrefixMatches({"b128": 2, "b192": 2}, 2, 128)


def test_nobody_holds_more_than_was_hashed_of_the_smallest_size() -> None:
    producer = made({"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 3})
    pods = [make_endpoint(f"b{size}", cache_block_size=size) for size in (64, 256)]
    for pod, sent in zip(pods, (b"y" * BLOCK, b"x" * (5 * BLOCK)), strict=True):
        state, _ = looked_up(producer, sent, pods)
        chosen(producer, state, default=pod)
    # The first of 3 blocks of 256 tokens is 4 blocks of 64, of which 3 are hashed.
    _, matches = looked_up(producer, b"x" * (4 * BLOCK) + b"z" * (8 * BLOCK), pods)
    assert matches == PrefixMatches({"b256": 3}, 3, 64)


def test_a_size_without_endpoints_is_hashed_no_more() -> None:
    producer, pods = mixed()
    producer.endpoint_removed(pods[1])  # 64
    _, matches = looked_up(producer, b"x" * 4096, pods)
    assert (matches.block_size, matches.total_blocks) == (128, 8)
    producer.endpoint_removed(pods[0])
    producer.endpoint_removed(pods[2])
    new = make_endpoint("new", cache_block_size=256)
    state, matches = looked_up(producer, b"x" * 4096, [new])
    assert matches == PrefixMatches({}, 4, 256)
    chosen(producer, state, default=new)
    assert looked_up(producer, b"x" * 4096, pods)[1] == PrefixMatches({"new": 4}, 4, 256)


def test_an_endpoint_whose_block_size_changes_starts_empty() -> None:
    producer, pod = made(), make_endpoint("a", cache_block_size=64)
    state, _ = looked_up(producer, b"x" * 4096, [pod])
    chosen(producer, state, default=pod)
    pod.metrics = make_endpoint(cache_block_size=128).metrics
    state, _ = looked_up(producer, b"y" * 1024, [pod])
    chosen(producer, state, default=pod)
    assert looked_up(producer, b"x" * 4096, [pod])[1] == PrefixMatches({}, 8, 128)
    assert looked_up(producer, b"y" * 1024, [pod])[1] == PrefixMatches({"a": 2}, 2, 128)


def test_a_page_that_is_not_there_yet_changes_no_size() -> None:
    producer, pod = made(), make_endpoint("a", cache_block_size=16)
    state, _ = looked_up(producer, b"x" * BLOCK, [pod])
    chosen(producer, state, default=pod)
    pod.metrics = NEVER_SCRAPED
    state, _ = looked_up(producer, b"y" * BLOCK, [pod])
    chosen(producer, state, default=pod)
    assert looked_up(producer, b"x" * BLOCK, [pod])[1].blocks == {"a": 1}


def test_tools_are_the_head_of_the_chain() -> None:
    producer, pod = made(), make_endpoint("a")

    def asked(tools: bytes) -> CycleState:
        request = make_request(prompt=b"x" * BLOCK)
        request.tools = tools
        state = CycleState()
        TokenProducer("token", TokenParams()).prepare(request, state)
        producer.attach(request, [pod], state)
        return state

    chosen(producer, asked(b"t" * BLOCK), default=pod)
    found = [asked(tools).read(PREFIX_MATCHES) for tools in (b"t" * BLOCK, b"u" * BLOCK, b"")]
    assert [matches.blocks if matches else None for matches in found] == [{"a": 2}, {}, {}]


def test_an_endpoint_that_leaves_is_forgotten() -> None:
    producer, pod = made(), make_endpoint("a")
    producer.endpoint_added(pod)
    state, _ = looked_up(producer, b"x" * BLOCK, [pod])
    chosen(producer, state, default=pod)
    producer.endpoint_removed(pod)
    assert looked_up(producer, b"x" * BLOCK, [pod])[1].blocks == {}
    assert producer.index.statistics().entries == 0


def test_the_same_name_comes_back_empty() -> None:
    producer, pod = made(), make_endpoint("a")
    state, _ = looked_up(producer, b"x" * BLOCK, [pod])
    chosen(producer, state, default=pod)
    producer.endpoint_removed(pod)
    back = make_endpoint("a")
    producer.endpoint_added(back)
    state, _ = looked_up(producer, b"y" * BLOCK, [back])
    chosen(producer, state, default=back)
    assert looked_up(producer, b"x" * BLOCK, [back])[1].blocks == {}
    assert looked_up(producer, b"y" * BLOCK, [back])[1].blocks == {"a": 1}


def cached(producer: ApproxPrefixCacheProducer, pod: Endpoint, *letters: bytes) -> list[int]:
    """Return how many of its three blocks the endpoint has of each prompt."""
    found = [looked_up(producer, letter * (3 * BLOCK), [pod])[1].blocks for letter in letters]
    return [blocks.get(pod.name, 0) for blocks in found]


def sent(producer: ApproxPrefixCacheProducer, letter: bytes, **profiles: Endpoint) -> CycleState:
    state, _ = looked_up(producer, letter * (3 * BLOCK), [*profiles.values()])
    chosen(producer, state, **profiles)
    return state


@pytest.mark.parametrize(
    ("tracks", "want"),
    [
        pytest.param(False, [0, 3, 3], id="ages from when it is sent"),
        pytest.param(True, [3, 0, 3], id="stays while in flight"),
    ],
)
def test_a_prompt_in_flight(tracks: bool, want: list[int]) -> None:
    producer = made({"tracksInFlight": tracks, "lruCapacityPerServer": 6})
    pod = make_endpoint("a")
    sent(producer, b"x", default=pod)
    for letter in (b"y", b"z"):
        state = sent(producer, letter, default=pod)
        producer.response_complete(make_request(), pod, EndCause.ENDED, state)
    assert cached(producer, pod, b"x", b"y", b"z") == want


@pytest.mark.parametrize("cause", list(EndCause))
def test_a_prompt_ages_from_the_end_of_its_request_however_it_ends(cause: EndCause) -> None:
    producer, pod = made({"tracksInFlight": True, "lruCapacityPerServer": 6}), make_endpoint("a")
    first, second = sent(producer, b"x", default=pod), sent(producer, b"y", default=pod)
    producer.response_complete(make_request(), pod, cause, second)
    producer.response_complete(make_request(), pod, cause, first)
    sent(producer, b"z", default=pod)
    assert cached(producer, pod, b"x", b"y", b"z") == [3, 0, 3]


def test_a_second_choice_replaces_the_first_one() -> None:
    producer = made({"tracksInFlight": True, "lruCapacityPerServer": 3})
    pods = [make_endpoint("a"), make_endpoint("b")]
    state = sent(producer, b"x", default=pods[0])
    chosen(producer, state, default=pods[1])
    for pod in pods:
        sent(producer, b"y", default=pod)
    assert [cached(producer, pod, b"x", b"y") for pod in pods] == [[0, 3], [3, 3]]


def test_the_prompt_of_a_prefill_endpoint_is_not_kept() -> None:
    producer = made({"tracksInFlight": True, "lruCapacityPerServer": 3})
    prefill, decode = make_endpoint("p"), make_endpoint("d")
    sent(producer, b"x", decode=decode, prefill=prefill)
    sent(producer, b"y", decode=decode, prefill=prefill)
    assert cached(producer, prefill, b"x", b"y") == [0, 3]
    assert cached(producer, decode, b"x", b"y") == [3, 3]


@pytest.mark.parametrize("tracks", [False, True])
def test_only_prompts_in_flight_need_the_ends_of_requests(tracks: bool) -> None:
    assert made({"tracksInFlight": tracks}).only_with_usage is not tracks


def test_nothing_is_entered_for_what_was_never_looked_up() -> None:
    producer = made()
    chosen(producer, CycleState(), default=make_endpoint("a"))
    assert len(producer.index) == 0


class Amount:
    """A counter without labels."""

    total = 0

    def inc(self, *labels: str) -> None:
        raise AssertionError(labels)

    def add(self, count: int, *labels: str) -> None:
        assert not labels
        self.total += count


class Gauges:
    """Metrics that a test reads."""

    def __init__(self) -> None:
        self.counters: dict[str, Amount] = {}
        self.read: dict[str, Callable[[], Mapping[tuple[str, ...], float]]] = {}
        self.histograms: dict[str, Histogram] = {}

    def counter(
        self, plugin: Plugin, name: str, documentation: str, labels: Sequence[str] = ()
    ) -> PluginCounter:
        assert not labels
        return self.counters.setdefault(name, Amount())

    def histogram(
        self, plugin: Plugin, name: str, documentation: str, bounds: Sequence[float]
    ) -> Histogram:
        return self.histograms.setdefault(name, Histogram(bounds))

    def gauge(
        self,
        plugin: Plugin,
        name: str,
        documentation: str,
        read: Callable[[], Mapping[tuple[str, ...], float]],
        labels: Sequence[str] = (),
        *,
        plugin_labels: PluginLabels = "always",
    ) -> None:
        assert not labels
        self.read[name] = read

    def values(self) -> dict[str, float]:
        return {name: read()[()] for name, read in self.read.items()}

    def tokens(self) -> dict[str, int]:
        """The tokens counted: of prompts, predicted and observed in caches."""
        return {
            name.removeprefix("prefix_indexer_").removesuffix("_tokens_total"): each.total
            for name, each in self.counters.items()
        }


def test_the_index_is_seen_in_gauges() -> None:
    gauges = Gauges()
    params = msgspec.convert({"maxIndexBytes": 2**20}, Params)
    producer = ApproxPrefixCacheProducer(DEFAULT_NAME, params, metrics=gauges)
    assert gauges.values() == {
        "prefix_indexer_size": 0,
        "prefix_indexer_bytes": 0,
        "prefix_indexer_bytes_limit": 2**20,
    }
    for pod in (make_endpoint("a"), make_endpoint("b")):
        state, _ = looked_up(producer, b"x" * (3 * BLOCK), [pod])
        chosen(producer, state, default=pod)
    looked_up(producer, b"x" * BLOCK, [])
    looked_up(producer, b"y" * BLOCK, [])
    assert gauges.values() == {
        "prefix_indexer_size": 6,
        "prefix_indexer_bytes": producer.index.bytes,
        "prefix_indexer_bytes_limit": 2**20,
    }
    assert 500 < producer.index.bytes < 1000


def test_hits_of_the_chosen_endpoint_are_distributions() -> None:
    metrics = Gauges()
    producer = ApproxPrefixCacheProducer(DEFAULT_NAME, Params(), metrics=metrics)
    one, other = make_endpoint("a"), make_endpoint("b")
    for prompt, pod in (
        (b"x" * 3 * BLOCK, one),  # nobody holds anything: 0 of 3
        (b"x" * 4 * BLOCK, one),  # 3 of 4
        (b"x" * 3 * BLOCK, other),  # the other one holds them: 0 of 3
        (b"", one),  # nothing to look up
    ):
        state, _ = looked_up(producer, prompt, [one, other])
        chosen(producer, state, default=pod)
    ratio, length = (
        list(metrics.histograms[f"prefix_indexer_hit_{name}"].samples())
        for name in ("ratio", "bytes")
    )
    buckets = {own[0][1]: value for suffix, own, value in ratio if suffix == "_bucket"}
    assert (buckets["0.0"], buckets["0.7"], buckets["0.8"], buckets["+Inf"]) == (2, 2, 3, 3)
    assert ratio[-1] == ("_sum", (), 0.75)
    assert length[-1] == ("_sum", (), 3 * BLOCK)


def test_predicted_and_observed_cached_tokens_of_responses_are_counted() -> None:
    metrics = Gauges()
    producer = ApproxPrefixCacheProducer(DEFAULT_NAME, Params(), metrics=metrics)
    one, other = make_endpoint("a"), make_endpoint("b")

    def answered(
        prompt: bytes, served_by: Endpoint, usage: Usage | None, prefill: Endpoint | None = None
    ) -> None:
        state, _ = looked_up(producer, prompt, [one, other])
        chosen(producer, state, default=one, **({} if prefill is None else {"prefill": prefill}))
        if usage is not None:
            state.write(RESPONSE_USAGE, usage)
        producer.response_complete(make_request(), served_by, EndCause.COMPLETED, state)

    answered(b"x" * 3 * BLOCK, one, Usage(300))  # nothing is predicted, nor found
    answered(b"x" * 4 * BLOCK, one, Usage(400, 7, 250))  # 3 of 4 blocks are predicted: 300
    assert metrics.tokens() == {"prompt": 700, "predicted": 300, "observed": 250}
    answered(b"x" * 4 * BLOCK, other, Usage(400, 7, 390))  # a retry: this one has nothing, we think
    assert metrics.tokens() == {"prompt": 1100, "predicted": 300, "observed": 640}
    answered(b"x" * 4 * BLOCK, one, None)  # not known
    answered(b"", one, Usage(400))  # not looked up
    answered(b"x" * 4 * BLOCK, one, Usage(400, 7, 400), prefill=other)  # a transfer, not a cache
    assert metrics.tokens() == {"prompt": 1100, "predicted": 300, "observed": 640}
    answered(b"x" * 4 * BLOCK, one, Usage(400, 7, 500))  # a server that counts more than there are
    assert metrics.tokens() == {"prompt": 1500, "predicted": 700, "observed": 1040}


def test_repeats_one_at_a_time_go_where_the_prefix_is() -> None:
    """200 prefixes, 20 requests each with an end of its own, over 4 endpoints that are equal."""
    rng, producer = random.Random(5), made()
    pods = [make_endpoint(f"pod-{n}") for n in range(4)]
    scorer = PrefixCacheScorer("prefix", ScorerParams())
    picker = MaxScorePicker("pick", PickerParams(), rng=rng)
    profile = SchedulerProfile(name="default", scorers=[WeightedScorer(scorer, 1.0)], picker=picker)
    scheduler = Scheduler(
        SingleProfileHandler("single", HandlerParams()),
        {"default": profile},
        post_schedule=[producer],
    )
    heads = [rng.randbytes(rng.randint(2, 40) * BLOCK) for _ in range(200)]
    requests = [(n, make_request(prompt=heads[n] + rng.randbytes(300))) for n in range(200)] * 20
    rng.shuffle(requests)
    homes: dict[int, str] = {}
    repeats = back = 0
    for number, made_once in requests:
        request = LLMRequest("", "llama", prompt=made_once.prompt + rng.randbytes(40))
        state = CycleState()
        TokenProducer("token", TokenParams()).prepare(request, state)
        producer.prepare(request, state)
        producer.attach(request, pods, state)
        chosen_name = scheduler.schedule(request, pods, state).endpoints[0].endpoint.name
        if number in homes:
            repeats += 1
            back += chosen_name == homes[number]
        homes.setdefault(number, chosen_name)
    assert repeats == 200 * 19
    assert back >= 0.95 * repeats
    assert set(homes.values()) == {pod.name for pod in pods}


def test_a_named_producer_writes_under_its_name_alone() -> None:
    producer = made(name="mine")
    state, matches = looked_up(producer, b"x" * BLOCK, [make_endpoint("a")])
    assert producer.writes == (prefix_matches_of("mine"),)
    assert state.read(prefix_matches_of("mine")) is matches
    assert state.read(PREFIX_MATCHES) is None
    assert prefix_matches_of(DEFAULT_NAME) is prefix_matches_of("") is PREFIX_MATCHES


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"blockSizeToken": 16}, "blockSizeToken"),
        ({"maxIndexBytes": 0}, "maxIndexBytes"),
        ({"maxPrefixTokensToMatch": -1}, "maxPrefixTokensToMatch"),
        ({"maxPrefixBlocksToMatch": -1}, "maxPrefixBlocksToMatch"),
        ({"autoTune": False, "blockSizeTokens": 0}, "blockSizeTokens is 0; without autoTune"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, object], match: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=match):
        made(parameters)


@pytest.mark.parametrize(
    ("parameters", "blocks"),
    [
        pytest.param({"blockSizeTokens": 0}, 3, id="a block size that the engine decides"),
        pytest.param({"lruCapacityPerServer": 0}, 3, id="no capacity is the default"),
        pytest.param({"maxPrefixBlocksToMatch": 0}, 3, id="blocks, where tokens decide"),
        pytest.param(
            {"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 2}, 2, id="blocks decide"
        ),
        pytest.param(
            {"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 0}, 3, id="no maximum at all"
        ),
    ],
)
def test_zeros_mean_what_they_mean_in_the_reference(
    parameters: dict[str, object], blocks: int
) -> None:
    producer = made(parameters)
    endpoint = make_endpoint("a")
    _, matches = looked_up(producer, b"x" * 3 * BLOCK, [endpoint])
    assert matches.total_blocks == blocks

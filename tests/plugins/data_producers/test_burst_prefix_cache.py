"""``burst-prefix-cache-producer`` collects requests for a window and places them together."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from config.graphs import load

from epp.building import make_builder
from epp.scheduling import CycleState
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state, score_table
from epp_plugins.data_producers import burst_prefix_cache
from epp_plugins.data_producers.burst_prefix_cache import BurstPrefixCacheProducer
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer
from epp_plugins.state_keys import (
    TOKENIZED_PROMPT,
    PrefixMatches,
    TokenizedPrompt,
    prefix_matches_of,
)

pytestmark = pytest.mark.looptime
NAME = "burst-prefix-cache-producer"
MATCHES = prefix_matches_of(NAME)
BLOCK = 64 * 4


def producer(
    parameters: Mapping[str, Any] | None = None, pods: int = 3
) -> BurstPrefixCacheProducer:
    plugin = make_plugin(BurstPrefixCacheProducer, parameters, name=NAME)
    for number in range(pods):
        plugin.endpoint_added(make_endpoint(f"pod-{number}"))
    return plugin


def state_of(text: str) -> CycleState:
    """Return the state of a request whose prompt has one block per letter."""
    data = "".join(letter * BLOCK for letter in text).encode()
    return make_state({TOKENIZED_PROMPT: TokenizedPrompt(data, len(data) // 4)})


class Burst:
    """Requests to one producer."""

    def __init__(self, plugin: BurstPrefixCacheProducer) -> None:
        self.plugin = plugin
        self.states: list[CycleState] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def send(self, *texts: str, **fields: Any) -> None:
        for text in texts:
            request, state = make_request(**fields), state_of(text)
            assert self.plugin.applies_to(request, state)
            self.states.append(state)
            self.tasks.append(asyncio.create_task(self.plugin.prepare_async(request, state)))
        await asyncio.sleep(0)

    async def matches(self) -> list[PrefixMatches | None]:
        """Return what is known of each request at the end; None for one that gave up."""
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for state in self.states:
            self.plugin.attach(make_request(), [], state)
        return [state.read(MATCHES) for state in self.states]


def held(text: str, *pods: str) -> PrefixMatches:
    return PrefixMatches(dict.fromkeys(pods, len(text)), len(text), 64)


async def test_a_burst_waits_for_its_window_and_goes_to_one_endpoint() -> None:
    check(BurstPrefixCacheProducer)
    burst, loop = Burst(producer()), asyncio.get_running_loop()
    began = loop.time()
    await burst.send("abc", "xy")
    await asyncio.sleep(0.09)
    await burst.send("abc")
    assert await burst.matches() == [held("abc", "pod-0"), held("xy"), held("abc", "pod-0")]
    assert loop.time() - began == pytest.approx(0.1)


async def test_the_next_window_begins_with_the_next_request() -> None:
    burst, loop = Burst(producer({"windowDurationMs": 50})), asyncio.get_running_loop()
    await burst.send("a")
    await asyncio.sleep(1.0)
    began = loop.time()
    await burst.send("a")
    assert await burst.matches() == [held("a"), held("a")]
    assert loop.time() - began == pytest.approx(0.05)


async def test_other_models_and_salts_have_prompts_of_their_own() -> None:
    burst = Burst(producer())
    await burst.send("a")
    await burst.send("a", target_model="tuned")
    await burst.send("a", cache_salt="mine")
    assert await burst.matches() == [held("a")] * 3


async def test_what_is_compared_of_a_prompt_can_be_limited() -> None:
    burst = Burst(producer({"maxPrefixTokensToMatch": 2 * 64 + 63}))
    await burst.send("abc", "abx")
    assert await burst.matches() == [held("ab", "pod-0")] * 2


async def test_a_client_that_leaves_does_not_count() -> None:
    burst = Burst(producer({"maxBatchSize": 2}))
    await burst.send("a", "a")
    burst.tasks[0].cancel()
    await asyncio.sleep(0)
    await burst.send("a")
    assert await burst.matches() == [None, held("a", "pod-0"), held("a", "pod-0")]


@pytest.mark.parametrize("bound", ["count", "bytes"])
async def test_a_full_window_lets_others_go_at_once(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bound == "bytes":
        monkeypatch.setattr(burst_prefix_cache, "MAX_WINDOW_BYTES", 2 * 8)
    burst = Burst(producer({"maxBatchSize": 2 if bound == "count" else -1}))
    await burst.send("a", "a")
    await burst.send("a")
    assert burst.tasks[2].done()
    assert await burst.matches() == [held("a", "pod-0"), held("a", "pod-0"), None]


async def test_an_endpoint_that_left_during_the_window_gets_nothing() -> None:
    plugin = producer()
    burst = Burst(plugin)
    await burst.send("a", "a")
    plugin.endpoint_removed(make_endpoint("pod-0"))
    assert await burst.matches() == [held("a", "pod-1")] * 2


async def test_without_endpoints_nobody_is_placed() -> None:
    burst = Burst(producer(pods=0))
    await burst.send("a", "a")
    assert await burst.matches() == [held("a")] * 2


async def test_requests_spread_and_stay_by_the_parameters() -> None:
    burst = Burst(producer({"maxPerReplica": 1, "minColocateBlocks": 2, "balanceBy": "tokens"}))
    await burst.send("ab", "ab")
    assert await burst.matches() == [held("ab", "pod-0"), held("ab", "pod-1")]


async def test_a_scorer_that_names_it_sends_a_burst_together() -> None:
    plugin = producer()
    burst = Burst(plugin)
    await burst.send("ab", "ab")
    await burst.matches()
    scorer = make_plugin(PrefixCacheScorer, {"prefixMatchInfoProducerName": NAME})
    pods = [make_endpoint(f"pod-{number}") for number in range(3)]
    for state in burst.states:
        table = score_table(scorer, make_request(), pods, state)
        assert table == {"pod-0": 1.0, "pod-1": 0.0, "pod-2": 0.0}


@pytest.mark.parametrize(
    ("parameters", "state"),
    [
        pytest.param({}, CycleState(), id="no prompt"),
        pytest.param({}, state_of(""), id="an empty prompt"),
        pytest.param({"maxPrefixTokensToMatch": 63}, state_of("a"), id="less than a block"),
    ],
)
def test_who_has_nothing_to_compare_does_not_wait(
    parameters: dict[str, Any], state: CycleState
) -> None:
    plugin = producer(parameters)
    assert not plugin.applies_to(make_request(), state)
    plugin.attach(make_request(), [], state)
    assert state.read(MATCHES) is None


def test_a_request_may_wait_longer_than_the_window() -> None:
    assert producer({"windowDurationMs": 2000}).timeout_seconds > 2.0


def test_the_graph_brings_the_token_producer() -> None:
    text = (
        f"plugins: [{{type: {NAME}}}, {{type: prefix-cache-scorer,"
        f" parameters: {{prefixMatchInfoProducerName: {NAME}}}}}]\n"
    )
    graph = make_builder(0).build(load(text))
    names = list(graph.plugins)
    assert names.index("token-producer") < names.index(NAME)
    assert "approx-prefix-cache-producer" not in names
    assert not graph.warnings


@pytest.mark.parametrize(
    "parameters",
    [
        {"windowDurationMs": 0},
        {"windowDurationMs": 10_001},
        {"maxPerReplica": 0},
        {"maxPerReplica": -2},
        {"maxBatchSize": 0},
        {"blockSizeTokens": 0},
        {"minColocateBlocks": -1},
        {"maxPrefixTokensToMatch": -1},
        {"balanceBy": "blocks"},
        {"window": 5},
    ],
    ids=str,
)
def test_other_parameters_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        producer(parameters)


async def test_the_state_has_the_open_window() -> None:
    plugin = producer(pods=2)
    burst = Burst(plugin)
    before = plugin.dump_state()
    await burst.send("abc", "xy")
    during = plugin.dump_state()
    await burst.matches()
    assert (during["endpoints"], during["waiting_requests"], during["hash_bytes"]) == (2, 2, 40)
    assert plugin.dump_state() == before
    assert (before["waiting_requests"], before["hash_bytes"]) == (0, 0)

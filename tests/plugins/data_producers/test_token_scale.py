"""The prefix index has the size of an engine's cache, whatever the bytes per token."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.parsing.plugins import Usage
from epp.request_control.plugins import RESPONSE_USAGE, EndCause
from epp.scheduling import (
    CycleState,
    Endpoint,
    EndpointMetrics,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import make_endpoint, make_request
from epp_plugins.data_producers.approx_prefix_cache import ApproxPrefixCacheProducer, Params
from epp_plugins.data_producers.token import Params as TokenParams
from epp_plugins.data_producers.token import TokenProducer
from epp_plugins.data_producers.token_scale import (
    GENEROUS,
    HALVED_TOKENS,
    HIGHEST,
    LOWEST,
    MARGIN,
    TokenScale,
)
from tools.bench.prefix_hits import fixed, simulate

CACHE_TOKENS = 16 * 400
PROMPT_BYTES = 12_288
"""48 blocks of the index."""


class Pool:
    """One endpoint with a real tokenizer, and the producer that guesses at it."""

    def __init__(self, bytes_per_token: int, *, tracks_in_flight: bool = False) -> None:
        self.producer = ApproxPrefixCacheProducer(
            "approx-prefix-cache-producer", Params(tracks_in_flight=tracks_in_flight)
        )
        self.pod = make_endpoint("a", cache_blocks=400, cache_block_size=16, requested_at=0.0)
        self._bytes_per_token = bytes_per_token
        self._sent = 0

    def send(
        self, *, usage: bool = False, counted: int = 0, prefill: Endpoint | None = None
    ) -> None:
        """Send one prompt; the engine counts ``counted`` such."""
        self._sent += 1
        prompt = (b"%08d" % self._sent) * (PROMPT_BYTES // 8)
        request, state = make_request(prompt=prompt), CycleState()
        TokenProducer("token", TokenParams()).prepare(request, state)
        self.producer.attach(request, [self.pod], state)
        profiles = {"decode": ProfileResult("decode", [ScoredEndpoint(self.pod, 1.0)])}
        if prefill is not None:
            profiles["prefill"] = ProfileResult("prefill", [ScoredEndpoint(prefill, 1.0)])
        self.producer.post_schedule(request, SchedulingResult(profiles, "decode"), state)
        tokens = PROMPT_BYTES // self._bytes_per_token
        if usage:
            state.write(RESPONSE_USAGE, Usage(prompt_tokens=tokens))
        self.producer.response_complete(request, self.pod, EndCause.COMPLETED, state)
        page = self.pod.metrics
        self.pod.metrics = EndpointMetrics(
            cache_blocks=400,
            cache_block_size=16,
            requested_at=0.0,
            prompt_tokens=page.prompt_tokens + tokens * counted,
            prompts=page.prompts + counted,
        )

    @property
    def held_bytes(self) -> int:
        """What the index believes is in the cache."""
        return self.producer.index.statistics().entries * 64 * 4


def by_usage(pool: Pool) -> None:
    pool.send(usage=True)


def by_counters(pool: Pool) -> None:
    pool.send(counted=1)


@pytest.mark.parametrize("bytes_per_token", [2, 4, 6])
@pytest.mark.parametrize("send", [by_usage, by_counters], ids=["by usage", "by counters"])
def test_the_index_keeps_what_the_cache_holds(
    bytes_per_token: int, send: Callable[[Pool], None]
) -> None:
    pool = Pool(bytes_per_token)
    for _ in range(100):
        send(pool)
    cache_bytes = CACHE_TOKENS * bytes_per_token
    assert cache_bytes <= pool.held_bytes <= cache_bytes * MARGIN


@pytest.mark.parametrize("send", [by_usage, by_counters], ids=["by usage", "by counters"])
def test_an_index_of_prompts_in_flight_has_no_margin(send: Callable[[Pool], None]) -> None:
    pool = Pool(6, tracks_in_flight=True)
    for _ in range(100):
        send(pool)
    assert pool.held_bytes == pytest.approx(CACHE_TOKENS * 6, rel=0.02)


@pytest.mark.parametrize("bytes_per_token", [2, 6])
def test_without_information_it_keeps_twice_the_estimate(bytes_per_token: int) -> None:
    pool = Pool(bytes_per_token)
    for _ in range(100):
        pool.send()
    assert pool.held_bytes == CACHE_TOKENS * 4 * GENEROUS
    assert pool.held_bytes >= CACHE_TOKENS * bytes_per_token


def test_an_engine_that_others_use_never_makes_it_forget_earlier() -> None:
    pool = Pool(6)
    for _ in range(100):
        pool.send(counted=2)
    assert pool.producer.scale_of(pool.pod) == GENEROUS


def test_usage_goes_before_the_engines_counters() -> None:
    pool = Pool(6)
    for _ in range(100):
        pool.send(usage=True, counted=3)
    assert pool.producer.scale_of(pool.pod) == pytest.approx(6 / 4 * MARGIN)


def test_the_endpoint_of_the_prefill_learns_from_the_response_too() -> None:
    pool, prefill = Pool(6), make_endpoint("p", cache_blocks=400, cache_block_size=16)
    for _ in range(100):
        pool.send(usage=True, prefill=prefill)
    assert pool.producer.scale_of(prefill) == pytest.approx(6 / 4 * MARGIN)


def test_an_endpoint_that_has_left_is_learned_anew() -> None:
    pool = Pool(6)
    for _ in range(100):
        pool.send(usage=True)
    pool.producer.endpoint_removed(pool.pod)
    assert pool.producer.scale_of(pool.pod) == GENEROUS


def page(tokens: int, prompts: int) -> EndpointMetrics:
    return EndpointMetrics(requested_at=0.0, prompt_tokens=tokens, prompts=prompts)


def test_what_an_engine_counted_before_does_not_count() -> None:
    scale = TokenScale()
    for n in range(100):  # 1000 tokens each, 1500 in the index
        scale.sent(1500, page(10**9 + 1000 * n, 10**6 + n))
    assert scale.factor == pytest.approx(1.5 * MARGIN, rel=0.02)


def test_metrics_from_before_the_first_page_are_no_page() -> None:
    scale = TokenScale()
    scale.sent(1500, EndpointMetrics(waiting_requests=3, requested_at=0.0))  # a load report
    for n in range(100):
        scale.sent(1500, page(200 * 10**6 + 1000 * n, 10**6 + n))  # 200 tokens each until then
    assert scale.factor == pytest.approx(1.5 * MARGIN, rel=0.02)


def test_an_engine_that_starts_anew_is_compared_from_there() -> None:
    scale = TokenScale()
    for n in range(100):
        scale.sent(1500, page(1000 * n, n))
    scale.sent(1500, page(0, 0))
    for n in range(1, 100):
        scale.sent(500, page(1000 * n, n))
    assert scale.factor == pytest.approx(0.5 * MARGIN, rel=0.05)


def test_requests_that_wait_in_the_engine_do_not_change_the_scale() -> None:
    scale = TokenScale()
    for n in range(300):  # 100 requests are always under way
        counted = max(0, n - 100)
        scale.sent(1500, page(1000 * counted, counted))
    assert scale.factor == pytest.approx(1.5 * MARGIN, rel=0.01)


@pytest.mark.parametrize("learn", ["responses", "counters"])
def test_it_forgets_what_is_long_ago(learn: str) -> None:
    scale, tokens = TokenScale(), 0
    for ratio in (3.0, 1.0):
        for _ in range(8 * HALVED_TOKENS // 10_000):
            tokens += 10_000
            if learn == "responses":
                scale.answered(round(10_000 * ratio), 10_000)
            else:
                scale.sent(round(10_000 * ratio), page(tokens, tokens // 10_000))
    assert scale.factor == pytest.approx(1.0 * MARGIN, rel=0.05)


numbers = st.integers(0, 2**60)


@given(st.lists(st.tuples(numbers, numbers, numbers, st.booleans())))
def test_the_scale_stays_in_its_bounds(events: list[tuple[int, int, int, bool]]) -> None:
    scale = TokenScale()
    for index_tokens, tokens, prompts, is_answer in events:
        if is_answer:
            scale.answered(index_tokens, tokens)
        else:
            scale.sent(index_tokens, page(tokens, prompts))
        assert LOWEST <= scale.factor <= HIGHEST


def test_servers_find_more_of_the_prompts_than_with_the_estimate_alone() -> None:
    before, after = fixed(1.0, 6, 3), simulate(6)
    assert after.factor == pytest.approx(6 / 4 * MARGIN, rel=0.05)
    assert after.hit_rate >= before.hit_rate + 0.01

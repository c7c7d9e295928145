"""``mm-embeddings-cache-producer`` remembers the endpoints of media, within bounds."""

import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling import (
    CycleState,
    Endpoint,
    Plugin,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state
from epp_plugins.data_producers import media_index
from epp_plugins.data_producers.media_index import MAX_LOOKUPS, MediaIndex
from epp_plugins.data_producers.mm_embeddings_cache import MAX_MEDIA, MmEmbeddingsCacheProducer
from epp_plugins.state_keys import (
    ENCODER_MATCHES,
    TOKENIZED_PROMPT,
    EncoderMatches,
    MultiModalFeature,
    TokenizedPrompt,
    encoder_matches_of,
)

KINDS = {"image": "image_url", "video": "video_url", "audio": "audio_url"}


class Metrics:
    """Counts by name and labels, and the gauges' readers."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], int] = {}
        self.gauges: dict[str, Callable[[], Mapping[tuple[str, ...], float]]] = {}
        self.observed: dict[str, list[float]] = {}

    def histogram(
        self, plugin: Plugin, name: str, documentation: str, bounds: Sequence[float]
    ) -> "Observed":
        return Observed(self.observed.setdefault(name, []))

    def counter(
        self, plugin: Plugin, name: str, documentation: str, labels: Sequence[str] = ()
    ) -> "Counter":
        return Counter(self, name)

    def gauge(
        self,
        plugin: Plugin,
        name: str,
        documentation: str,
        read: Callable[[], Mapping[tuple[str, ...], float]],
        labels: Sequence[str] = (),
    ) -> None:
        self.gauges[name] = read


class Observed:
    def __init__(self, values: list[float]) -> None:
        self.observe = values.append


class Counter:
    def __init__(self, metrics: Metrics, name: str) -> None:
        self.metrics = metrics
        self.name = name

    def inc(self, *labels: str) -> None:
        key = (self.name, *labels)
        self.metrics.counts[key] = self.metrics.counts.get(key, 0) + 1


def pool(count: int = 2) -> list[Endpoint]:
    return [make_endpoint(f"default/pod-{number}") for number in range(count)]


def producer(
    endpoints: Sequence[Endpoint], parameters: Mapping[str, Any] | None = None, **services: Any
) -> MmEmbeddingsCacheProducer:
    plugin = make_plugin(
        MmEmbeddingsCacheProducer, parameters, name=MmEmbeddingsCacheProducer.type, **services
    )
    for endpoint in endpoints:
        plugin.endpoint_added(endpoint)
    return plugin


def chat(*media: str) -> bytes:
    """Return messages with media such as ``image:a``."""
    parts = []
    for each in media:
        kind = KINDS[each.partition(":")[0]]
        parts.append({"type": kind, kind: {"url": f"https://example.com/{each}"}})
    return msgspec.json.encode([{"role": "user", "content": parts}])


def result_of(endpoint: Endpoint, **others: Endpoint) -> SchedulingResult:
    results = {
        name: ProfileResult(name, [ScoredEndpoint(each, 1.0)])
        for name, each in {"decode": endpoint, **others}.items()
    }
    return SchedulingResult(results, "decode")


def run(
    plugin: MmEmbeddingsCacheProducer,
    endpoints: Sequence[Endpoint],
    prompt: bytes = b"",
    state: CycleState | None = None,
    *,
    to: Endpoint | None = None,
    **others: Endpoint,
) -> EncoderMatches | None:
    """Return the matches of a request, which goes to ``to``."""
    request, state = make_request(prompt=prompt), state or CycleState()
    plugin.prepare(request, state)
    plugin.attach(request, endpoints, state)
    if to is not None:
        plugin.pre_request(request, result_of(to, **others), state)
    return state.read(ENCODER_MATCHES)


def test_media_are_held_where_they_were_sent() -> None:
    check(MmEmbeddingsCacheProducer)
    a, b = endpoints = pool()
    plugin = producer(endpoints)
    assert run(plugin, endpoints, chat("image:1", "video:2"), to=a) == EncoderMatches(2, {})
    assert run(plugin, endpoints, chat("image:1", "audio:3"), to=b) == EncoderMatches(
        2, {a.name: 1}
    )
    assert run(plugin, endpoints, chat("image:1", "video:2", "audio:3")) == EncoderMatches(
        3, {a.name: 2, b.name: 2}
    )


def test_a_medium_that_a_request_has_twice_counts_once() -> None:
    (a,) = endpoints = pool(1)
    plugin = producer(endpoints)
    run(plugin, endpoints, chat("image:1", "image:1"), to=a)
    assert run(plugin, endpoints, chat("image:1", "image:1", "image:2")) == EncoderMatches(
        2, {a.name: 1}
    )


def test_the_endpoint_of_an_encode_profile_holds_nothing() -> None:
    a, b = endpoints = pool()
    plugin = producer(endpoints)
    run(plugin, endpoints, chat("image:1"), to=a, encode=b)
    assert run(plugin, endpoints, chat("image:1")) == EncoderMatches(1, {a.name: 1})


def features(*sizes: int) -> CycleState:
    found = [MultiModalFeature("image", f"hash-{at}", 0, size) for at, size in enumerate(sizes)]
    return make_state({TOKENIZED_PROMPT: TokenizedPrompt(b"", 0, tuple(found))})


def test_sizes_are_the_tokens_that_a_token_producer_says() -> None:
    (a,) = endpoints = pool(1)
    plugin = producer(endpoints)
    run(plugin, endpoints, state=features(10), to=a)
    # 0 tokens count as 1: 10 + 30 + 1
    assert run(plugin, endpoints, state=features(10, 30, 0)) == EncoderMatches(41, {a.name: 10})


@pytest.mark.parametrize(
    ("prompt", "state"),
    [
        pytest.param(b"", None, id="no prompt"),
        pytest.param(b'"image_url"', None, id="a text"),
        pytest.param(b"[1, 2, 3]", None, id="token ids"),
        pytest.param(chat(), None, id="a message without parts"),
        pytest.param(b'[{"content":[{"type":"image_url","image_url":5}]}]', None, id="malformed"),
        pytest.param(b"[" * 100_000 + b'"_url"', None, id="nested too deep"),
        pytest.param(
            chat("image:1"),
            make_state({TOKENIZED_PROMPT: TokenizedPrompt(b"", 0)}),
            id="media that the token producer does not know",
        ),
    ],
)
def test_without_media_nothing_is_known(prompt: bytes, state: CycleState | None) -> None:
    (a,) = endpoints = pool(1)
    plugin = producer(endpoints)
    assert run(plugin, endpoints, prompt, state, to=a) is None
    assert plugin.index.entries() == 0


@pytest.mark.parametrize(("size", "capacity"), [(4096, 2048), (2048, 1024), (5, 2), (1, 1)])
def test_an_endpoint_keeps_what_was_sent_last(size: int, capacity: int) -> None:
    (a,) = endpoints = pool(1)
    plugin = producer(endpoints, {"cacheSizeInMBPerServer": size})
    assert plugin.index.capacity == capacity
    for number in range(capacity + 3):
        run(plugin, endpoints, chat(f"image:{number}"), to=a)
    assert plugin.index.entries() == capacity
    assert run(plugin, endpoints, chat("image:2")) == EncoderMatches(1, {})
    assert run(plugin, endpoints, chat("image:3")) == EncoderMatches(1, {a.name: 1})


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_1_means_the_default_as_in_the_reference(size: int) -> None:
    assert producer(pool(1), {"cacheSizeInMBPerServer": size}).index.capacity == 2048


def test_a_medium_that_is_sent_again_stays() -> None:
    (a,) = endpoints = pool(1)
    plugin = producer(endpoints, {"cacheSizeInMBPerServer": 4})
    for name in ("image:1", "image:2", "image:1", "image:3"):
        run(plugin, endpoints, chat(name), to=a)
    assert run(plugin, endpoints, chat("image:1", "image:2", "image:3")) == EncoderMatches(
        3, {a.name: 2}
    )
    assert run(plugin, endpoints, chat("image:2")) == EncoderMatches(1, {})


def test_an_endpoint_that_leaves_is_forgotten_also_by_a_request_under_way() -> None:
    a, b = endpoints = pool()
    plugin = producer(endpoints)
    run(plugin, endpoints, chat("image:1"), to=a)
    plugin.endpoint_removed(a)
    run(plugin, endpoints, chat("image:1"), to=a)
    assert run(plugin, endpoints, chat("image:1")) == EncoderMatches(1, {})
    plugin.endpoint_added(make_endpoint(a.name))
    assert run(plugin, [make_endpoint(a.name), b], chat("image:1")) == EncoderMatches(1, {})


def test_of_a_request_with_many_media_the_first_count() -> None:
    (a,) = endpoints = pool(1)
    plugin = producer(endpoints)
    names = [f"image:{number}" for number in range(MAX_MEDIA + 50)]
    assert run(plugin, endpoints, chat(*names), to=a) == EncoderMatches(MAX_MEDIA, {})
    assert plugin.index.entries() == MAX_MEDIA


def test_the_work_of_one_request_is_bounded_however_large_the_pool() -> None:
    endpoints = pool(MAX_LOOKUPS // 2)
    index = MediaIndex(10)
    for endpoint in endpoints:
        index.add_endpoint(endpoint)
        index.add(endpoint, [1, 2, 3])
    assert {tuple(held) for held in index.match(endpoints, [1, 2, 3]).values()} == {(1, 2)}


def test_all_endpoints_share_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_index, "MAX_ENTRIES", 12)
    index, endpoints = MediaIndex(8), pool(4)
    for endpoint in endpoints:
        index.add_endpoint(endpoint)
        index.add(endpoint, range(20))
        assert index.entries() <= 12
    assert index.capacity == 3
    assert index.match(endpoints, [17, 18, 19]).keys() == set(endpoints)
    for endpoint in endpoints[1:]:
        index.remove_endpoint(endpoint)
    assert index.capacity == 8


def test_memory_stays_bounded_whatever_clients_send() -> None:
    (a,) = endpoints = pool(1)
    plugin = producer(endpoints)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(3000):
            run(plugin, endpoints, chat(f"image:{number}" + "x" * 1000), to=a)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert plugin.index.entries() == 2048
    assert grown < 1_000_000  # 2048 names of 1000 bytes would be more


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "send"]),
            st.integers(0, 3),
            st.lists(st.integers(0, 9), max_size=6),
        ),
        max_size=40,
    )
)
def test_nothing_is_held_by_who_is_not_there_nor_beyond_the_capacity(
    steps: list[tuple[str, int, list[int]]],
) -> None:
    index, endpoints = MediaIndex(4), pool(4)
    there: set[Endpoint] = set()
    for step, number, media in steps:
        endpoint = endpoints[number]
        if step == "add":
            index.add_endpoint(endpoint)
            there.add(endpoint)
        elif step == "remove":
            index.remove_endpoint(endpoint)
            there.discard(endpoint)
        else:
            index.add(endpoint, media)
            if endpoint in there:
                kept = list(dict.fromkeys(reversed(media)))[:4]
                assert set(index.match([endpoint], kept).get(endpoint, ())) == set(kept)
        assert index.match(endpoints, range(10)).keys() <= there
        assert index.entries() <= 4 * len(there)


def test_metrics_say_what_the_chosen_endpoint_held() -> None:
    metrics, (a,) = Metrics(), pool(1)
    plugin = producer([a], metrics=metrics)
    run(plugin, [a], chat("image:1", "video:2"), to=a)
    run(plugin, [a], chat("image:1", "image:3"), to=a)
    assert metrics.counts == {
        ("encoder_cache_queries_total", "image"): 3,
        ("encoder_cache_queries_total", "video"): 1,
        ("encoder_cache_hits_total", "pod-0", "image"): 1,
    }
    assert metrics.gauges["encoder_cache_entries"]() == {(): 3}
    assert metrics.observed == {"encoder_cache_hit_ratio": [0.0, 0.5]}


def test_under_another_name_it_has_a_key_of_its_own() -> None:
    plugin = make_plugin(MmEmbeddingsCacheProducer, name="mine")
    assert plugin.writes == (encoder_matches_of("mine"),)
    assert producer([]).writes == (ENCODER_MATCHES,)


@pytest.mark.parametrize("parameters", [{"cacheSizeInMBPerServer": "8"}, {"cacheSizeInMB": 1}])
def test_other_parameters_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="cacheSizeInMB"):
        make_plugin(MmEmbeddingsCacheProducer, parameters)


def test_the_state_has_the_endpoints_with_most_media() -> None:
    a, b = endpoints = pool()
    plugin = producer(endpoints, {"cacheSizeInMBPerServer": 8})
    run(plugin, endpoints, chat("image:1"), to=a)
    run(plugin, endpoints, chat("image:1", "audio:3"), to=b)
    assert plugin.dump_state() == {
        "entries": 3,
        "max_entries_of_endpoint": 4,
        "entries_by_endpoint": {b.name: 2, a.name: 1},
    }

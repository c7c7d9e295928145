"""``approx-prefix-cache-producer``: estimates which endpoints have cached the prompt's prefix.

The prompt's tokens, tools first, are cut into blocks. Each block's hash is seeded with the previous
one::

    seed = xxh3(cacheSalt, xxh3(model))        # xxh3(model) without a salt
    h[0] = xxh3(block[0], seed),  h[i] = xxh3(block[i], h[i-1])

``model`` is the target model, so LoRA adapters share no blocks. The last, partial block is hashed
too. The producer assumes that an endpoint has cached every prompt that was sent there. The endpoint
of a prefill profile counts as having the prompt, too; that of an encode profile does not. Prompts
are recorded in the same step that chooses the endpoint, so the second request of a burst already
sees the first.

Block size: with ``autoTune`` it is the block size of the endpoint's engine, if known, otherwise
``blockSizeTokens``. Values below 64 count as 64. In a pool with several block sizes, a prompt is
hashed once for each size, each endpoint is compared by its own size, and matches are reported in
blocks of the smallest size, rounded down. If the block size of an endpoint changes, its record
starts empty.

Capacity: the record of an endpoint has the size of its engine's cache (``cache_blocks`` times
``cache_block_size`` tokens, updated when they change), or ``lruCapacityPerServer`` blocks if either
is unknown. The engine counts real tokens, but the index counts estimated ones of four bytes. The
ratio of the two is learned for each endpoint: from the usage in responses, if response bodies pass
through the endpoint picker, otherwise from the engine's own counters (vLLM, SGLang: prompt tokens
and first tokens) compared with the prompts sent there. The ratio is 2 until 16384 tokens have been
seen. A learned ratio gets a margin of a quarter, so that the index does not evict a prefix before
the engine does. If the engine counts more prompts than were sent from here, the ratio is at least
2.

Eviction: the blocks sent longest ago are evicted first, and of each prompt its tail first. With
``tracksInFlight``, a prompt stays until its request has ended and is the youngest then, as engines
keep the blocks of running sequences. The index then follows what the engine evicts, so a learned
ratio gets no margin; see [the study](../predicted-time-study.md#what-servers-have-evicted). Prompts
of a prefill stage age from when they are sent, because prefill servers compute them in that order
and release each one when it is computed. Prompts that other replicas have sent age likewise.
``maxIndexBytes`` limits all endpoints together. Above it, the endpoint that just got a prompt loses
its oldest blocks; if that endpoint has less than the average share, one with more loses them
instead.

Replicas (``--replica-state``): each sends the others the hashes of the prompts that it has sent to
each endpoint, within 0.1 s. So all replicas have the same index, except for the latest prompts. A
replica that joins gets the newest prompts, up to 2 MiB of hashes.

Gauges: ``prefix_indexer_size`` (blocks, summed over the endpoints), ``prefix_indexer_bytes``,
``prefix_indexer_bytes_limit``. Histograms for the chosen endpoint: ``prefix_indexer_hit_ratio``
(fraction of the prompt's blocks that it had) and ``prefix_indexer_hit_bytes`` (their length).
Counters of responses that report their usage, without those with a prefill elsewhere:
``prefix_indexer_prompt_tokens_total``; of these, ``prefix_indexer_predicted_tokens_total`` (cached
at the endpoint according to the index) and ``prefix_indexer_observed_tokens_total`` (cached
according to the endpoint).

Reads:  ``TOKENIZED_PROMPT``; ``PREFILL_PROFILE``; ``RESPONSE_USAGE``; ``cache_block_size``,
``cache_blocks``, ``prompt_tokens`` and ``prompts`` of ``endpoint.metrics``.
Writes: ``PREFIX_MATCHES``; an instance with a name other than its type writes its own key instead,
        for plugins that name it in ``prefixMatchInfoProducerName``.
Example::

    plugins:
      - type: approx-prefix-cache-producer
        parameters: {autoTune: false, blockSizeTokens: 128, maxIndexBytes: 268435456}
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec

from epp.data_layer.plugins import EndpointListener
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.replication.plugins import FactSharer, replica_key
from epp.request_control.plugins import (
    RESPONSE_USAGE,
    DataProducer,
    EndCause,
    ResponseComplete,
)
from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    PostSchedule,
    SchedulingResult,
    StateKey,
)
from epp_plugins.data_producers.media import BYTES_PER_TOKEN
from epp_plugins.data_producers.prefix_facts import (
    BYTES_PER_HASH,
    PrefixFacts,
    decode,
    encode,
)
from epp_plugins.data_producers.prefix_index import DEFAULT_MAX_BYTES, PrefixIndex
from epp_plugins.data_producers.prefix_predictions import PrefixPredictions
from epp_plugins.data_producers.prefix_record import EndpointPrefixes
from epp_plugins.state_keys import (
    DEFAULT_PREFILL_PROFILE,
    PREFILL_PROFILE,
    PREFIX_MATCHES,
    TOKENIZED_PROMPT,
    prefix_matches_of,
)

_DUMPED_ENDPOINTS: Final = 100
"""Maximum endpoints in the dumped state."""
_DUMPED_PROMPTS: Final = 20
"""Maximum shared prompts in the dumped state."""
DEFAULT_BLOCK_SIZE_TOKENS = 16
DEFAULT_CAPACITY = 31250

# The Go EPP's buckets.
_HIT_RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_HIT_BYTES = (0, *(16 << n for n in range(13)))  # 16 B to 64 KiB

NotNegative = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOneMiB = Annotated[int, msgspec.Meta(ge=1024 * 1024)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``approx-prefix-cache-producer``."""

    auto_tune: bool = True
    """Whether the engine's block size takes precedence over ``blockSizeTokens``."""
    block_size_tokens: int = DEFAULT_BLOCK_SIZE_TOKENS
    """Tokens per block if the engine's block size is unknown; below 64 it counts as 64. Greater
    than 0 unless ``autoTune`` is on."""
    block_size: int = 0
    """Deprecated name of ``blockSizeTokens``, used if that has its default; 0 and less for none."""
    max_prefix_tokens_to_match: NotNegative = 131072
    """Maximum tokens of a prompt that are hashed; 0 for ``maxPrefixBlocksToMatch``."""
    max_prefix_blocks_to_match: NotNegative = 2048
    """Deprecated: the same in blocks, used if ``maxPrefixTokensToMatch`` is 0; 0 for the whole
    prompt."""
    lru_capacity_per_server: int = DEFAULT_CAPACITY
    """Blocks kept for an endpoint whose engine does not report the size of its cache; 0 and less
    count as 31250."""
    tracks_in_flight: bool = False
    """Whether a prompt is kept until its request has ended, and ages from then on; the gateway must
    report every end. Otherwise, and at the server of a prefill stage, a prompt ages from the time
    at which it is sent."""
    max_index_bytes: AtLeastOneMiB = DEFAULT_MAX_BYTES
    """Estimated memory for all endpoints together, at least 1 MiB. A block takes about 10 bytes in
    prompts of 256 blocks, 120 in prompts of 4."""

    def __post_init__(self) -> None:
        if not self.auto_tune and self.tokens_per_block <= 0:
            raise ValueError(
                f"blockSizeTokens is {self.block_size_tokens}; without autoTune it must be at least"
                " 1"
            )

    @property
    def tokens_per_block(self) -> int:
        """``blockSizeTokens``, from either of its names."""
        if self.block_size > 0 and self.block_size_tokens == DEFAULT_BLOCK_SIZE_TOKENS:
            return self.block_size
        return self.block_size_tokens

    @property
    def capacity(self) -> int:
        """``lruCapacityPerServer``, or its default."""
        given = self.lru_capacity_per_server
        return given if given > 0 else DEFAULT_CAPACITY


class ApproxPrefixCacheProducer(
    DataProducer, PostSchedule, EndpointListener, ResponseComplete, FactSharer
):
    """Records which prompt blocks were sent to which endpoint."""

    type: ClassVar[str] = "approx-prefix-cache-producer"
    keeps_result: ClassVar[bool] = True
    only_with_usage: ClassVar[bool] = True
    reads: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)
    default_for: ClassVar[tuple[StateKey[Any], ...]] = (PREFIX_MATCHES,)

    def __init__(
        self, name: str, params: Params, *, metrics: PluginMetrics = NO_PLUGIN_METRICS
    ) -> None:
        self.name = name
        self.index = PrefixIndex(params.max_index_bytes)
        self._keys: dict[str, int] = {}
        """Replica keys of the endpoints of the pool by name."""
        self._by_key: dict[int, Endpoint] = {}
        self._facts: PrefixFacts | None = None
        """Facts not yet sent to other replicas; None if there are no other replicas."""
        self._matches = prefix_matches_of(name)
        # Set per instance, unlike the keys of most plugins: it depends on its name.
        self.writes: tuple[StateKey[Any], ...] = (self._matches,)  # type: ignore[misc]
        self._record = EndpointPrefixes(
            self.index,
            StateKey(f"hashed-prompt/{name}"),
            block_size=params.tokens_per_block,
            auto_tune=params.auto_tune,
            max_tokens=params.max_prefix_tokens_to_match,
            max_blocks=params.max_prefix_blocks_to_match,
            capacity=params.capacity,
            in_use=StateKey(f"prompt-in-use/{name}") if params.tracks_in_flight else None,
        )
        if params.tracks_in_flight:  # an instance's own
            self.only_with_usage = False  # type: ignore[misc]
        self._prefilled_by = StateKey[Endpoint](f"prefilled-by/{name}")
        for gauge, what, read in (
            ("size", "Prompt blocks held, summed over the endpoints.", self._entries),
            ("bytes", "Memory of the index of prompt blocks.", self._bytes),
            ("bytes_limit", "Most that the index of prompt blocks may take.", self._bytes_limit),
        ):
            metrics.gauge(self, f"prefix_indexer_{gauge}", what, read)
        self._hit_ratio = metrics.histogram(
            self,
            "prefix_indexer_hit_ratio",
            "Part of a prompt's blocks that the chosen endpoint held.",
            _HIT_RATIOS,
        )
        self._hit_bytes = metrics.histogram(
            self,
            "prefix_indexer_hit_bytes",
            "Length of the prompt's beginning that the chosen endpoint held.",
            _HIT_BYTES,
        )
        self._predictions = PrefixPredictions(self, metrics)

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        self._record.prepare(request, state)

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        state.write(self._matches, self._record.matches(request, endpoints, state))

    def post_schedule(
        self, request: LLMRequest, result: SchedulingResult, state: CycleState
    ) -> None:
        primary = result.endpoints[0].endpoint
        matches = state.read(self._matches)
        if matches is not None and matches.total_blocks:
            held = matches.blocks.get(primary.name, 0)
            self._hit_ratio.observe(held / matches.total_blocks)
            self._hit_bytes.observe(held * matches.block_size * BYTES_PER_TOKEN)
        self._enter(primary, request, state)
        if len(result.profiles) == 1:
            return
        prefill = result.profiles.get(state.read(PREFILL_PROFILE) or DEFAULT_PREFILL_PROFILE)
        if prefill is not None and prefill.endpoints:
            endpoint = prefill.endpoints[0].endpoint
            if endpoint is not primary:
                self._enter(endpoint, request, state, serves_response=False)
                state.write(self._prefilled_by, endpoint)

    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        self._record.ended(state)
        usage = state.read(RESPONSE_USAGE)
        if usage is None or usage.prompt_tokens <= 0:
            return
        matches = state.read(self._matches)
        if matches is None or not matches.total_blocks:
            return
        prefilled_by = state.read(self._prefilled_by)
        if prefilled_by is None:  # otherwise the reported cached tokens were transferred
            self._predictions.answered(matches, served_by.name, usage)
        for endpoint in (served_by, prefilled_by):
            if endpoint is not None:
                self._record.answered(endpoint.name, matches, usage.prompt_tokens)

    def scale_of(self, endpoint: Endpoint) -> float:
        """Return the number of index tokens that equal one token of the endpoint's cache."""
        return self._record.scale_of(endpoint.name)

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """Record the endpoint's key; the first prompt sent to it adds it to the index."""
        key = self._keys[endpoint.name] = replica_key(endpoint)
        self._by_key[key] = endpoint

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self._by_key.pop(self._keys.pop(endpoint.name, 0), None)
        self._record.drop(endpoint.name)

    def start_sharing(self) -> None:
        self._facts = PrefixFacts()

    def new_facts(self, max_bytes: int) -> bytes:
        return b"" if self._facts is None else self._facts.take(max_bytes)

    def all_facts(self, max_bytes: int) -> Iterator[bytes]:
        return self._parts(max_bytes)

    def learn(self, facts: bytes) -> None:
        by_key, record = self._by_key, self._record
        for key, block_size, hashes in decode(facts):
            endpoint = by_key.get(key)
            # Hashes with another block size would never be looked up.
            if endpoint is not None and hashes and block_size == record.size(endpoint):
                record.record(endpoint, hashes, block_size)

    def dump_state(self) -> Mapping[str, object]:
        return {
            **self.index.statistics()._asdict(),
            "max_bytes": self.index.max_bytes,
            "blocks_by_endpoint": self.index.largest(_DUMPED_ENDPOINTS),
            "endpoints_by_first_block": self.index.most_shared(_DUMPED_PROMPTS),
        }

    def _parts(self, max_bytes: int) -> Iterator[bytes]:
        sizes = self._record.sizes()
        most = self.max_all_facts_bytes // BYTES_PER_HASH // max(1, len(sizes))
        for name, size in tuple(sizes.items()):
            if (key := self._keys.get(name)) is None:
                continue
            part = bytearray()
            for hashes in self.index.prompts(name, most):
                fact = encode(key, size, hashes)
                if part and len(part) + len(fact) > max_bytes:
                    yield bytes(part)
                    part.clear()
                if len(fact) <= max_bytes:
                    part += fact
            if part:
                yield bytes(part)

    def _enter(
        self,
        endpoint: Endpoint,
        request: LLMRequest,
        state: CycleState,
        *,
        serves_response: bool = True,
    ) -> None:
        entered = self._record.enter(endpoint, request, state, serves_response=serves_response)
        if entered is None or self._facts is None:
            return
        if (key := self._keys.get(endpoint.name)) is not None:
            self._facts.add(key, *entered)

    def _entries(self) -> Mapping[tuple[str, ...], float]:
        return {(): self.index.statistics().entries}

    def _bytes(self) -> Mapping[tuple[str, ...], float]:
        return {(): self.index.bytes}

    def _bytes_limit(self) -> Mapping[tuple[str, ...], float]:
        return {(): self.index.max_bytes}

"""``approx-prefix-cache-producer``: guesses which endpoints hold the prompt's prefix in cache.

The prompt's tokens, its tools first, are cut into blocks, and each block's hash is seeded with the
one before::

    seed = xxh3(cacheSalt, xxh3(model))        # xxh3(model) without a salt
    h[0] = xxh3(block[0], seed),  h[i] = xxh3(block[i], h[i-1])

``model`` is the one that the server will see, so LoRA adapters share nothing. The last, partial
block is hashed too. An endpoint is taken to hold what was sent there; that of a prefill profile
holds the prompt as well, that of an encode profile does not. What is chosen is entered by the
scheduler's own step, so the second request of a burst already sees the first, also where nothing
but the scheduler runs.

Block size: with ``autoTune`` that of the endpoint's engine, if known, else ``blockSizeTokens``;
below 64 it counts as 64. In a pool with several sizes a prompt is hashed once for each size in use,
an endpoint is compared by its own, and matches are given in blocks of the smallest size, rounded
down. An endpoint whose size changes starts empty.

Capacity: an endpoint keeps as much as its engine's cache holds (``cache_blocks`` times
``cache_block_size`` tokens, followed when they change), or ``lruCapacityPerServer`` blocks where
not both are known. The engine counts real tokens, the index blocks of estimated ones (four bytes
each). How many of these a real token takes is learned for each endpoint: from the usage in answers,
where answers pass through here, else from the growth of the engine's own counters (vLLM, SGLang: of
prompt tokens and first tokens) against the prompts sent there. Until 16384 tokens are seen it
counts as 2, and what was learned has a margin of a quarter on top, so the index does not forget
before the engine does. If the engine counts more prompts than were sent from here, it stays at 2 at
least. The blocks sent longest ago go first, of each prompt its tail. All endpoints together
keep to ``maxIndexBytes``: beyond it the endpoint that was sent the prompt gives up its oldest, or,
if it has less than the average share, another that has more.

Gauges: ``prefix_indexer_size`` (blocks, summed over the endpoints), ``prefix_indexer_bytes``,
``prefix_indexer_bytes_limit``. Histograms, of the chosen endpoint: ``prefix_indexer_hit_ratio``
(part of the prompt's blocks that it holds) and ``prefix_indexer_hit_bytes`` (their length).

Reads:  ``TOKENIZED_PROMPT``; ``PREFILL_PROFILE``; ``ANSWER_USAGE``; ``cache_block_size``,
``cache_blocks``, ``prompt_tokens`` and ``prompts`` of ``endpoint.metrics``.
Writes: ``PREFIX_MATCHES``; under another name than its type its own key instead, which plugins read
        that name it in ``prefixMatchInfoProducerName``.
Example::

    plugins:
      - type: approx-prefix-cache-producer
        parameters: {autoTune: false, blockSizeTokens: 128, maxIndexBytes: 268435456}
"""

from collections.abc import Mapping, Sequence
from struct import iter_unpack
from typing import Annotated, Any, ClassVar

import msgspec
from xxhash import xxh3_64_intdigest

from epp.data_layer.plugins import EndpointListener
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.request_control.plugins import (
    ANSWER_USAGE,
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
from epp_plugins.data_producers.prefix_index import DEFAULT_MAX_BYTES, PrefixIndex
from epp_plugins.data_producers.token_scale import GENEROUS, TokenScale
from epp_plugins.state_keys import (
    DEFAULT_PREFILL_PROFILE,
    PREFILL_PROFILE,
    PREFIX_MATCHES,
    TOKENIZED_PROMPT,
    PrefixMatches,
    prefix_matches_of,
)

DEFAULT_BLOCK_SIZE_TOKENS = 16
MIN_BLOCK_SIZE_TOKENS = 64
"""Smaller blocks are raised to this at use, as in the reference."""
LONG_PROMPT_BYTES = 4096
"""From here on cutting all blocks in C pays: 158 us instead of 207 for 400 KB, but 1.0 instead of
0.5 for 500 bytes."""

# The reference's buckets.
_HIT_RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_HIT_BYTES = (0, *(16 << n for n in range(13)))  # 16 B to 64 KiB

Positive = Annotated[int, msgspec.Meta(gt=0)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOneMiB = Annotated[int, msgspec.Meta(ge=1024 * 1024)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``approx-prefix-cache-producer``."""

    auto_tune: bool = True
    """Whether an engine's own block size goes before ``blockSizeTokens``."""
    block_size_tokens: Positive = DEFAULT_BLOCK_SIZE_TOKENS
    """Tokens per block where the engine's are not known; below 64 it counts as 64."""
    block_size: NotNegative = 0
    """Deprecated name of ``blockSizeTokens``, used where that is left at its default."""
    max_prefix_tokens_to_match: NotNegative = 131072
    """Tokens of a prompt that are hashed at most; 0 for ``maxPrefixBlocksToMatch``."""
    max_prefix_blocks_to_match: Positive = 2048
    """Deprecated: the same in blocks, used if ``maxPrefixTokensToMatch`` is 0."""
    lru_capacity_per_server: Positive = 31250
    """Blocks kept per endpoint whose engine does not tell the size of its cache."""
    max_index_bytes: AtLeastOneMiB = DEFAULT_MAX_BYTES
    """Memory for all endpoints together, counted by its parts, at least 1 MiB: about 10 bytes for
    each block of prompts of 256 blocks, 120 for each of prompts of 4."""


class ApproxPrefixCacheProducer(DataProducer, PostSchedule, EndpointListener, ResponseComplete):
    """Remembers which prompt blocks were sent where."""

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
        self._params = params
        tokens = params.block_size_tokens
        if params.block_size and tokens == DEFAULT_BLOCK_SIZE_TOKENS:
            tokens = params.block_size
        self._block_size = max(MIN_BLOCK_SIZE_TOKENS, tokens)
        self._size_of: dict[str, int] = {}
        """Block sizes of the endpoints in the index."""
        self._endpoints_of: dict[int, int] = {}
        """How many of them have each size."""
        self._sizes: list[int] = []
        """All of those, the smallest first."""
        self._scales: dict[str, TokenScale] = {}
        """Of all endpoints that prompts were sent to."""
        self._matches = prefix_matches_of(name)
        # An instance's own, unlike other plugins' keys: it comes from its name.
        self.writes: tuple[StateKey[Any], ...] = (self._matches,)  # type: ignore[misc]
        self._hashed = StateKey[dict[int, Sequence[int]]](f"hashed-prompt/{name}")
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

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        if not self._params.auto_tune:
            self._hashes(request, self._block_size, state)

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        sizes = self._sizes
        if len(sizes) > 1:
            matches = self._match_each(request, sizes, state)
        else:
            if sizes:
                size = sizes[0]
            else:  # nobody holds anything yet
                size = self._size(endpoints[0]) if endpoints else self._block_size
            hashes = self._hashes(request, size, state)
            matches = PrefixMatches(self.index.match(hashes), len(hashes), size)
        state.write(self._matches, matches)

    def post_schedule(
        self, request: LLMRequest, result: SchedulingResult, state: CycleState
    ) -> None:
        hashed = state.read(self._hashed)
        if hashed is None:  # attach() failed, or never ran
            return
        primary = result.endpoints[0].endpoint
        matches = state.read(self._matches)
        if matches is not None and matches.total_blocks:
            held = matches.blocks.get(primary.name, 0)
            self._hit_ratio.observe(held / matches.total_blocks)
            self._hit_bytes.observe(held * matches.block_size * BYTES_PER_TOKEN)
        self._enter(primary, hashed, request, state)
        prefill = result.profiles.get(state.read(PREFILL_PROFILE) or DEFAULT_PREFILL_PROFILE)
        if prefill is not None and prefill.endpoints:
            endpoint = prefill.endpoints[0].endpoint
            if endpoint is not primary:
                self._enter(endpoint, hashed, request, state)
                state.write(self._prefilled_by, endpoint)

    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        usage = state.read(ANSWER_USAGE)
        if usage is None or usage.prompt_tokens <= 0:
            return
        matches = state.read(self._matches)
        if matches is None or not matches.total_blocks:
            return
        for endpoint in (served_by, state.read(self._prefilled_by)):
            if endpoint is not None and (scale := self._scales.get(endpoint.name)) is not None:
                scale.answered(matches.total_blocks * matches.block_size, usage.prompt_tokens)

    def scale_of(self, endpoint: Endpoint) -> float:
        """Return how many tokens of the index one of the endpoint's cache counts as."""
        scale = self._scales.get(endpoint.name)
        return GENEROUS if scale is None else scale.factor

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """Do nothing: an endpoint enters the index with the first prompt sent there."""

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self._forget(endpoint.name)
        self._scales.pop(endpoint.name, None)

    def _match_each(
        self, request: LLMRequest, sizes: Sequence[int], state: CycleState
    ) -> PrefixMatches:
        """Compare every endpoint by its own block size; in blocks of the smallest."""
        smallest = sizes[0]
        total = len(self._hashes(request, smallest, state))
        blocks = {}
        for size in sizes:
            hashes = self._hashes(request, size, state)
            # Equal hashes are equal prompts, so nobody is found with a size that is not his, unless
            # all of the prompt fits into one block.
            for name, held in self.index.match(hashes).items():
                # The last block may be partial: all blocks are all of the prompt.
                scaled = held * size // smallest if held < len(hashes) else total
                blocks[name] = min(scaled, total)
        return PrefixMatches(blocks, total, smallest)

    def _size(self, endpoint: Endpoint) -> int:
        known = endpoint.metrics.cache_block_size
        if known <= 0 or not self._params.auto_tune:
            return self._block_size
        return known if known > MIN_BLOCK_SIZE_TOKENS else MIN_BLOCK_SIZE_TOKENS

    def _enter(
        self,
        endpoint: Endpoint,
        hashed: Mapping[int, Sequence[int]],
        request: LLMRequest,
        state: CycleState,
    ) -> None:
        size = self._size(endpoint)
        hashes = hashed.get(size)
        if hashes is None:
            hashes = self._hashes(request, size, state)
        if not hashes:
            return
        name, metrics = endpoint.name, endpoint.metrics
        if self._size_of.get(name) != size:
            self._forget(name)
            self._size_of[name] = size
            self._count(size, 1)
        scale = self._scales.get(name)
        if scale is None:
            scale = self._scales[name] = TokenScale()
        scale.sent(len(hashes) * size, metrics)
        capacity = int(metrics.cache_blocks * metrics.cache_block_size * scale.factor / size)
        if capacity <= 0:
            capacity = self._params.lru_capacity_per_server
        self.index.add(name, hashes, capacity)

    def _forget(self, name: str) -> None:
        size = self._size_of.pop(name, None)
        if size is not None:
            self._count(size, -1)
            self.index.remove(name)

    def _count(self, size: int, more: int) -> None:
        counts = self._endpoints_of
        counts[size] = counts.get(size, 0) + more
        if not counts[size]:
            del counts[size]
        self._sizes = sorted(counts)

    def _hashes(self, request: LLMRequest, block_size: int, state: CycleState) -> Sequence[int]:
        """Return the hashes of the prompt's blocks, made once per size and request."""
        by_size = state.read(self._hashed)
        if by_size is None:
            by_size = {}
            state.write(self._hashed, by_size, until_sent=True)
        elif (hashed := by_size.get(block_size)) is not None:
            return hashed
        prompt = state.read(TOKENIZED_PROMPT)
        hashes: list[int] = []
        if prompt is not None:
            params = self._params
            tokens = params.max_prefix_tokens_to_match
            if not tokens:
                tokens = params.max_prefix_blocks_to_match * block_size
            hashes = hash_blocks(
                prompt.data[: tokens * BYTES_PER_TOKEN],
                block_size * BYTES_PER_TOKEN,
                seed_of(request.target_model, request.cache_salt),
            )
        by_size[block_size] = hashes
        return hashes

    def _entries(self) -> Mapping[tuple[str, ...], float]:
        return {(): self.index.statistics().entries}

    def _bytes(self) -> Mapping[tuple[str, ...], float]:
        return {(): self.index.bytes}

    def _bytes_limit(self) -> Mapping[tuple[str, ...], float]:
        return {(): self.index.max_bytes}


def seed_of(model: str, cache_salt: str) -> int:
    """Return the seed of the first block: other models and other salts share no block."""
    # surrogatepass: a client's JSON may hold a lone surrogate, which strict UTF-8 refuses.
    seed = xxh3_64_intdigest(model.encode("utf-8", "surrogatepass"))
    if cache_salt:
        seed = xxh3_64_intdigest(cache_salt.encode("utf-8", "surrogatepass"), seed)
    return seed


def hash_blocks(data: bytes, block_bytes: int, seed: int) -> list[int]:
    """Return the chained hashes of ``data`` in blocks, the last one perhaps short."""
    hashes: list[int] = []
    digest = xxh3_64_intdigest
    whole = 0
    if len(data) >= LONG_PROMPT_BYTES:
        whole = len(data) - len(data) % block_bytes
        blocks = iter_unpack(f"{block_bytes}s", memoryview(data)[:whole])
        hashes = [seed := digest(block, seed) for (block,) in blocks]
    for start in range(whole, len(data), block_bytes):
        seed = digest(data[start : start + block_bytes], seed)
        hashes.append(seed)
    return hashes

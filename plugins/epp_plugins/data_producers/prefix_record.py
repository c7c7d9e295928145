"""Records which prompts were sent to which endpoint, for ``approx-prefix-cache-producer``.

The index holds the prompts of each endpoint in blocks of that endpoint's size, and as many blocks
as its cache has room for.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from epp.scheduling import CycleState, Endpoint, LLMRequest, StateKey
from epp_plugins.data_producers.media import BYTES_PER_TOKEN
from epp_plugins.data_producers.prefix_hashes import hash_blocks, seed_of
from epp_plugins.data_producers.prefix_index import PrefixIndex, PromptUse
from epp_plugins.data_producers.token_scale import GENEROUS, MARGIN, TokenScale
from epp_plugins.state_keys import TOKENIZED_PROMPT, PrefixMatches

MIN_BLOCK_SIZE_TOKENS: Final = 64
"""Smaller block sizes are raised to this, as in the Go EPP."""
_NO_MARGIN: Final = 1.0
"""Margin of an index that evicts the same prompts as the server."""


class EndpointPrefixes:
    """The index of one producer, with the block size and the capacity of each endpoint.

    Args:
        index: Holds the blocks.
        hashed: Key of a request's hashes by block size; no other object may use it.
        block_size: Tokens per block where the engine's block size is unknown.
        auto_tune: Whether the engine's block size takes precedence.
        max_tokens: Maximum tokens of a prompt that are hashed; 0 for ``max_blocks``.
        max_blocks: Maximum blocks of a prompt that are hashed, if ``max_tokens`` is 0; 0 for all.
        capacity: Blocks of an endpoint whose engine does not report the size of its cache.
        in_use: Key of a request's prompt in use; no other object may use it. None to let prompts
            age from the time at which they are sent.
    """

    __slots__ = (
        "_auto_tune",
        "_block_size",
        "_capacity",
        "_endpoints_of",
        "_hashed",
        "_in_use",
        "_max_blocks",
        "_max_tokens",
        "_scales",
        "_size_of",
        "_sizes",
        "index",
    )

    def __init__(
        self,
        index: PrefixIndex,
        hashed: StateKey[dict[int, Sequence[int]]],
        *,
        block_size: int,
        auto_tune: bool,
        max_tokens: int,
        max_blocks: int,
        capacity: int,
        in_use: StateKey[PromptUse] | None = None,
    ) -> None:
        self.index = index
        self._in_use = in_use
        self._hashed = hashed
        self._block_size = max(MIN_BLOCK_SIZE_TOKENS, block_size)
        self._auto_tune = auto_tune
        self._max_tokens = max_tokens
        self._max_blocks = max_blocks
        self._capacity = capacity
        self._size_of: dict[str, int] = {}
        """Block size of each endpoint in the index."""
        self._endpoints_of: dict[int, int] = {}
        """Number of endpoints with each block size."""
        self._sizes: list[int] = []
        """All block sizes, ascending."""
        self._scales: dict[str, TokenScale] = {}
        """Scales of all endpoints to which prompts were sent."""

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        """Hash the prompt, unless the block size depends on the endpoints."""
        if not self._auto_tune:
            self._hashes(request, self._block_size, state)

    def matches(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> PrefixMatches:
        """Return how many blocks of the prompt each endpoint holds."""
        sizes = self._sizes
        if len(sizes) > 1:
            return self._match_each(request, sizes, state)
        size = sizes[0] if sizes else self._block_size
        if endpoints and not sizes:  # the index is empty
            size = self.size(endpoints[0])
        hashes = self._hashes(request, size, state)
        return PrefixMatches(self.index.match(hashes), len(hashes), size)

    def enter(
        self,
        endpoint: Endpoint,
        request: LLMRequest,
        state: CycleState,
        *,
        serves_response: bool = True,
    ) -> tuple[int, Sequence[int]] | None:
        """Record that the prompt was sent to ``endpoint``.

        Args:
            endpoint: The endpoint.
            request: Has the prompt.
            state: State of the request.
            serves_response: Whether the endpoint keeps the prompt until the end of the request.

        Returns:
            The block size and the hashes; None if nothing was hashed, or there is no prompt.
        """
        if state.read(self._hashed) is None:  # attach() failed, or never ran
            return None
        size = self.size(endpoint)
        hashes = self._hashes(request, size, state)
        if not hashes:
            return None
        capacity = self._capacity_for(endpoint, hashes, size)
        if self._in_use is None or not serves_response:
            self.index.add(endpoint.name, hashes, capacity)
        else:
            self.ended(state)  # of an earlier choice
            use = self.index.add_in_use(endpoint.name, hashes, capacity)
            if use is not None:
                state.write(self._in_use, use)
        return size, hashes

    def record(self, endpoint: Endpoint, hashes: Sequence[int], size: int) -> None:
        """Enter a prompt that another replica has sent into the index."""
        self.index.add(endpoint.name, hashes, self._capacity_for(endpoint, hashes, size))

    def ended(self, state: CycleState) -> None:
        """Note the end of a request: its prompt may be evicted from now on."""
        if self._in_use is None:
            return
        use = state.read(self._in_use)
        if use is not None:
            state.forget(self._in_use)
            self.index.release(use)

    def _capacity_for(self, endpoint: Endpoint, hashes: Sequence[int], size: int) -> int:
        """Return the capacity of an endpoint, in blocks, when it is sent a prompt."""
        name, metrics = endpoint.name, endpoint.metrics
        if self._size_of.get(name) != size:
            self.forget(name)
            self._size_of[name] = size
            self._count(size, 1)
        scale = self._scales.get(name)
        if scale is None:
            margin = MARGIN if self._in_use is None else _NO_MARGIN
            scale = self._scales[name] = TokenScale(margin)
        scale.sent(len(hashes) * size, metrics)
        cached = metrics.cache_blocks * metrics.cache_block_size
        capacity = int(cached * scale.factor / size) if cached else 0
        return capacity if capacity > 0 else self._capacity

    def answered(self, name: str, matches: PrefixMatches, prompt_tokens: int) -> None:
        """Learn from the number of prompt tokens that the endpoint ``name`` has reported."""
        scale = self._scales.get(name)
        if scale is not None:
            scale.answered(matches.total_blocks * matches.block_size, prompt_tokens)

    def scale_of(self, name: str) -> float:
        """Return the number of index tokens that equal one token of the endpoint's cache."""
        scale = self._scales.get(name)
        return GENEROUS if scale is None else scale.factor

    def size(self, endpoint: Endpoint) -> int:
        """Return the block size of an endpoint in tokens."""
        known: int = endpoint.metrics.cache_block_size
        if known <= 0 or not self._auto_tune:
            return self._block_size
        return known if known > MIN_BLOCK_SIZE_TOKENS else MIN_BLOCK_SIZE_TOKENS

    def sizes(self) -> Mapping[str, int]:
        """Return the block size of each endpoint in the index, by name."""
        return self._size_of

    def forget(self, name: str) -> None:
        """Remove the blocks of an endpoint; keep its scale."""
        size = self._size_of.pop(name, None)
        if size is not None:
            self._count(size, -1)
            self.index.remove(name)

    def drop(self, name: str) -> None:
        """Remove the blocks and the scale of an endpoint."""
        self.forget(name)
        self._scales.pop(name, None)

    def _match_each(
        self, request: LLMRequest, sizes: Sequence[int], state: CycleState
    ) -> PrefixMatches:
        """Compare each endpoint by its own block size; return blocks of the smallest size."""
        smallest = sizes[0]
        total = len(self._hashes(request, smallest, state))
        blocks: dict[str, int] = {}
        for size in sizes:
            hashes = self._hashes(request, size, state)
            # Equal hashes mean equal prompts, so an endpoint is found only with its own size,
            # unless the whole prompt fits into one block.
            for name, held in self.index.match(hashes).items():
                # The last block may be partial, so all blocks held means the whole prompt.
                scaled = held * size // smallest if held < len(hashes) else total
                blocks[name] = min(scaled, total)
        return PrefixMatches(blocks, total, smallest)

    def _count(self, size: int, more: int) -> None:
        counts = self._endpoints_of
        counts[size] = counts.get(size, 0) + more
        if not counts[size]:
            del counts[size]
        self._sizes = sorted(counts)

    def _hashes(self, request: LLMRequest, block_size: int, state: CycleState) -> Sequence[int]:
        """Return the hashes of the prompt's blocks, computed once per size and request."""
        by_size = state.read(self._hashed)
        if by_size is None:
            by_size = {}
            state.write(self._hashed, by_size, until_sent=True)
        elif (hashed := by_size.get(block_size)) is not None:
            return hashed
        prompt = state.read(TOKENIZED_PROMPT)
        hashes: list[int] = []
        if prompt is not None:
            tokens = self._max_tokens or self._max_blocks * block_size
            data, most_bytes = prompt.data, tokens * BYTES_PER_TOKEN
            if 0 < most_bytes < len(data):  # compiled, a slice of all would be a copy
                data = data[:most_bytes]
            seed = seed_of(request.target_model, request.cache_salt)
            hashes = hash_blocks(data, block_size * BYTES_PER_TOKEN, seed)
        by_size[block_size] = hashes
        return hashes

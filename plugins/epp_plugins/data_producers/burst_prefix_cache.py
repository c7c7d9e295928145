"""``burst-prefix-cache-producer``: places concurrent requests of one prompt together.

It is meant for bursts such as the samples of a reinforcement-learning step: all arrive before any
endpoint has cached the prompt, so no other signal shows where to send them. The first request opens
a window of ``windowDurationMs``; every request with a prompt waits until the window ends. Then all
requests of the window are placed:

* requests with the same prompt go to one endpoint, at most ``maxPerReplica`` of them; the next ones
  go to the next endpoint;
* with ``minColocateBlocks``, different prompts that share at least that many leading blocks are
  placed, too; each goes to the endpoint to which this window has assigned the longest matching
  prefix, if that endpoint has less than its fair share (requests divided by endpoints, rounded up);
* otherwise they go to the endpoint with the least load from this window, counted in requests, or
  with ``balanceBy: tokens`` in prompt blocks that it must compute.

Prompts of several requests are placed before others, and longer ones before shorter ones. The
producer reports that the chosen endpoint has all of the prompt cached and the others nothing; for a
request that is not placed, no endpoint has a match. Blocks are hashed as by
``approx-prefix-cache-producer``; prompts for different models or cache salts never match.

A request is not placed, and does not wait, if the window already has ``maxBatchSize`` requests or
32 MiB of hashes; ``burst_prefix_left_out_total`` counts these. The Go EPP's producer fails in
this case, with the same effect on the request. A prompt without a whole ``blockSizeTokens`` in
``maxPrefixTokensToMatch`` is not placed either.

The Go EPP does not specify the endpoints for a burst whose requests have different candidates:
here all endpoints of the pool are used. If a request may not go to its endpoint, it has no match.

Reads:  ``TOKENIZED_PROMPT``.
Writes: ``PREFIX_MATCHES`` of its own name, for plugins that name it in
        ``prefixMatchInfoProducerName``.
Example::

    plugins:
      - type: burst-prefix-cache-producer
        parameters: {windowDurationMs: 50, minColocateBlocks: 4}
      - type: prefix-cache-scorer
        parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}
"""

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from epp.data_layer.plugins import EndpointListener
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.request_control.plugins import AsyncDataProducer
from epp.scheduling import CycleState, Endpoint, LLMRequest, StateKey
from epp_plugins.data_producers.burst_placement import BLOCK_BYTES, PlacementRules, place
from epp_plugins.data_producers.media import BYTES_PER_TOKEN
from epp_plugins.data_producers.prefix_hashes import hash_blocks, seed_of
from epp_plugins.state_keys import TOKENIZED_PROMPT, PrefixMatches, prefix_matches_of

DEFAULT_MOST_BLOCKS: Final = 2048
MAX_WINDOW_BYTES: Final = 32 << 20
"""Maximum bytes of the hashes of one window: clients choose the length of their prompts."""
_SPARE_SECONDS: Final = 0.4
"""Time after the end of the window for a request to resume."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``burst-prefix-cache-producer``."""

    window_duration_ms: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    """Length of a window in milliseconds, and the longest wait of a request."""
    max_per_replica: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """Maximum requests of one prompt for an endpoint in a window; -1 for no limit."""
    block_size_tokens: Annotated[int, msgspec.Meta(gt=0)] = 64
    """Tokens per block."""
    max_prefix_tokens_to_match: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Maximum tokens of a prompt that are compared; 0 for 2048 blocks."""
    min_colocate_blocks: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Leading blocks that different prompts must share to be placed together; 0 places only
    identical prompts."""
    max_batch_size: Annotated[int, msgspec.Meta(ge=-1)] = 1000
    """Maximum requests in a window; -1 for no limit."""
    balance_by: Annotated[
        Literal["requests", "tokens"], msgspec.Meta(extra={"empty_is_absent": True})
    ] = "requests"
    """Quantity that is balanced over the endpoints within a window."""

    def __post_init__(self) -> None:
        for name, value in (
            ("maxPerReplica", self.max_per_replica),
            ("maxBatchSize", self.max_batch_size),
        ):
            if value == 0:
                raise ValueError(f"{name} is 0; give at least 1, or -1 for any number")


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request in a window."""

    prompt: bytes
    """Hashes of its blocks."""
    replica: str | None = None


@dataclass(slots=True, eq=False)
class _Window:
    """Requests that are placed together."""

    waiting: dict[_Waiting, None] = field(default_factory=dict)
    size: int = 0
    """Bytes of their hashes."""
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class BurstPrefixCacheProducer(AsyncDataProducer, EndpointListener):
    """Collects requests for a short window and places those with a common prompt together."""

    type: ClassVar[str] = "burst-prefix-cache-producer"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)

    def __init__(
        self, name: str, params: Params, *, metrics: PluginMetrics = NO_PLUGIN_METRICS
    ) -> None:
        self.name = name
        self.timeout_seconds = params.window_duration_ms / 1000 + _SPARE_SECONDS
        self._window_seconds = params.window_duration_ms / 1000
        self._rules = PlacementRules(
            params.max_per_replica, params.min_colocate_blocks, params.balance_by == "tokens"
        )
        self._block_size = params.block_size_tokens
        self._most_blocks = DEFAULT_MOST_BLOCKS
        if params.max_prefix_tokens_to_match:
            self._most_blocks = params.max_prefix_tokens_to_match // params.block_size_tokens
        self._most_requests = params.max_batch_size
        self._matches = prefix_matches_of(name)
        # Set per instance, unlike the keys of most plugins: it depends on its name.
        self.writes: tuple[StateKey[Any], ...] = (self._matches,)  # type: ignore[misc]
        self._placed = StateKey[_Waiting](f"placed-in-burst/{name}")
        self._window: _Window | None = None
        self._replicas: dict[str, None] = {}
        self._left_out = metrics.counter(
            self,
            "burst_prefix_left_out_total",
            "Requests that came when the window of a burst was full.",
        )

    def applies_to(self, request: LLMRequest, state: CycleState) -> bool:
        prompt = state.read(TOKENIZED_PROMPT)
        return prompt is not None and bool(prompt.data) and self._most_blocks > 0

    async def prepare_async(self, request: LLMRequest, state: CycleState) -> None:
        waiting = _Waiting(self._hashed(request, state))
        window = self._window
        if window is None:
            window = self._window = _Window()
            asyncio.get_running_loop().call_later(self._window_seconds, self._close_window, window)
        if self._is_full(window, waiting):
            self._left_out.inc()
            return
        window.waiting[waiting] = None
        window.size += len(waiting.prompt)
        try:
            await window.is_over.wait()
        except asyncio.CancelledError:
            if not window.is_over.is_set():
                del window.waiting[waiting]
                window.size -= len(waiting.prompt)
            raise
        state.write(self._placed, waiting, until_sent=True)

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        waiting = state.read(self._placed)
        if waiting is None:
            return
        total = len(waiting.prompt) // BLOCK_BYTES
        blocks = {} if waiting.replica is None else {waiting.replica: total}
        state.write(self._matches, PrefixMatches(blocks, total, self._block_size))

    def endpoint_added(self, endpoint: Endpoint) -> None:
        self._replicas[endpoint.name] = None

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self._replicas.pop(endpoint.name, None)

    def dump_state(self) -> Mapping[str, object]:
        window = self._window
        return {
            "endpoints": len(self._replicas),
            "waiting_requests": 0 if window is None else len(window.waiting),
            "max_requests": self._most_requests,
            "hash_bytes": 0 if window is None else window.size,
            "max_hash_bytes": MAX_WINDOW_BYTES,
        }

    def _is_full(self, window: _Window, waiting: _Waiting) -> bool:
        return (
            len(window.waiting) == self._most_requests
            or window.size + len(waiting.prompt) > MAX_WINDOW_BYTES
        )

    def _hashed(self, request: LLMRequest, state: CycleState) -> bytes:
        prompt = state.read(TOKENIZED_PROMPT)
        block_bytes = self._block_size * BYTES_PER_TOKEN
        data = b"" if prompt is None else prompt.data[: self._most_blocks * block_bytes]
        seed = seed_of(request.target_model, request.cache_salt)
        return array("Q", hash_blocks(data, block_bytes, seed)).tobytes()

    def _close_window(self, window: _Window) -> None:
        self._window = None
        window.is_over.set()
        waiting = list(window.waiting)
        prompts = [each.prompt for each in waiting]
        for each, replica in zip(
            waiting, place(prompts, list(self._replicas), self._rules), strict=True
        ):
            each.replica = replica

"""``prefix-cache-affinity-filter``: keeps the endpoints that have cached the prompt, unless busy.

An endpoint is sticky if it holds at least the fraction ``affinityThreshold`` of the prompt's
blocks. The filter keeps the sticky endpoints. It keeps all endpoints if the threshold is 0 or less,
if none is sticky, with the probability ``explorationProbability``, and if affinity would delay the
request too much::

    ttft = tokens in flight / peakPrefillThroughput * 1000
    min ttft of sticky endpoints - min ttft of the others > maxTTFTPenaltyMs

Unknown values count as 0: no blocks, no tokens in flight.

Measure ``peakPrefillThroughput`` on your own model and GPU; the default is that of a model with 32
billion parameters on two H100.

Reads:  ``PREFIX_MATCHES``, written by ``approx-prefix-cache-producer``; ``IN_FLIGHT_LOAD``
        (tokens), written by ``inflight-load-producer``, unless ``maxTTFTPenaltyMs`` is 0.
Example::

    plugins:
      - type: prefix-cache-affinity-filter
        parameters: {affinityThreshold: 0.9, explorationProbability: 0.01}
"""

import random
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec

from epp.scheduling import AttributeKey, CycleState, Endpoint, Filter, LLMRequest, StateKey
from epp_plugins.state_keys import (
    IN_FLIGHT_LOAD,
    PREFIX_MATCHES,
    in_flight_load_of,
    prefix_matches_of,
)

THROUGHPUT: Final = "prefillThroughput"
PREDICTOR: Final = "latencyPredictor"

Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``prefix-cache-affinity-filter``."""

    newer_fields: ClassVar[dict[str, str]] = {
        "maxTokensInFlightPenalty": "leave it out and bound the wait with `maxTTFTPenaltyMs`"
    }

    affinity_threshold: Annotated[float, msgspec.Meta(le=1.0)] = 0.8
    """Minimum fraction of the prompt's blocks on a sticky endpoint, at most 1.0; 0 and less turn
    the filter off."""
    exploration_probability: Fraction = 0.0
    """Probability that all endpoints are kept anyway, 0.0 to 1.0."""
    max_ttft_penalty_ms: NotNegative = msgspec.field(default=18_000.0, name="maxTTFTPenaltyMs")
    """Maximum delay of the first token for the sake of affinity; 0 for no maximum."""
    ttft_source: str = THROUGHPUT
    """How the time to the first token is estimated: ``prefillThroughput``. ``latencyPredictor`` is
    not supported yet."""
    peak_prefill_throughput: NotNegative = 15_928.0
    """Prompt tokens that an endpoint computes per second."""
    prefix_match_info_producer_name: str = ""
    """Producer of the prefix matches; "" for ``approx-prefix-cache-producer``."""
    in_flight_load_producer_name: str = ""
    """Producer of the tokens in flight; "" for ``inflight-load-producer``."""
    latency_prediction_info_producer_name: str = ""
    """Unused: for ``latencyPredictor`` only."""

    def __post_init__(self) -> None:
        if self.ttft_source == PREDICTOR:
            raise ValueError(
                f"ttftSource: {PREDICTOR} is not supported yet; leave it out for {THROUGHPUT}"
            )
        if self.ttft_source != THROUGHPUT:
            raise ValueError(f"ttftSource: {self.ttft_source!r} is unknown; use {THROUGHPUT}")
        if self.max_ttft_penalty_ms > 0 and self.peak_prefill_throughput == 0:
            raise ValueError(
                "peakPrefillThroughput is 0; give tokens per second, or set maxTTFTPenaltyMs to 0"
                " for no maximum"
            )


class PrefixCacheAffinityFilter(Filter):
    """Keeps the endpoints that hold most of the prompt, unless they are too busy."""

    type: ClassVar[str] = "prefix-cache-affinity-filter"
    reads: ClassVar[tuple[StateKey[Any] | AttributeKey[Any], ...]] = (
        PREFIX_MATCHES,
        IN_FLIGHT_LOAD,
    )

    def __init__(self, name: str, params: Params, rng: random.Random | None = None) -> None:
        self.name = name
        self._threshold = params.affinity_threshold
        self._exploration = params.exploration_probability
        self._matches = prefix_matches_of(params.prefix_match_info_producer_name)
        self._load = in_flight_load_of(params.in_flight_load_producer_name)
        self._is_gated = params.max_ttft_penalty_ms > 0
        self._penalty_tokens = params.max_ttft_penalty_ms * params.peak_prefill_throughput / 1000
        # Set per instance, unlike the keys of most plugins: they depend on its parameters.
        self.reads = (  # type: ignore[misc]
            (self._matches, self._load) if self._is_gated else (self._matches,)
        )
        self._random = rng or random.Random()  # noqa: S311 - spreads load, no secret

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        matches = state.read(self._matches)
        threshold = self._threshold
        if matches is None or not matches.total_blocks or threshold <= 0 or len(endpoints) == 1:
            return list(endpoints)
        if self._exploration and self._random.random() < self._exploration:
            return list(endpoints)
        total = matches.total_blocks
        holders = {name for name, held in matches.blocks.items() if held / total >= threshold}
        if not holders:
            return list(endpoints)
        sticky = [endpoint for endpoint in endpoints if endpoint.name in holders]
        if not sticky or len(sticky) == len(endpoints):
            return list(endpoints)
        if self._is_gated:
            bearable = self._least_tokens(sticky) - self._penalty_tokens
            # No endpoint has fewer than 0 tokens, so under low load the others are not examined.
            if bearable > 0:
                others = [endpoint for endpoint in endpoints if endpoint.name not in holders]
                if self._least_tokens(others) < bearable:
                    return list(endpoints)
        return sticky

    def _least_tokens(self, endpoints: Sequence[Endpoint]) -> int:
        key = self._load
        return min(
            [
                0 if (load := endpoint.attributes.get(key)) is None else load.tokens
                for endpoint in endpoints
            ]
        )

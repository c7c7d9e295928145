"""``token-load-scorer``: prefers endpoints with few prompt tokens to compute.

For an endpoint with ``f`` tokens in flight from this EPP and ``u`` uncached tokens of this
request::

    score = 1 - min(f + u, queueThresholdTokens) / queueThresholdTokens

Unknown values count as 0 tokens.

Reads:  ``IN_FLIGHT_LOAD`` (tokens) and ``UNCACHED_TOKENS``, written by ``inflight-load-producer``.
Example::

    plugins:
      - type: token-load-scorer
        parameters: {queueThresholdTokens: 1048576}
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from epp.scheduling import AttributeKey, CycleState, Endpoint, LLMRequest, Scorer, StateKey
from epp_plugins.state_keys import (
    IN_FLIGHT_LOAD,
    UNCACHED_TOKENS,
    in_flight_load_of,
    uncached_tokens_of,
)

DEFAULT_THRESHOLD_TOKENS: Final = 4_194_304


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``token-load-scorer``."""

    queue_threshold_tokens: int = DEFAULT_THRESHOLD_TOKENS
    """Tokens at which an endpoint scores 0; 0 and less count as 4194304 (128 requests of 32768
    tokens)."""
    in_flight_load_producer_name: str = ""
    """Producer of both values; "" for ``inflight-load-producer``."""


class TokenLoadScorer(Scorer):
    """Scores endpoints by the tokens in flight and those that this request would add."""

    type: ClassVar[str] = "token-load-scorer"
    reads: ClassVar[tuple[StateKey[Any] | AttributeKey[Any], ...]] = (
        IN_FLIGHT_LOAD,
        UNCACHED_TOKENS,
    )

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._load = in_flight_load_of(params.in_flight_load_producer_name)
        self._uncached = uncached_tokens_of(params.in_flight_load_producer_name)
        # Set per instance, unlike the keys of most plugins: they come from a parameter.
        self.reads = (self._load, self._uncached)  # type: ignore[misc]
        threshold = params.queue_threshold_tokens
        self._threshold = threshold if threshold > 0 else DEFAULT_THRESHOLD_TOKENS

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        key, threshold = self._load, self._threshold
        loads = [
            0 if (load := endpoint.attributes.get(key)) is None else load.tokens
            for endpoint in endpoints
        ]
        uncached = state.read(self._uncached)
        if uncached is not None:
            total = uncached.total
            if cached := uncached.by_endpoint:
                own = cached.get
                loads = [
                    load + own(endpoint.name, total)
                    for load, endpoint in zip(loads, endpoints, strict=True)
                ]
            else:
                loads = [load + total for load in loads]
        return [
            0.0 if load >= threshold else 1.0 - load / threshold if load > 0 else 1.0
            for load in loads
        ]

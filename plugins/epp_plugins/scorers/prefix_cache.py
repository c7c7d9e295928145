"""``prefix-cache-scorer``: prefers endpoints that already hold the prompt's prefix.

For an endpoint that holds ``m`` of the prompt's ``n`` blocks of ``b`` tokens::

    score = w * min(1, m*b / matchLengthScaleTokens)**2 + (1 - w) * m / n
    w = matchLengthWeight

An endpoint without a match scores 0, and all do when there is no data.
``prefixMatchInfoProducerName`` names the producer to believe; "" is the default one. Same formula
as llm-d-router ``prefix-cache-scorer``.

Reads:  ``PREFIX_MATCHES`` from the cycle state, written by ``approx-prefix-cache-producer``.
Example::

    plugins:
      - type: prefix-cache-scorer
        parameters: {matchLengthWeight: 0.25}
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer, StateKey
from epp_plugins.state_keys import PREFIX_MATCHES, prefix_matches_of


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``prefix-cache-scorer``."""

    prefix_match_info_producer_name: str = ""
    match_length_weight: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    match_length_scale_tokens: Annotated[int, msgspec.Meta(gt=0)] = 8192


class PrefixCacheScorer(Scorer):
    """Scores endpoints by the share and the length of the cached prompt prefix."""

    type: ClassVar[str] = "prefix-cache-scorer"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (PREFIX_MATCHES,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._matches = prefix_matches_of(params.prefix_match_info_producer_name)
        self._weight = params.match_length_weight
        self._scale_tokens = params.match_length_scale_tokens

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        matches = state.read(self._matches)
        if matches is None or not matches.total_blocks or not matches.blocks:
            return [0.0] * len(endpoints)
        total = matches.total_blocks
        held = matches.blocks.get
        weight = self._weight
        if weight == 0.0:
            # 35 us instead of 44 for 1000 endpoints of which a fifth holds something.
            return [m / total if (m := held(e.name)) else 0.0 for e in endpoints]
        length_per_block = matches.block_size / self._scale_tokens
        share_weight = 1.0 - weight
        return [
            weight * min(1.0, m * length_per_block) ** 2 + share_weight * m / total
            for m in [held(e.name, 0) for e in endpoints]
        ]

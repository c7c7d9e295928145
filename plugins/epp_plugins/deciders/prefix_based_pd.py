"""``prefix-based-pd-decider``: sends prompts with many uncached tokens through the stage.

For a prompt of ``n`` tokens, of which the chosen endpoint holds ``m`` blocks of ``b`` tokens::

    use the stage if n >= promptTokens and n - m*b >= nonCachedTokens

``nonCachedTokens: 0``, the default, turns the decider off: the stage is never used, no data is
read, and no producer is added. The stage is not used either if no endpoint has been chosen yet, if
the prompt has no tokens, or if there are no prefix matches. An endpoint that is known to hold no
blocks has ``m = 0``.

Reads:  ``TOKENIZED_PROMPT`` from the cycle state, written by ``token-producer``, and
    ``PREFIX_MATCHES`` of the producer in ``prefixMatchInfoProducerName``.
Example::

    plugins:
      - type: prefix-based-pd-decider
        parameters: {nonCachedTokens: 512}
      - type: disagg-profile-handler
        parameters: {deciders: {prefill: prefix-based-pd-decider}}
      - type: prefill-filter
      - type: decode-filter
    schedulingProfiles:
      - {name: prefill, plugins: [{pluginRef: prefill-filter}]}
      - {name: decode, plugins: [{pluginRef: decode-filter}]}
"""

from typing import Annotated, Any, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, StageDecider, StateKey
from epp_plugins.state_keys import TOKENIZED_PROMPT, prefix_matches_of

NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``prefix-based-pd-decider``."""

    non_cached_tokens: NotNegative = 0
    """Minimum uncached tokens for the stage; 0 turns the decider off."""
    prompt_tokens: NotNegative = 0
    """Minimum prompt tokens for the stage, cached or not; 0 for no minimum."""
    prefix_match_info_producer_name: str = ""
    """Producer of the prefix matches; "" for ``approx-prefix-cache-producer``."""


class PrefixBasedPdDecider(StageDecider):
    """Chooses the stage for requests with many uncached tokens."""

    type: ClassVar[str] = "prefix-based-pd-decider"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._matches = prefix_matches_of(params.prefix_match_info_producer_name)
        self._uncached_tokens = params.non_cached_tokens
        self._least_tokens = max(params.prompt_tokens, params.non_cached_tokens)
        self.reads: tuple[StateKey[Any], ...] = (
            (TOKENIZED_PROMPT, self._matches) if params.non_cached_tokens else ()
        )

    def wants_stage(
        self, request: LLMRequest, endpoint: Endpoint | None, state: CycleState
    ) -> bool:
        if not self._uncached_tokens or endpoint is None:
            return False
        prompt = state.read(TOKENIZED_PROMPT)
        if prompt is None or prompt.count < self._least_tokens:
            return False
        matches = state.read(self._matches)
        if matches is None:
            return False
        held = matches.blocks.get(endpoint.name, 0) * matches.block_size
        return prompt.count - held >= self._uncached_tokens

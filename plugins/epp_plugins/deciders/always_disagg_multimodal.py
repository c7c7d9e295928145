"""``always-disagg-multimodal-decider``: sends prompts with media through the stage.

A request goes through the stage if its tokenized prompt has an image, a video or audio
(``features``), regardless of the chosen endpoint. A prompt of text only, or without tokens, skips
the stage.

Reads:  ``TOKENIZED_PROMPT`` from the cycle state, written by ``token-producer``.
Example::

    plugins:
      - type: always-disagg-multimodal-decider
      - type: disagg-profile-handler
        parameters: {deciders: {encode: always-disagg-multimodal-decider}}
      - type: encode-filter
      - type: decode-filter
    schedulingProfiles:
      - {name: encode, plugins: [{pluginRef: encode-filter}]}
      - {name: decode, plugins: [{pluginRef: decode-filter}]}
"""

from typing import Any, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, StageDecider, StateKey
from epp_plugins.state_keys import TOKENIZED_PROMPT


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``always-disagg-multimodal-decider``: none."""


class AlwaysDisaggMultimodalDecider(StageDecider):
    """Chooses the stage for requests with media."""

    type: ClassVar[str] = "always-disagg-multimodal-decider"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def wants_stage(
        self, request: LLMRequest, endpoint: Endpoint | None, state: CycleState
    ) -> bool:
        prompt = state.read(TOKENIZED_PROMPT)
        return prompt is not None and bool(prompt.features)

"""``example-stage-decider``: sends long prompts through a separate prefill stage.

A request goes through the stage if its prompt is longer than ``maxBytes``.

Reads:  ``request.prompt``.
Example::

    plugins:
      - name: long-prompts
        type: file:example_stage_decider.py:ExampleStageDecider
        parameters: {maxBytes: 4096}
      - type: disagg-profile-handler
        parameters: {deciders: {prefill: long-prompts}}
      - type: prefill-filter
      - type: decode-filter
    schedulingProfiles:
      - {name: prefill, plugins: [{pluginRef: prefill-filter}]}
      - {name: decode, plugins: [{pluginRef: decode-filter}]}
"""

from typing import Annotated, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, StageDecider


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-stage-decider``."""

    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 4096
    """Maximum length, in bytes, of a prompt that the decode server computes itself."""


class ExampleStageDecider(StageDecider):
    """Chooses the stage for long prompts."""

    type: ClassVar[str] = "example-stage-decider"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._max_bytes = params.max_bytes

    def wants_stage(
        self, request: LLMRequest, endpoint: Endpoint | None, state: CycleState
    ) -> bool:
        return len(request.prompt) > self._max_bytes

"""``always-disagg-pd-decider``: sends every request through the stage.

It is for pools whose decode servers do not compute prompts, and for tests. It reads no data, so no
producer is added for it.

Example::

    plugins:
      - type: always-disagg-pd-decider
      - type: disagg-profile-handler
        parameters: {deciders: {prefill: always-disagg-pd-decider}}
      - type: prefill-filter
      - type: decode-filter
    schedulingProfiles:
      - {name: prefill, plugins: [{pluginRef: prefill-filter}]}
      - {name: decode, plugins: [{pluginRef: decode-filter}]}
"""

from typing import ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, StageDecider


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``always-disagg-pd-decider``: none."""


class AlwaysDisaggPdDecider(StageDecider):
    """Chooses the stage for every request."""

    type: ClassVar[str] = "always-disagg-pd-decider"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def wants_stage(
        self, request: LLMRequest, endpoint: Endpoint | None, state: CycleState
    ) -> bool:
        return True

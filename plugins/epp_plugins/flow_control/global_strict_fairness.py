"""``global-strict-fairness-policy``: treats a band as one queue, regardless of flows.

The band's ordering policy decides across all flows; equal requests are dispatched in the order of
arrival. There is no fairness between flows: a flow that floods the band is served in proportion to
its requests. This is the default of a band without ``fairnessPolicyRef``; it needs no entry in
``plugins``.

Example::

    plugins:
      - type: global-strict-fairness-policy
    flowControl:
      defaultPriorityBand: {fairnessPolicyRef: global-strict-fairness-policy}
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from epp.flow_control.plugins import FairnessPolicy, Flow


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``global-strict-fairness-policy`` has no parameters."""


class GlobalStrictFairnessPolicy(FairnessPolicy):
    """Orders the requests of a band across its flows."""

    type: ClassVar[str] = "global-strict-fairness-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def keys(self, flows: Sequence[Flow], now: float) -> list[tuple[Any, int]]:
        heads = [flow.head for flow in flows]
        return [(head.key, head.sequence) for head in heads]

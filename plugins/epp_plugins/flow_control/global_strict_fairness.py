"""``global-strict-fairness-policy``: the band is one queue, whoever the requests are from.

The flow goes first whose next request the band's ordering policy puts first; equals go by arrival.
So there is no fairness between flows: one that floods the band is served in proportion. This is
what bands do that name no ``fairnessPolicyRef``; it needs no entry in ``plugins``.

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
    """Serves the requests of a band in one order, across its flows."""

    type: ClassVar[str] = "global-strict-fairness-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def keys(self, flows: Sequence[Flow], now: float) -> list[tuple[Any, int]]:
        heads = [flow.head for flow in flows]
        return [(head.key, head.sequence) for head in heads]

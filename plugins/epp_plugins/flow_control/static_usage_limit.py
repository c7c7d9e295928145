"""``static-usage-limit-policy``: every band may go until the pool is as full as ``threshold``.

All bands share one ceiling, so priorities decide who goes next and nothing is held back for the
high ones. This is what holds without a ``usageLimitPolicyPluginRef``; it needs no entry in
``plugins``.

Example::

    plugins:
      - type: static-usage-limit-policy
        parameters: {threshold: 0.9}
    flowControl:
      usageLimitPolicyPluginRef: static-usage-limit-policy
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.flow_control.plugins import UsageLimitPolicy


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``static-usage-limit-policy``."""

    threshold: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    """Saturation from which on everybody waits; 1.0 is a full pool."""


class StaticUsageLimitPolicy(UsageLimitPolicy):
    """Gives all bands the same ceiling."""

    type: ClassVar[str] = "static-usage-limit-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._threshold = params.threshold

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> list[float]:
        return [self._threshold] * len(priorities)

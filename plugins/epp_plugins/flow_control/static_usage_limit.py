"""``static-usage-limit-policy``: all bands dispatch until the saturation reaches ``threshold``.

All bands have the same ceiling: priorities decide the order, and no capacity is reserved for high
bands. This is the default without ``usageLimitPolicyPluginRef``; it needs no entry in ``plugins``.

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
    """Saturation at which dispatching stops; 1.0 is a full pool."""


class StaticUsageLimitPolicy(UsageLimitPolicy):
    """Gives all bands the same ceiling."""

    type: ClassVar[str] = "static-usage-limit-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._threshold = params.threshold

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> list[float]:
        return [self._threshold] * len(priorities)

"""``example-usage-limit-policy``: reserves capacity for requests of priority 0 and above.

::

    ceiling = 1.0 for priorities of 0 and more, sheddableCeiling below

Example::

    featureGates: [flowControl]
    plugins:
      - type: file:example_usage_limit_policy.py:ExampleUsageLimitPolicy
        name: mine
        parameters: {sheddableCeiling: 0.8}
    flowControl:
      usageLimitPolicyPluginRef: mine
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.flow_control.plugins import UsageLimitPolicy


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-usage-limit-policy``."""

    sheddable_ceiling: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8
    """Saturation at which requests of negative priority wait; 1.0 is a full pool."""


class ExampleUsageLimitPolicy(UsageLimitPolicy):
    """Stops bands of negative priority at a lower saturation than others."""

    type: ClassVar[str] = "example-usage-limit-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._sheddable = params.sheddable_ceiling

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> list[float]:
        return [self._sheddable if priority < 0 else 1.0 for priority in priorities]

"""``soft-reflective-ceiling-policy``: slows low bands down as the pool fills.

With saturation ``s`` and ``n`` bands, of which the highest has ``i = 0``::

    ceiling = 1 - i * s / (n - 1)
    open    = always                               if i = 0 or s < ceiling
              never                                if s >= 1
              once in round(s / (1 - s)) times     otherwise

An open band dispatches until the pool is full; a closed one does not dispatch. Each band counts its
own evaluations. The highest band, or a single one, is always open. So low bands slow down
gradually, while ``priority-holdback-policy`` stops them at a fixed saturation.

Example::

    plugins:
      - type: soft-reflective-ceiling-policy
    flowControl:
      usageLimitPolicyPluginRef: soft-reflective-ceiling-policy
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from epp.flow_control.plugins import UsageLimitPolicy

_ALMOST_NOTHING = 1e-9  # as in the Go EPP; avoids a huge quotient if s is just below 1


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``soft-reflective-ceiling-policy`` has no parameters."""


class SoftReflectiveCeilingPolicy(UsageLimitPolicy):
    """Opens low bands less often as the pool fills."""

    type: ClassVar[str] = "soft-reflective-ceiling-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        # By priority, not by rank: adding a band must not change the pace of others.
        self._asked: dict[int, int] = {}

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> list[float]:
        last = len(priorities) - 1
        if len(self._asked) > last:  # bands come and go
            self._asked = {each: self._asked.get(each, 0) for each in priorities[1:]}
        return [
            1.0
            if rank == 0 or saturation < 1.0 - rank * saturation / last
            else self._in_turn(saturation, priority)
            for rank, priority in enumerate(priorities)
        ]

    def dump_state(self) -> Mapping[str, object]:
        return {"turns_by_priority": {str(each): turns for each, turns in self._asked.items()}}

    def _in_turn(self, saturation: float, priority: int) -> float:
        if not saturation < 1.0:  # also true for NaN
            return 0.0
        period = max(1, round(saturation / (1.0 - saturation + _ALMOST_NOTHING)))
        asked = self._asked[priority] = self._asked.get(priority, 0) + 1
        return 1.0 if asked % period == 0 else 0.0

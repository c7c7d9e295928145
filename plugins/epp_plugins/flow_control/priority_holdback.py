"""``priority-holdback-policy``: lower bands stop at a lower saturation than higher ones.

The highest of ``n`` bands dispatches until the saturation of the pool reaches ``maxCeiling``, the
lowest until it reaches ``minCeiling``. The ceilings between them depend on ``domain``::

    rank:  ceiling = max - i * (max - min) / (n - 1)                          # i = 0: highest band
    value: ceiling = max - (highest - p) / (highest - lowest) * (max - min)   # p: priority

A single band has ``maxCeiling``. With ``domain: explicit``, ``ceilings`` lists them by priority; a
priority that is not listed has the ceiling 0, so its requests wait until they time out.

Example::

    plugins:
      - type: priority-holdback-policy
        parameters: {minCeiling: 0.6, maxCeiling: 0.95}
    flowControl:
      usageLimitPolicyPluginRef: priority-holdback-policy
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import msgspec

from epp.flow_control.plugins import UsageLimitPolicy

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``priority-holdback-policy``."""

    min_ceiling: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] | None = None
    """Saturation at which the lowest band stops; required unless ``domain`` is ``explicit``."""
    max_ceiling: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None
    """Saturation at which the highest band stops; 1.0 if left out."""
    shape: Literal["linear"] | None = None
    """How ceilings decrease from band to band; only ``linear`` is supported."""
    domain: Literal["rank", "value", "explicit"] = "rank"
    """``rank``: equal steps; ``value``: steps in proportion to the differences of priority;
    ``explicit``: the ceilings of ``ceilings``."""
    ceilings: dict[str, Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]] | None = None
    """Ceilings by priority for ``domain: explicit``; a lower priority must not have a higher
    one."""

    def __post_init__(self) -> None:
        if self.domain == "explicit":
            self._check_explicit()
            return
        if self.ceilings is not None:
            raise ValueError("ceilings has no effect; remove it or write `domain: explicit`")
        if self.min_ceiling is None:
            raise ValueError("minCeiling is missing; write the lowest band's, such as 0.6")
        if self.min_ceiling >= self.highest:
            raise ValueError(
                f"minCeiling {self.min_ceiling} must be below maxCeiling {self.highest}"
            )

    @property
    def highest(self) -> float:
        """``maxCeiling`` or its default."""
        return 1.0 if self.max_ceiling is None else self.max_ceiling

    def by_priority(self) -> dict[int, float]:
        """Return ``ceilings`` with integer keys.

        Raises:
            ValueError: A key is not an integer.
        """
        for key in self.ceilings or ():
            if not _WHOLE_NUMBER.fullmatch(key):
                raise ValueError(f"ceilings has the key `{key}`; write a priority, such as 100")
        return {int(key): ceiling for key, ceiling in (self.ceilings or {}).items()}

    def _check_explicit(self) -> None:
        for field in ("min_ceiling", "max_ceiling", "shape"):
            if getattr(self, field) is not None:
                key = self.__struct_encode_fields__[self.__struct_fields__.index(field)]
                raise ValueError(f"{key} has no effect with `domain: explicit`; remove it")
        if not self.ceilings:
            raise ValueError("ceilings is missing; write one by priority, such as {100: 1.0}")
        falling = sorted(self.by_priority().items(), reverse=True)
        for (high, above), (low, below) in pairwise(falling):
            if below > above:
                raise ValueError(
                    f"ceilings[{low}] {below} must not be above ceilings[{high}] {above}, as"
                    f" priority {low} is lower"
                )


class PriorityHoldbackPolicy(UsageLimitPolicy):
    """Stops low bands before the pool is full."""

    type: ClassVar[str] = "priority-holdback-policy"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._by_value = params.domain == "value"
        self._explicit = params.by_priority() if params.domain == "explicit" else None
        self._lowest = params.min_ceiling or 0.0
        self._highest = params.highest

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> list[float]:
        if self._explicit is not None:
            return [self._explicit.get(priority, 0.0) for priority in priorities]
        lowest, highest = self._lowest, self._highest
        if len(priorities) < 2:  # noqa: PLR2004 - alone, or none
            return [highest] * len(priorities)
        spread = highest - lowest
        if self._by_value:
            top = priorities[0]
            reach = top - priorities[-1]
            return [highest - spread * ((top - priority) / reach) for priority in priorities]
        steps = len(priorities) - 1
        return [highest - spread * (rank / steps) for rank in range(steps + 1)]

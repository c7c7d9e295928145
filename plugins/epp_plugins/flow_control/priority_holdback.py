"""``priority-holdback-policy``: the lower a band, the more room it leaves to those above it.

The highest of ``n`` bands may go until the pool is as full as ``maxCeiling``, the lowest until it
is as full as ``minCeiling``, and those between them by ``domain``::

    rank:  ceiling = max - i * (max - min) / (n - 1)                          # i = 0: highest band
    value: ceiling = max - (highest - p) / (highest - lowest) * (max - min)   # p: priority

A band that is alone has ``maxCeiling``. With the domain ``explicit``, ``ceilings`` has them by
priority; one that it does not name has 0: its requests wait until their time is over.

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
    """Saturation from which on the lowest band waits; needed unless ``domain`` is explicit."""
    max_ceiling: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None
    """Saturation from which on the highest band waits; 1.0 if left out."""
    shape: Literal["linear"] | None = None
    """How ceilings fall from band to band; ``linear`` is all there is."""
    domain: Literal["rank", "value", "explicit"] = "rank"
    """Whether the steps are equal, or as large as those between the priorities, or listed."""
    ceilings: dict[str, Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]] | None = None
    """By priority, if ``domain`` is explicit; no higher for a lower priority."""

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
        """Return ``ceilings`` with its keys, which are texts in a file, as numbers.

        Raises:
            ValueError: One is no whole number.
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
    """Holds back low bands before the pool is full."""

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

"""``endpoint-attribute-scorer``: prefers endpoints by a number that one of their attributes is.

The number ``v`` is an attribute that an extractor wrote to the endpoint, such as one of the
``customMetrics`` of ``core-metrics-extractor``::

    score = (v - min) / (max - min)        # linear_higher_is_better
    score = (max - v) / (max - min)        # linear_lower_is_better

With ``normalization.fixedRange``, ``min`` and ``max`` are configured, and a number outside counts
as the nearer of the two. Else, or with ``adaptiveRange``, they are the least and the greatest
number among the candidates; if all are equal, those score 1. An endpoint without the attribute, or
with one that is no finite number, scores 0 and does not count for the range.

The attribute's name is ``attributeKey`` as the producer ``producer`` writes it. Without
``producer`` that is ``core-metrics-extractor``, or what stands behind the last slash in
``attributeKey``: ``GPUUtilization/dcgm-extractor`` is the same as ``attributeKey: GPUUtilization``
with ``producer: dcgm-extractor``. So a name with a slash of its own needs ``producer``; "" is for
attributes that bear no producer's name.

Same formula as llm-d-router ``endpoint-attribute-scorer``.

Reads:  the attribute named, off the endpoint's attributes.
Example::

    plugins:
      - type: dcgm-data-source
      - type: dcgm-extractor
      - type: endpoint-attribute-scorer
        parameters:
          attributeKey: GPUUtilization
          producer: dcgm-extractor
          algorithm:
            type: linear_lower_is_better
            normalization: {fixedRange: {min: 0, max: 1}}
    dataLayer:
      sources:
        - pluginRef: dcgm-data-source
          extractors: [{pluginRef: dcgm-extractor}]
"""

from collections.abc import Sequence
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from epp.scheduling import AttributeKey, CycleState, Endpoint, LLMRequest, Scorer
from epp_plugins.numbers import numbers_of
from epp_plugins.state_keys import attribute_of


class FixedRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The range that numbers are put into proportion to."""

    min: float = 0.0
    """Number that is one end of the scores."""
    max: float = 0.0
    """Number that is the other; greater than ``min``."""

    def __post_init__(self) -> None:
        if not self.min < self.max:
            raise ValueError(f"min must be less than max, got min {self.min} and max {self.max}")
        if not isfinite(self.max - self.min):
            raise ValueError(f"max - min must be finite, got min {self.min} and max {self.max}")


class AdaptiveRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The range of the candidates' numbers; has no parameters."""


class Normalization(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Which range numbers are put into proportion to; at most one."""

    fixed_range: FixedRange | None = None
    """This range, always the same."""
    adaptive_range: AdaptiveRange | None = None
    """The range of the candidates, as if nothing were configured."""

    def __post_init__(self) -> None:
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("fixedRange and adaptiveRange are both there; remove one of them")


class Algorithm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How a number becomes a score."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    """Which end of the range scores 1."""
    normalization: Normalization = Normalization()
    """Which range; that of the candidates by default."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``endpoint-attribute-scorer``."""

    attribute_key: Annotated[str, msgspec.Meta(min_length=1)]
    """Name of the attribute, or ``Name/producer`` if ``producer`` is left out."""
    algorithm: Algorithm
    """Which end is the better one (``type``), and of which range (``normalization``)."""
    producer: str | None = None
    """Plugin that writes it; left out for ``core-metrics-extractor``, "" for none in its name."""


class EndpointAttributeScorer(Scorer):
    """Scores endpoints by a number among their attributes, in proportion to a range."""

    type: ClassVar[str] = "endpoint-attribute-scorer"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._key = attribute_of(params.attribute_key, params.producer)
        self.optional_reads: tuple[AttributeKey[Any], ...] = (self._key,)
        self._lower_is_better = params.algorithm.type == "linear_lower_is_better"
        self._range = params.algorithm.normalization.fixed_range

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        numbers = numbers_of(endpoints, self._key)
        known = [number for number in numbers if number is not None]
        if not known:
            return [0.0] * len(numbers)
        if self._range is None:
            least, most = min(known), max(known)
        else:
            least, most = self._range.min, self._range.max
            numbers = [
                None if number is None else _clamped(number, least, most) for number in numbers
            ]
        if least == most:
            return [0.0 if number is None else 1.0 for number in numbers]
        spread = most - least
        if not isfinite(spread):  # a float holds no such distance, but its half
            least, most, spread = least / 2, most / 2, most / 2 - least / 2
            numbers = [None if number is None else number / 2 for number in numbers]
        if self._lower_is_better:
            return [0.0 if number is None else (most - number) / spread for number in numbers]
        return [0.0 if number is None else (number - least) / spread for number in numbers]


def _clamped(number: float, least: float, most: float) -> float:
    if number < least:
        return least
    return most if number > most else number

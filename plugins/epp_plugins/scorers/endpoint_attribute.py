"""``endpoint-attribute-scorer``: scores endpoints by a numeric attribute.

The number ``v`` is an attribute that an extractor wrote to the endpoint, such as one of the
``customMetrics`` of ``core-metrics-extractor``::

    score = (v - min) / (max - min)        # linear_higher_is_better
    score = (max - v) / (max - min)        # linear_lower_is_better

With ``normalization.fixedRange``, ``min`` and ``max`` are configured, and a number outside the
range is clamped to it. Otherwise, or with ``adaptiveRange``, they are the smallest and the largest
number among the candidates; if all numbers are equal, those endpoints score 1. An endpoint whose
attribute is missing or not a finite number scores 0 and does not affect the range.

The attribute is identified by its name (``attributeKey``) and the plugin that writes it
(``producer``). Without ``producer``, the part of ``attributeKey`` after its last slash is the
producer: ``GPUUtilization/dcgm-extractor`` is the same as ``attributeKey: GPUUtilization`` with
``producer: dcgm-extractor``. Without a slash, the producer is ``core-metrics-extractor``. If the
name itself contains a slash, set ``producer``. ``producer: ""`` is for attributes whose key has no
producer.

Same formula as llm-d-router ``endpoint-attribute-scorer``.

Reads:  the named attribute of the endpoint.
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
    """A configured range of numbers."""

    min: float = 0.0
    """Lower end of the range."""
    max: float = 0.0
    """Upper end of the range; greater than ``min``."""

    def __post_init__(self) -> None:
        if not self.min < self.max:
            raise ValueError(f"min must be less than max, got min {self.min} and max {self.max}")
        if not isfinite(self.max - self.min):
            raise ValueError(f"max - min must be finite, got min {self.min} and max {self.max}")


class AdaptiveRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The range of the candidates' numbers; has no parameters."""


class Normalization(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The range that numbers are normalized to; at most one field is set."""

    fixed_range: FixedRange | None = None
    """A fixed range."""
    adaptive_range: AdaptiveRange | None = None
    """The range of the candidates' numbers, which is the default."""

    def __post_init__(self) -> None:
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("fixedRange and adaptiveRange are both set; remove one of them")


class ScoreAlgorithm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How a number is converted to a score."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    """Which end of the range scores 1."""
    normalization: Normalization = Normalization()
    """The range; by default that of the candidates' numbers."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``endpoint-attribute-scorer``."""

    attribute_key: Annotated[str, msgspec.Meta(min_length=1)]
    """Name of the attribute, or ``Name/producer`` if ``producer`` is left out."""
    algorithm: ScoreAlgorithm
    """Whether lower or higher is better (``type``), and the range (``normalization``)."""
    producer: str | None = None
    """Plugin that writes it; by default ``core-metrics-extractor``; "" if the key has none."""


class EndpointAttributeScorer(Scorer):
    """Scores endpoints by a numeric attribute, relative to a range."""

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
        if not isfinite(spread):  # the difference overflows a float, its half does not
            least, most, spread = least / 2, most / 2, most / 2 - least / 2
            numbers = [None if number is None else number / 2 for number in numbers]
        if self._lower_is_better:
            return [0.0 if number is None else (most - number) / spread for number in numbers]
        return [0.0 if number is None else (number - least) / spread for number in numbers]


def _clamped(number: float, least: float, most: float) -> float:
    if number < least:
        return least
    return most if number > most else number

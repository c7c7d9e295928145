"""``endpoint-attribute-filter``: keeps endpoints whose numeric attribute satisfies a comparison.

The number is an attribute that an extractor wrote to the endpoint, such as one of the
``customMetrics`` of ``core-metrics-extractor``. An endpoint is kept if ``number operator value``
holds, with ``operator`` and ``value`` of ``algorithm.threshold``. An attribute that is not a finite
number counts as missing; ``onMissing`` decides whether such an endpoint is kept.

The attribute is identified by its name (``attribute``) and the plugin that writes it
(``producer``). Without ``producer``, the part of ``attribute`` after its last slash is the
producer: ``GPUUtilization/dcgm-extractor`` is the same as ``attribute: GPUUtilization`` with
``producer: dcgm-extractor``. Without a slash, the producer is ``core-metrics-extractor``. If the
name itself contains a slash, set ``producer``. ``producer: ""`` is for attributes whose key has no
producer.

Same rules as llm-d-router ``endpoint-attribute-filter``.

Reads:  the named attribute of the endpoint.
Example::

    plugins:
      - type: core-metrics-extractor
        parameters:
          engineConfigs:
            - name: vllm
              queuedRequestsSpec: vllm:num_requests_waiting
              runningRequestsSpec: vllm:num_requests_running
              kvUsageSpec: vllm:kv_cache_usage_perc
              customMetrics: [{attributeKey: gpu-heat, metricSpec: gpu_celsius}]
      - type: endpoint-attribute-filter
        parameters:
          attribute: gpu-heat
          onMissing: Fail
          fallbackOnEmpty: true
          algorithm: {type: threshold, threshold: {operator: LessThan, value: 85}}
"""

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from epp.scheduling import AttributeKey, CycleState, Endpoint, Filter, LLMRequest
from epp_plugins.numbers import numbers_of
from epp_plugins.state_keys import attribute_of

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A comparison with a constant."""

    operator: Literal[
        "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"
    ]
    """Operator between the number and ``value``."""
    value: float = 0.0
    """Value that the number is compared with."""


class AttributeCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The condition on the number."""

    type: Literal["threshold"]
    """Kind of condition; only ``threshold`` is supported."""
    threshold: Threshold
    """The comparison that must hold."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``endpoint-attribute-filter``."""

    attribute: Annotated[str, msgspec.Meta(min_length=1)]
    """Name of the attribute, or ``Name/producer`` if ``producer`` is left out."""
    algorithm: AttributeCondition
    """``type: threshold``, and the ``threshold`` to compare with."""
    producer: str | None = None
    """Plugin that writes it; by default ``core-metrics-extractor``; "" if the key has none."""
    on_missing: Annotated[
        Literal["Pass", "Fail"], msgspec.Meta(extra={"empty_is_absent": True})
    ] = "Pass"
    """Whether endpoints without the number are kept (``Pass``) or not (``Fail``)."""
    fallback_on_empty: bool = False
    """Keep all endpoints if none would be left."""


class EndpointAttributeFilter(Filter):
    """Keeps the endpoints whose attribute satisfies the comparison."""

    type: ClassVar[str] = "endpoint-attribute-filter"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._key = attribute_of(params.attribute, params.producer)
        self.optional_reads: tuple[AttributeKey[Any], ...] = (self._key,)
        self._compare = _OPERATORS[params.algorithm.threshold.operator]
        self._value = params.algorithm.threshold.value
        self._passes_missing = params.on_missing == "Pass"
        self._falls_back = params.fallback_on_empty

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        compare, value, passes_missing = self._compare, self._value, self._passes_missing
        kept = [
            endpoint
            for endpoint, number in zip(endpoints, numbers_of(endpoints, self._key), strict=True)
            if (passes_missing if number is None else compare(number, value))
        ]
        return kept if kept or not self._falls_back else list(endpoints)

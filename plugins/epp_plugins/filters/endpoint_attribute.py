"""``endpoint-attribute-filter``: keeps endpoints on which a number compares as configured.

The number is an attribute that an extractor wrote to the endpoint, such as one of the
``customMetrics`` of ``core-metrics-extractor``. An endpoint is kept if ``number operator value``
holds, with ``operator`` and ``value`` of ``algorithm.threshold``. What is no finite number counts
as missing; ``onMissing`` says what becomes of an endpoint without one.

The attribute's name is ``attribute`` as the producer ``producer`` writes it. Without ``producer``
that is ``core-metrics-extractor``, or what stands behind the last slash in ``attribute``:
``GPUUtilization/dcgm-extractor`` is the same as ``attribute: GPUUtilization`` with ``producer:
dcgm-extractor``. So a name with a slash of its own needs ``producer``; "" is for attributes that
bear no producer's name.

Same rules as llm-d-router ``endpoint-attribute-filter``.

Reads:  the attribute named, off the endpoint's attributes.
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
    """What the number is compared with."""

    operator: Literal[
        "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"
    ]
    """How the number must compare with ``value``."""
    value: float = 0.0
    """What it is compared with."""


class Algorithm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How endpoints are told apart by the number."""

    type: Literal["threshold"]
    """By a threshold; there is no other way."""
    threshold: Threshold
    """The comparison that must hold."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``endpoint-attribute-filter``."""

    attribute: Annotated[str, msgspec.Meta(min_length=1)]
    """Name of the attribute, or ``Name/producer`` if ``producer`` is left out."""
    algorithm: Algorithm
    """``type: threshold``, and the ``threshold`` to compare with."""
    producer: str | None = None
    """Plugin that writes it; left out for ``core-metrics-extractor``, "" for none in its name."""
    on_missing: Literal["Pass", "Fail"] = "Pass"
    """Whether endpoints without the number are kept (``Pass``) or not (``Fail``)."""
    fallback_on_empty: bool = False
    """Keep all endpoints where none would be left."""


class EndpointAttributeFilter(Filter):
    """Keeps the endpoints whose attribute compares as configured."""

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

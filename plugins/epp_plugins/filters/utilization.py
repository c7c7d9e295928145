"""``utilization-filter``: keeps endpoints whose load is within all limits.

Each of ``conditions`` limits one metric: an endpoint is kept if ``metric <= maxValue`` holds for
all of them. The metrics are:

* ``active-requests``: requests in flight from this endpoint picker, as counted by the producer
  ``inFlightLoadProducerName`` ("" is the default one);
* ``running-requests`` and ``waiting-queue``: effective numbers, that is, the server's own plus
  requests sent since then;
* ``kv-cache-utilization``: fraction of the KV cache in use, 0.0 to 1.0.

An unknown metric counts as 0, a ``kv-cache-utilization`` of NaN as 1. If no endpoint is left, the
request is refused; with ``fallbackOnEmpty`` all endpoints are kept instead. Same rules as
llm-d-router ``utilization-filter``.

Reads:  ``endpoint.load``; the endpoint attribute ``IN_FLIGHT_LOAD``, written by
``inflight-load-producer``, if a condition is on ``active-requests``.
Example::

    plugins:
      - type: utilization-filter
        parameters:
          conditions:
            - {metric: waiting-queue, maxValue: 8}
            - {metric: kv-cache-utilization, maxValue: 0.9}
          fallbackOnEmpty: true
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from epp.scheduling import AttributeKey, CycleState, Endpoint, Filter, LLMRequest
from epp_plugins.state_keys import in_flight_load_of

_LOAD: Final[dict[str, Callable[[Endpoint], float]]] = {
    "running-requests": attrgetter("load.running_requests"),
    "waiting-queue": attrgetter("load.waiting_requests"),
    "kv-cache-utilization": attrgetter("load.kv_cache_usage"),
}


class MetricLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The limit of one metric."""

    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    """Metric that is limited."""
    max_value: Annotated[float, msgspec.Meta(ge=0.0)]
    """Maximum value; at most 1.0 for ``kv-cache-utilization``."""

    def __post_init__(self) -> None:
        if self.metric == "kv-cache-utilization" and self.max_value > 1.0:
            raise ValueError(
                f"maxValue of kv-cache-utilization is a fraction, at most 1.0, got {self.max_value}"
            )


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``utilization-filter``."""

    conditions: Annotated[tuple[MetricLimit, ...], msgspec.Meta(min_length=1)]
    """Limits that must all hold; at least one."""
    fallback_on_empty: bool = False
    """Keep all endpoints if none would be left."""
    in_flight_load_producer_name: str = ""
    """Producer that counts ``active-requests``; "" for ``inflight-load-producer``."""


class UtilizationFilter(Filter):
    """Keeps the endpoints on which no metric exceeds its limit."""

    type: ClassVar[str] = "utilization-filter"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        key = in_flight_load_of(params.in_flight_load_producer_name)

        def active_requests(endpoint: Endpoint) -> float:
            load = endpoint.attribute(key)
            return 0 if load is None else load.requests

        readers = {"active-requests": active_requests, **_LOAD}
        self._limits = [(readers[each.metric], each.max_value) for each in params.conditions]
        self._falls_back = params.fallback_on_empty
        counts = any(each.metric == "active-requests" for each in params.conditions)
        self.reads: tuple[AttributeKey[Any], ...] = (key,) if counts else ()

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        kept = list(endpoints)
        for read, most in self._limits:
            kept = [
                endpoint
                for endpoint, value in zip(kept, map(read, kept), strict=True)
                if value <= most
            ]
        return kept if kept or not self._falls_back else list(endpoints)

"""``utilization-detector``: measures saturation by the queues and KV caches of the servers.

The saturation of an endpoint is that of its fuller resource; that of the pool is the mean::

    endpoint = max(waiting / queueDepthThreshold, kv cache usage / kvCacheUtilThreshold)
    pool     = mean over endpoints             # 1.0 is full; 1.0 without endpoints

As a filter it keeps the endpoints below both limits, and all of them if none is::

    waiting        < queueDepthThreshold * (1 + headroom)
    kv cache usage < kvCacheUtilThreshold * (1 + headroom)

The values are effective: the last scrape, corrected by the requests that this EPP has sent since.
Old values do not make an endpoint full: they fade to the median of the pool. An endpoint that was
never scraped counts as the median (or as idle, if none was ever scraped) plus the requests sent to
it. ``--scoring-staleness-threshold`` sets the age at which values fade, so
``metricsStalenessThreshold`` has no effect.

Reads:  ``waiting_requests`` and ``kv_cache_usage`` of ``endpoint.load``.
Example::

    plugins:
      - type: utilization-detector
        parameters: {queueDepthThreshold: 10, headroom: 0.2}
    flowControl:
      saturationDetector: {pluginRef: utilization-detector}
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.flow_control.plugins import SaturationDetector
from epp.inputs import duration_seconds
from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest


def _staleness_seconds(threshold: str | float) -> float:
    """Return a ``metricsStalenessThreshold`` in seconds.

    Raises:
        ValueError: ``threshold`` is 0 or not a duration.
    """
    if seconds := duration_seconds(threshold):
        return seconds
    raise ValueError("metricsStalenessThreshold is 0; write a longer duration, such as 200ms")


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``utilization-detector``."""

    queue_depth_threshold: Annotated[int, msgspec.Meta(gt=0)] = 5
    """Waiting requests at which an endpoint is full."""
    kv_cache_util_threshold: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.8
    """Fraction of the KV cache in use at which an endpoint is full."""
    # The check also gets numbers, and its error asks for a unit; the type's would ask for quotes.
    metrics_staleness_threshold: Annotated[
        str, msgspec.Meta(extra={"check": _staleness_seconds})
    ] = "200ms"
    """Accepted, without effect: old metrics fade (see above)."""
    headroom: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    """Fraction by which the filter's limits exceed the thresholds: 0.2 for 20 %."""


class UtilizationDetector(SaturationDetector, Filter):
    """Measures saturation by queues and KV caches; removes full endpoints."""

    type: ClassVar[str] = "utilization-detector"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        _staleness_seconds(params.metrics_staleness_threshold)
        self._queue_depth = params.queue_depth_threshold
        self._kv_usage = params.kv_cache_util_threshold
        self._most_waiting = params.queue_depth_threshold * (1.0 + params.headroom)
        self._most_kv_usage = params.kv_cache_util_threshold * (1.0 + params.headroom)

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        if not endpoints:
            return 1.0
        return mean_utilization(endpoints, self._queue_depth, self._kv_usage)

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        waiting, kv_usage = self._most_waiting, self._most_kv_usage
        kept = [
            endpoint
            for endpoint in endpoints
            if (load := endpoint.load).waiting_requests < waiting and load.kv_cache_usage < kv_usage
        ]
        return kept or list(endpoints)


def mean_utilization(
    endpoints: Sequence[Endpoint], queue_depth: float, kv_cache_usage: float
) -> float:
    """Return the mean utilization of ``endpoints``, each by its fuller resource.

    Args:
        endpoints: At least one endpoint.
        queue_depth: Waiting requests at which an endpoint is full.
        kv_cache_usage: Fraction of the KV cache in use at which an endpoint is full.
    """
    total = 0.0
    for endpoint in endpoints:
        load = endpoint.load
        queue = load.waiting_requests / queue_depth
        kv = load.kv_cache_usage / kv_cache_usage
        total += queue if queue > kv else kv
    return total / len(endpoints)

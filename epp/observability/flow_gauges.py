"""Gauges of flow control and pool saturation, computed at each Prometheus scrape.

Autoscalers use ``flow_control_queue_depth``: one series that always exists, even while no request
waits and while there are no endpoints.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_PREFIX = "llm_d_epp_flow_control_"

MAX_BANDS = 200
"""Maximum number of priorities with gauges of their own; the totals include all."""


class BandState(Protocol):
    """A priority band: its queue and limits."""

    @property
    def priority(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def max_requests(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...


class FlowState(Protocol):
    """State of flow control; read in the thread of the metrics server.

    The returned collections may change later; readers copy them in one step, by ``list()``.
    """

    @property
    def bands(self) -> Collection[BandState]:
        """All bands."""

    @property
    def max_requests(self) -> int | None:
        """Limit on queued requests of all bands; None or 0 for none."""

    @property
    def max_bytes(self) -> int | None:
        """Limit on the bytes of their bodies; None or 0 for none."""

    def saturation(self) -> Mapping[str, float]:
        """Return the saturation of the pool by stage: prefill, decode, effective."""

    def stale_endpoints(self) -> Mapping[str, int]:
        """Return the number of endpoints with stale metrics by name of the saturation detector."""


class FlowCollector(Collector):
    """The gauges of one pool.

    Args:
        pool: Its name.
        read: Returns the current state, None while flow control is off.
    """

    def __init__(self, pool: str, read: Callable[[], FlowState | None]) -> None:
        self._pool = pool
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read everything once."""
        state = self._read()
        bands = list(state.bands) if state else []
        waiting = sum(band.waiting for band in bands)
        yield self._gauge("queue_depth", "Requests that wait, in all.", waiting)
        if state is None:
            return
        yield from self._bands(bands)
        size_bytes = sum(band.size_bytes for band in bands)
        for name, used, limit in (
            ("global_capacity_utilization_requests", waiting, state.max_requests),
            ("global_capacity_utilization_bytes", size_bytes, state.max_bytes),
        ):
            if limit:
                yield self._gauge(name, "Fraction of what may wait in all bands.", used / limit)
        saturation = GaugeMetricFamily(
            f"{_PREFIX}pool_saturation",
            "How full the pool is by stage (prefill, decode, effective); from 1.0 on it is full.",
            labels=["inference_pool", "stage"],
        )
        for stage, value in list(state.saturation().items()):
            saturation.add_metric([self._pool, stage], value)
        stale = GaugeMetricFamily(
            f"{_PREFIX}stale_endpoints",
            "Endpoints of whose metrics a saturation detector has no fresh page.",
            labels=["detector"],
        )
        for detector, count in list(state.stale_endpoints().items()):
            stale.add_metric([detector], count)
        yield from (saturation, stale)

    def _bands(self, bands: Collection[BandState]) -> Iterator[Metric]:
        labels = ["priority", "inference_pool"]
        text = "Fraction of what may wait in a priority band."
        requests = GaugeMetricFamily(f"{_PREFIX}capacity_utilization_requests", text, labels=labels)
        size_bytes = GaugeMetricFamily(f"{_PREFIX}capacity_utilization_bytes", text, labels=labels)
        for band in islice(bands, MAX_BANDS):
            values = [str(band.priority), self._pool]
            if band.max_requests:
                requests.add_metric(values, band.waiting / band.max_requests)
            if band.max_bytes:
                size_bytes.add_metric(values, band.size_bytes / band.max_bytes)
        yield from (requests, size_bytes)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(_PREFIX + name, text, labels=["inference_pool"])
        family.add_metric([self._pool], value)
        return family

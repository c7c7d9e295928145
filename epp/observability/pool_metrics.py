"""Gauges and counters of the pool and its endpoints, read at each scrape of the metrics page."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from statistics import fmean, stdev

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.outlier_detection import OutlierDetector
from epp.scheduling import Endpoint


class PoolCollector(Collector):
    """Gauges of the pool and of each endpoint."""

    def __init__(
        self,
        pool: str,
        snapshot: Callable[[], Sequence[Endpoint]],
        *,
        staleness_seconds: float = inf,
        outliers: OutlierDetector | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._snapshot = snapshot
        self._staleness = staleness_seconds
        self._outliers = outliers
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Compute all gauges from the endpoints."""
        endpoints, now = self._snapshot(), self._clock()
        oldest = now - self._staleness
        fresh = [e for e in endpoints if (at := e.metrics.requested_at) is not None and at > oldest]
        outliers = self._outliers
        if outliers is not None:
            fresh = [e for e in fresh if outliers.may_be_picked(e)]
        fresh = [e for e in fresh if not e.is_draining]
        yield self._gauge("ready_endpoints", "Endpoints with fresh metrics.", len(fresh))
        yield from self._averages(fresh)
        queue = self._per_endpoint("per_endpoint_queue_size", "Queue per endpoint, as scraped.")
        flight = self._per_endpoint(
            "endpoint_inflight_requests", "Reservations: requests sent here that have not ended."
        )
        waiting = self._per_endpoint(
            "effective_queue_size",
            "Queue as the scorers see it: the page, corrected by requests sent since.",
        )
        draining = self._per_endpoint(
            "endpoint_draining", "1 while the endpoint gets no new requests."
        )
        age = self._per_endpoint(
            "endpoint_metrics_age_seconds",
            "Age of the endpoint's metrics: since their page was requested, or a load report came.",
        )
        responses = self._counter(
            "endpoint_responses",
            "Requests by the class of the response's status; none for no response.",
            "code_class",
        )
        retries = self._counter(
            "endpoint_retries", "Requests sent here that the gateway had another endpoint serve."
        )
        shown = shown_names([endpoint.name for endpoint in endpoints])
        for endpoint in endpoints:
            labels = [self._pool, shown[endpoint.name]]
            draining.add_metric(labels, endpoint.is_draining)
            retries.add_metric(labels, endpoint.retries)
            for digit, count in enumerate(endpoint.responses):
                if count:
                    code_class = f"{digit}xx" if digit else "none"
                    responses.add_metric([*labels, code_class], count)
            queue.add_metric(labels, endpoint.metrics.waiting_requests)
            flight.add_metric(labels, endpoint.load.own_in_flight)
            waiting.add_metric(labels, endpoint.load.waiting_requests)
            if (requested_at := endpoint.metrics.requested_at) is not None:
                age.add_metric(labels, max(0.0, now - requested_at))
        yield from (queue, flight, waiting, draining, age, responses, retries)
        if outliers is not None:
            yield from self._health(outliers, endpoints, shown)

    def _health(
        self, outliers: OutlierDetector, endpoints: Sequence[Endpoint], shown: Mapping[str, str]
    ) -> Iterator[Metric]:
        yield self._gauge(
            "outlier_detection_panic",
            "1 while all endpoints are used because too many are ejected.",
            outliers.is_panicking,
        )
        state = self._per_endpoint(
            "endpoint_health",
            "1 for the present state: healthy, suspect, ejected or probing.",
            "state",
        )
        ejections = self._counter("endpoint_ejections", "Ejections by reason.", "reason")
        for endpoint in endpoints:
            health = outliers.health_of(endpoint)
            if health is None:
                continue
            labels = [self._pool, shown[endpoint.name]]
            state.add_metric([*labels, health.state.value], 1)
            for reason, count in health.ejections.items():
                ejections.add_metric([*labels, reason.value], count)
        yield from (state, ejections)

    def _averages(self, endpoints: Sequence[Endpoint]) -> Iterator[Metric]:
        for name, values in (
            ("queue_size", [float(e.metrics.waiting_requests) for e in endpoints]),
            ("running_requests", [float(e.metrics.running_requests) for e in endpoints]),
            ("kv_cache_utilization", [e.metrics.kv_cache_usage for e in endpoints]),
        ):
            mean = fmean(values) if values else 0.0
            spread = stdev(values) if len(values) > 1 else 0.0
            yield self._gauge(f"average_{name}", f"Pool mean of {name}.", mean)
            yield self._gauge(
                f"std_dev_{name}", f"Sample standard deviation of {name} in the pool.", spread
            )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"llm_d_epp_{name}", text, labels=["name"])
        family.add_metric([self._pool], value)
        return family

    def _per_endpoint(self, name: str, text: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            f"llm_d_epp_{name}", text, labels=["name", "model_server_endpoint", *more]
        )

    @staticmethod
    def _counter(name: str, text: str, *more: str) -> CounterMetricFamily:
        return CounterMetricFamily(
            f"llm_d_epp_{name}", text, labels=["name", "model_server_endpoint", *more]
        )


def shown_names(names: Collection[str]) -> dict[str, str]:
    """Return the values of ``model_server_endpoint``: names without the namespace.

    An endpoint keeps its namespace if two would otherwise have the same name.
    """
    short = {name: name.rpartition("/")[2] for name in names}
    count = Counter(short.values())
    return {name: each if count[each] == 1 else name for name, each in short.items()}

"""All Prometheus metrics of the process, with the names of the Go EPP.

Metrics with labels from clients are in :mod:`.request_metrics`, :mod:`.model_metrics` and
:mod:`.flow_metrics`; their share of the page is limited (:mod:`.page_budget`). Gauges of the pool
are read from the endpoints at each scrape (:class:`PoolCollector`).
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from statistics import fmean, stdev

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.observability.exposition import Registry
from epp.observability.hot_metrics import Maker
from epp.observability.known_names import KnownNames, Standing
from epp.observability.model_metrics import Attempts, Rewrites
from epp.observability.page_budget import DEFAULT_PAGE_BYTES, PageBudget
from epp.observability.request_metrics import Requests
from epp.scheduling import Endpoint, Plugin, described

# A plugin or a scheduling cycle takes microseconds; the Go EPP's buckets start at 0.1 ms.
SCHEDULING = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)

# The Go EPP's buckets; time in the queue counts toward the first one.
_REQUEST_PROCESSING = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5),
    *(5.0, 10.0),
)
_RESPONSE_PROCESSING = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
    *(2.5, 5.0),
)

TOO_LARGE = "too-large"
"""Kind of the scrape error that has a counter of its own."""

_log = structlog.get_logger(__name__)


class Metrics:
    """All metrics of one EPP, on a registry of its own."""

    def __init__(
        self,
        *,
        max_page_bytes: int = DEFAULT_PAGE_BYTES,
        has_former_names: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Declare them all.

        Args:
            max_page_bytes: Page size up to which series with labels from clients are added.
            has_former_names: Whether to export metrics under the Go EPP's former names, too
                (:mod:`.deprecated_metrics`).
            clock: Monotonic seconds.
        """
        self.registry = Registry(has_former_names=has_former_names)
        self.names = KnownNames(clock)
        """Trust in label values."""
        self.budget = PageBudget(lambda: self.registry.page_bytes, max_page_bytes, clock=clock)
        """The budget of the page."""
        make = self._make = Maker(self.registry)
        self.requests = Requests(make, self.budget, self.names)
        self.for_request = self.requests.dispatched
        """Returns the bound children for a request that is sent to an endpoint."""
        self.for_refusal = self.requests.refused
        """Returns those for one that ends with an error of our own."""
        self.scheduler_e2e = make.histogram(
            "scheduler_e2e_duration_seconds", "Scheduling latency.", (), SCHEDULING
        ).labels()
        self.request_processing = make.histogram(
            "request_processing_duration_seconds",
            "Request headers to the decision, with the body's arrival and the wait in queues.",
            (),
            _REQUEST_PROCESSING,
        ).labels()
        self.response_processing = make.histogram(
            "response_processing_duration_seconds",
            "Time spent on the messages of one response.",
            (),
            _RESPONSE_PROCESSING,
        ).labels()
        self.attempts = Attempts(make, self.budget, self.names)
        plugin_labels = ("extension_point", "plugin_type", "plugin_name")
        self.plugin_duration = make.histogram(
            "plugin_duration_seconds",
            "Time of one plugin call; extension_point is Filter, Scorer, Picker, …",
            plugin_labels,
            SCHEDULING,
        )
        self.plugin_failures = make.counter(
            "plugin_failures_total",
            "Plugin calls that raised or broke their contract; the request went on without them.",
            plugin_labels,
        )
        self.plugin_overruns = make.counter(
            "plugin_overruns_total",
            "Plugin calls that took longer than extensions.guardRails.slowCallMs.",
            plugin_labels,
        )
        self.plugins_disabled = make.gauge(
            "plugin_disabled",
            "1 for a plugin that failed too often in a row and is not called until a reload.",
            ("plugin_type", "plugin_name"),
        )
        self.scores_corrected = make.counter(
            "plugin_scores_corrected_total",
            "Scores that were outside [0, 1] or NaN; kind is outside or nan.",
            ("plugin_type", "plugin_name", "kind"),
        )
        self.shadow_runs = make.counter(
            "shadow_runs_total", "Requests that a shadow profile has looked at.", ("profile",)
        )
        self.shadow_disagreements = make.counter(
            "shadow_disagreements_total",
            "Those for which it would have picked another endpoint than the real choice, or none.",
            ("profile",),
        )
        self._rewrites = Rewrites(make, self.budget, self.names)
        self.model_rewritten = self._rewrites.rewritten
        """Counts a request whose model was replaced: rewrite, model, target."""
        self.poll_errors = make.counter(
            "datalayer_poll_errors_total", "Failed scrapes of model servers.", ("source_type",)
        )
        self.extract_errors = make.counter(
            "datalayer_extract_errors_total",
            "Pages of model servers that an extractor could not use.",
            ("source_type", "extractor_type"),
        )
        self._pages_too_large = make.counter(
            "datalayer_pages_too_large_total",
            "Pages of model servers that are longer, or have more series, than the limit.",
            ("source_type",),
        )
        self.limits_exceeded = make.counter(
            "request_limit_exceeded_total",
            "Requests that met a limit of this EPP: body-bytes, body-time, compression-ratio,"
            " costly-bodies, envoy-buffer, header-bytes, held-bytes, held-bytes-evicted,"
            " json-depth, json-values, stream-idle, stream-time or streams.",
            ("limit",),
        )
        self.internal_faults = make.counter(
            "internal_faults_total", "Exceptions that became a 500: faults of this EPP.", ()
        ).labels()
        self._watch_budget()

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        """Do nothing: only failures are counted."""

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        """Count a failed poll."""
        self.poll_errors.labels(source.type).inc()
        if kind == TOO_LARGE:
            self._pages_too_large.labels(source.type).inc()

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        """Count a page that an extractor could not use."""
        self.extract_errors.labels(source.type, extractor.type).inc()
        if kind == TOO_LARGE:
            self._pages_too_large.labels(source.type).inc()

    def watch_pool(
        self,
        name: str,
        snapshot: Callable[[], Sequence[Endpoint]],
        *,
        staleness_seconds: float = inf,
    ) -> None:
        """Export the gauges of the pool ``name``, read from ``snapshot`` at each scrape.

        Those of the whole pool leave out endpoints whose page is older than ``staleness_seconds``.
        """
        self.registry.register(PoolCollector(name, snapshot, staleness_seconds=staleness_seconds))

    def watch_scrapes(self, read: Callable[[], Mapping[tuple[str, str], float]]) -> None:
        """Export the scrape intervals by endpoint and source, read at each scrape."""
        self.registry.register(ScrapeCollector(read))

    def watch_held_bytes(self, read: Callable[[], float]) -> None:
        """Export the bytes of buffered bodies, read from ``read`` at each scrape."""
        self._make.callback_gauge(
            "request_held_bytes", "Bytes of request bodies held until they are passed on.", read
        )

    def _watch_budget(self) -> None:
        budget = self.budget
        self._make.callback_gauge(
            "metrics_page_bytes",
            "Estimated length of this page, without metrics that are read at each scrape.",
            lambda: self.registry.page_bytes,
        )
        self._make.callback_gauge(
            "metrics_page_limit_bytes",
            "Length of this page beyond which names count as other.",
            lambda: budget.max_bytes,
        )
        for standing in Standing:
            self._make.callback_gauge(
                f"metrics_page_{standing.name.lower()}_names_bytes",
                f"Length of the series whose names are {standing.name.lower()}.",
                partial(budget.claimed_bytes, standing),
            )
        self._make.callback_counter(
            "metrics_names_folded_total",
            "How often a label set got no series of its own and counted as other.",
            lambda: budget.folded,
        )


class PluginWatch:
    """Counts and times plugin calls (a ``PluginObserver``).

    The gauge of disabled plugins covers only the current graph, without shadow profiles.
    """

    def __init__(self, metrics: Metrics, *, slow_call_seconds: float = 0.05) -> None:
        self._metrics = metrics
        self._slow_call_seconds = slow_call_seconds
        self._told: set[tuple[str, ...]] = set()
        self._decides = True

    def apart(self) -> "PluginWatch":
        """Return the watch for shadow profiles, which does not change the gauge."""
        watch = PluginWatch(self._metrics, slow_call_seconds=self._slow_call_seconds)
        watch._told = self._told  # a fault of both is told once
        watch.retire()
        return watch

    def retire(self) -> None:
        """Stop changing the gauge: another graph is in use."""
        self._decides = False

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        """Return a function that observes the seconds of a call."""
        labels = (extension_point, plugin.type, plugin.name)
        overran = self._metrics.plugin_overruns.labels(*labels).inc
        # One that is awaited holds nobody up, and has a time limit of its own.
        limit = inf if extension_point == "AsyncDataProducer" else self._slow_call_seconds
        return self._metrics.plugin_duration.labels(*labels).watched(limit, overran)

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        """Count a failure; the first of its kind is logged with its traceback."""
        labels = (extension_point, plugin.type, plugin.name)
        self._metrics.plugin_failures.labels(*labels).inc()
        if self._is_news(plugin.name, type(error).__name__, extension_point):
            _log.error(
                "plugin failed, the request goes on without its answer",
                plugin=plugin.name,
                plugin_type=plugin.type,
                extension_point=extension_point,
                error=described(error),
                exc_info=error,
            )

    def plugin_disabled(self, plugin: Plugin, failures: int) -> None:
        """Log that a plugin was disabled, as an error if that changes decisions."""
        facts = {
            "plugin": plugin.name,
            "plugin_type": plugin.type,
            "failures_in_a_row": failures,
        }
        if not self._decides:
            _log.warning("plugin disabled in a shadow profile or a replaced configuration", **facts)
            return
        self._metrics.plugins_disabled.labels(plugin.type, plugin.name).set(1)
        _log.critical("plugin disabled until the next reload of the configuration", **facts)

    def scores_corrected(self, plugin: Plugin, outside: int, not_numbers: int) -> None:
        """Count scores that had to be corrected; the first time is logged."""
        for kind, count in (("outside", outside), ("nan", not_numbers)):
            if count:
                self._metrics.scores_corrected.labels(plugin.type, plugin.name, kind).add(count)
                if self._is_news(plugin.name, kind, "Scorer"):
                    _log.warning(
                        "scores corrected", plugin=plugin.name, plugin_type=plugin.type, kind=kind
                    )

    def _is_news(self, *fact: str) -> bool:
        if fact in self._told:
            return False
        self._told.add(fact)
        return True


class PoolCollector(Collector):
    """Gauges of the pool and of each endpoint."""

    def __init__(
        self,
        pool: str,
        snapshot: Callable[[], Sequence[Endpoint]],
        *,
        staleness_seconds: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._snapshot = snapshot
        self._staleness = staleness_seconds
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Compute all gauges from the endpoints."""
        endpoints = self._snapshot()
        oldest = self._clock() - self._staleness
        fresh = [e for e in endpoints if (at := e.metrics.requested_at) is not None and at > oldest]
        yield self._gauge("ready_endpoints", "Endpoints with fresh metrics.", len(fresh))
        yield from self._averages(fresh)
        queue = self._per_endpoint("per_endpoint_queue_size", "Queue per endpoint, as scraped.")
        flight = self._per_endpoint("endpoint_inflight_requests", "Requests in flight from here.")
        waiting = self._per_endpoint("effective_queue_size", "Queue as the scorers see it.")
        shown = shown_names([endpoint.name for endpoint in endpoints])
        for endpoint in endpoints:
            labels = [self._pool, shown[endpoint.name]]
            queue.add_metric(labels, endpoint.metrics.waiting_requests)
            flight.add_metric(labels, endpoint.load.in_flight)
            waiting.add_metric(labels, endpoint.load.waiting_requests)
        yield from (queue, flight, waiting)

    def describe(self) -> Iterable[Metric]:
        """Tell the registry nothing, so that registering does not collect."""
        return ()

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

    def _per_endpoint(self, name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            f"llm_d_epp_{name}", text, labels=["name", "model_server_endpoint"]
        )


def shown_names(names: Collection[str]) -> dict[str, str]:
    """Return the values of ``model_server_endpoint``: names without the namespace.

    An endpoint keeps its namespace if two would otherwise have the same name.
    """
    short = {name: name.rpartition("/")[2] for name in names}
    count = Counter(short.values())
    return {name: each if count[each] == 1 else name for name, each in short.items()}


class ScrapeCollector(Collector):
    """Gauges of the scrape intervals.

    Args:
        read: Returns the current intervals by names of endpoint and source.
    """

    def __init__(self, read: Callable[[], Mapping[tuple[str, str], float]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read all intervals."""
        family = GaugeMetricFamily(
            "llm_d_epp_datalayer_scrape_interval_seconds",
            "Present time between two scrapes; longer than configured where a page costs too much.",
            labels=["model_server_endpoint", "source"],
        )
        intervals = dict(self._read())
        shown = shown_names({endpoint for endpoint, _ in intervals})
        for (endpoint, source), seconds in intervals.items():
            family.add_metric([shown[endpoint], source], seconds)
        yield family

    def describe(self) -> Iterable[Metric]:
        """Tell the registry nothing, so that registering does not collect."""
        return ()

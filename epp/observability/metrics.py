"""Every Prometheus metric of the process, under the reference EPP's names.

The request path gets its children bound once per label set (:meth:`Metrics.for_request`), so that
an observation is one call on plain numbers (:mod:`.hot_metrics`). Gauges of the pool are not kept
up to date; they are read off the endpoints when Prometheus asks (:class:`PoolCollector`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from statistics import fmean, pstdev

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.observability.hot_metrics import Maker
from epp.scheduling import Endpoint, Plugin, described

# The reference's bucket sets, so that its dashboards and rules keep working.
# Floats for seconds, ints for bytes: comparing one with the other costs 0.1 us an observation.
_LATENCY: tuple[float, ...] = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0),
    *(10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0),
    *(900.0, 1200.0, 1800.0, 2700.0, 3600.0),
)
# A plugin or a scheduling cycle takes microseconds; the reference starts at 0.1 ms.
SCHEDULING = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
# First byte: as for latencies, but no answer begins after more than two minutes.
_FIRST_BYTE = _LATENCY[: _LATENCY.index(120.0) + 1]
# Tokens and bytes of answers; 32778 is the reference's.
_ANSWER_BYTES: tuple[int, ...] = (
    *(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32778, 65536),
)
_PROMPT_TOKENS: tuple[int, ...] = (*_ANSWER_BYTES, 131072, 262144, 524288, 1048576)
_ANSWER_TOKENS = _ANSWER_BYTES[: _ANSWER_BYTES.index(8192) + 1]
_BETWEEN_CHUNKS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0),
)
_PER_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# Between two tokens of a stream: 2.05 ms is the reference's.
_BETWEEN_TOKENS: tuple[float, ...] = (
    *(0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.6, 0.8, 1.0, 2.0),
)
_REQUEST_BYTES = tuple(64 << n for n in range(25))  # 64 B to 1 GiB

_log = structlog.get_logger(__name__)

MAX_NAMES = 1000
"""Model names and fairness ids come from clients; beyond this many each they are ``other``."""
MAX_NAME_CHARS = 256
"""A longer one is ``other``, too: a thousand names of 1 MB each would be kept for ever."""
MAX_LABEL_SETS = 5000
"""Model names and fairness ids multiply: beyond this many sets of labels all names are ``other``.

A set has 70 samples: 5000 take 25 MB, and a page of 46 MB that takes 3.4 s to write."""
MAX_ANSWER_LABEL_SETS = 1000
"""The same for what answers say of themselves, which is 190 samples a set."""
OTHER = "other"

_REQUEST_LABELS = ("model_name", "target_model_name", "fairness_id", "priority")


class AnswerMetrics:
    """The bound children of one label set, for answers whose bodies were seen."""

    __slots__ = (
        "between_chunks",
        "cached_tokens",
        "first_byte",
        "per_token",
        "per_token_streamed",
        "prompt_tokens",
        "size",
        "tokens",
    )

    def __init__(self, metrics: "Metrics", labels: tuple[str, str, str, str]) -> None:
        self.size = metrics.response_size.labels(*labels)
        self.prompt_tokens = metrics.input_tokens.labels(*labels)
        self.tokens = metrics.output_tokens.labels(*labels)
        self.cached_tokens = metrics.cached_tokens.labels(*labels)
        self.per_token = metrics.ntpot.labels(*labels)
        self.per_token_streamed = metrics.streaming_tpot.labels(*labels)
        self.between_chunks = metrics.streaming_itl.labels(*labels)
        self.first_byte = {
            is_streamed: metrics.ttft.labels(*labels, str(is_streamed).lower())
            for is_streamed in (False, True)
        }


class RequestMetrics:
    """The bound children of one label set."""

    __slots__ = (
        "_answer",
        "_errors",
        "_labels",
        "_metrics",
        "duration",
        "running",
        "size",
        "total",
    )

    def __init__(self, metrics: "Metrics", labels: tuple[str, str, str, str]) -> None:
        self._metrics = metrics
        self._answer: AnswerMetrics | None = None
        self._errors = metrics.request_errors
        self._labels = labels
        self.total = metrics.request_total.labels(*labels)
        self.duration = metrics.request_duration.labels(*labels)
        self.size = metrics.request_size.labels(*labels)
        self.running = metrics.request_running.labels(*labels)

    @property
    def answer(self) -> AnswerMetrics:
        """The children for answers; made at the first, for where none is seen there are none."""
        if self._answer is None:
            self._answer = self._metrics.for_answer(self._labels)
        return self._answer

    def error(self, code: str) -> None:
        """Count a request that ended with an error of class ``code``."""
        self._errors.labels(*self._labels, code).inc()


class Metrics:
    """All metrics of one EPP, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        make = self._make = Maker(self.registry)
        self.request_total = make.counter(
            "request_total", "Total number of processed requests.", _REQUEST_LABELS
        )
        self.request_errors = make.counter(
            "request_error_total",
            "Total number of request errors by class (BadRequest, ServiceUnavailable, …).",
            (*_REQUEST_LABELS, "error_code"),
        )
        self.request_duration = make.histogram(
            "request_duration_seconds",
            "End-to-end request latency in seconds: request headers to end of stream.",
            _REQUEST_LABELS,
            _LATENCY,
        )
        self.request_size = make.histogram(
            "request_size_bytes", "Incoming request body size.", _REQUEST_LABELS, _REQUEST_BYTES
        )
        self.request_running = make.gauge(
            "request_running", "Requests in progress, sent to an endpoint.", _REQUEST_LABELS
        )
        self.response_size = make.histogram(
            "response_size_bytes", "Outgoing response body size.", _REQUEST_LABELS, _ANSWER_BYTES
        )
        self.input_tokens = make.histogram(
            "request_input_tokens",
            "Input token count per request, as the model server reports it.",
            _REQUEST_LABELS,
            _PROMPT_TOKENS,
        )
        self.output_tokens = make.histogram(
            "request_output_tokens",
            "Output token count per request, as the model server reports it.",
            _REQUEST_LABELS,
            _ANSWER_TOKENS,
        )
        self.cached_tokens = make.histogram(
            "request_cached_tokens",
            "Prompt tokens read from a cache, as the model server reports it.",
            _REQUEST_LABELS,
            _PROMPT_TOKENS,
        )
        self.ttft = make.histogram(
            "request_ttft_seconds",
            "Request headers to the first bytes of the response body; streaming is true or false.",
            (*_REQUEST_LABELS, "streaming"),
            _FIRST_BYTE,
        )
        self.streaming_tpot = make.histogram(
            "request_streaming_tpot_seconds",
            "(latency - time to first byte) / (output tokens - 1) of streamed responses.",
            _REQUEST_LABELS,
            _BETWEEN_TOKENS,
        )
        self.streaming_itl = make.histogram(
            "request_streaming_itl_seconds",
            "Time between two consecutive chunks of the body of a streamed response.",
            _REQUEST_LABELS,
            _BETWEEN_CHUNKS,
        )
        self.ntpot = make.histogram(
            "request_ntpot_seconds", "Latency / output tokens.", _REQUEST_LABELS, _PER_TOKEN
        )
        self.scheduler_e2e = make.histogram(
            "scheduler_e2e_duration_seconds", "Scheduling latency.", (), SCHEDULING
        ).labels()
        self.scheduler_attempts = make.counter(
            "scheduler_attempts_total",
            "Scheduling attempts; status is success or failure.",
            ("status", "target_model_name", "endpoint_name", "namespace", "port"),
        )
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
        self._model_rewrites = make.counter(
            "model_rewrite_decisions_total",
            "Requests whose model an InferenceModelRewrite has replaced.",
            ("model_rewrite_name", "model_name", "target_model"),
        )
        self.poll_errors = make.counter(
            "datalayer_poll_errors_total", "Failed scrapes of model servers.", ("source_type",)
        )
        self.extract_errors = make.counter(
            "datalayer_extract_errors_total",
            "Pages of model servers that an extractor could not use.",
            ("source_type", "extractor_type"),
        )
        self.limits_exceeded = make.counter(
            "request_limit_exceeded_total",
            "Requests that met a limit of this EPP: body-bytes, header-bytes, envoy-buffer,"
            " json-depth, json-values, streams, held-bytes, stream-idle or stream-time.",
            ("limit",),
        )
        self.internal_faults = make.counter(
            "internal_faults_total", "Exceptions that became a 500: faults of this EPP.", ()
        ).labels()
        self._by_labels: dict[tuple[str, str, str, str], RequestMetrics] = {}
        self._answers_by_labels: dict[tuple[str, str, str, str], AnswerMetrics] = {}
        self._models: set[str] = set()
        self._fairness_ids: set[str] = set()

    def for_request(
        self, model: str, target_model: str, fairness_id: str, priority: int
    ) -> RequestMetrics:
        """Return the bound children for a request's labels."""
        key = (model, target_model, fairness_id, str(priority))
        bound = self._by_labels.get(key)
        if bound is None:
            labels = (
                self.capped_model(model),
                self.capped_model(target_model),
                _capped(fairness_id, self._fairness_ids),
                key[3],
            )
            bound = self._by_labels.get(labels)
            if bound is None and len(self._by_labels) >= MAX_LABEL_SETS:
                labels = (OTHER, OTHER, OTHER, key[3])
                bound = self._by_labels.get(labels)
            if bound is None:
                bound = self._by_labels[labels] = RequestMetrics(self, labels)
        return bound

    def for_answer(self, labels: tuple[str, str, str, str]) -> AnswerMetrics:
        """Return the bound children for the answers to requests with ``labels``."""
        known = self._answers_by_labels
        if labels not in known and len(known) >= MAX_ANSWER_LABEL_SETS:
            labels = (OTHER, OTHER, OTHER, labels[3])
        bound = known.get(labels)
        if bound is None:
            bound = known[labels] = AnswerMetrics(self, labels)
        return bound

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        """Take note of a scrape; its page is all there is to tell."""

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        """Count a page that did not come."""
        self.poll_errors.labels(source.type).inc()

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        """Count a page that an extractor could not use."""
        self.extract_errors.labels(source.type, extractor.type).inc()

    def model_rewritten(self, rewrite: str, model: str, target: str) -> None:
        """Count a request for ``model`` that is sent on as one for ``target``."""
        self._model_rewrites.labels(rewrite, self.capped_model(model), target).inc()

    def watch_pool(self, name: str, snapshot: Callable[[], Sequence[Endpoint]]) -> None:
        """Export the gauges of the pool ``name``, read from ``snapshot`` at each scrape."""
        self.registry.register(PoolCollector(name, snapshot))

    def watch_held_bytes(self, read: Callable[[], float]) -> None:
        """Export what bodies take until they are passed on, read from ``read`` at each scrape."""
        self._make.reading(
            "request_held_bytes", "Bytes of request bodies held until they are passed on.", read
        )

    def capped_model(self, model: str) -> str:
        """Return ``model``, or ``other`` when there are too many names already."""
        return _capped(model, self._models)


def _capped(name: str, known: set[str]) -> str:
    if name in known:
        return name
    if len(known) >= MAX_NAMES or len(name) > MAX_NAME_CHARS:
        return OTHER
    known.add(name)
    return name


class PluginWatch:
    """Takes note of plugin calls: how long they take, how they fail (a ``PluginObserver``).

    The gauge of disabled plugins is of the graph and the profiles that decide, and of no others.
    """

    def __init__(self, metrics: Metrics, *, slow_call_seconds: float = 0.05) -> None:
        self._metrics = metrics
        self._slow_call_seconds = slow_call_seconds
        self._told: set[tuple[str, ...]] = set()
        self._decides = True

    def apart(self) -> "PluginWatch":
        """Return the watch of shadow profiles: like this one, but it leaves the gauge alone."""
        watch = PluginWatch(self._metrics, slow_call_seconds=self._slow_call_seconds)
        watch._told = self._told  # a fault of both is told once
        watch.retire()
        return watch

    def retire(self) -> None:
        """Leave the gauge alone from now on: another graph decides."""
        self._decides = False

    def timer(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        """Return what observes the seconds of a call."""
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
        """Tell that a plugin is left alone from now on; loudly, if that changes decisions."""
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

    def __init__(self, pool: str, snapshot: Callable[[], Sequence[Endpoint]]) -> None:
        self._pool = pool
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        """Read all gauges off the endpoints."""
        endpoints = self._snapshot()
        scraped = [e for e in endpoints if e.metrics.requested_at is not None]
        yield self._gauge("ready_endpoints", "Endpoints with scraped metrics.", len(scraped))
        yield from self._averages(endpoints)
        queue = self._per_endpoint("per_endpoint_queue_size", "Queue per endpoint, as scraped.")
        flight = self._per_endpoint("endpoint_inflight_requests", "Requests in flight from here.")
        waiting = self._per_endpoint("effective_queue_size", "Queue as the scorers see it.")
        for endpoint in endpoints:
            labels = [self._pool, endpoint.name]
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
            spread = pstdev(values) if values else 0.0
            yield self._gauge(f"average_{name}", f"Pool mean of {name}.", mean)
            yield self._gauge(f"std_dev_{name}", f"Pool deviation of {name}.", spread)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"llm_d_epp_{name}", text, labels=["name"])
        family.add_metric([self._pool], value)
        return family

    def _per_endpoint(self, name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            f"llm_d_epp_{name}", text, labels=["name", "model_server_endpoint"]
        )

"""All Prometheus metrics of the process, with the names of the Go EPP.

Metrics with labels from clients are in :mod:`.request_metrics`, :mod:`.model_metrics` and
:mod:`.flow_metrics`; their share of the page is limited (:mod:`.page_budget`). Gauges of the pool
are read from the endpoints at each scrape (:mod:`.pool_metrics`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf

from epp.observability.decision_metrics import DecisionMetrics
from epp.observability.exposition import MetricsRegistry
from epp.observability.known_names import KnownNames, Standing
from epp.observability.metric_families import Maker
from epp.observability.model_metrics import Attempts, Rewrites
from epp.observability.page_budget import DEFAULT_PAGE_BYTES, PageBudget
from epp.observability.pool_metrics import PoolCollector
from epp.observability.request_metrics import Requests
from epp.observability.scrape_metrics import ScrapeCollector, ScrapeMetrics
from epp.outlier_detection import OutlierDetector
from epp.scheduling import Endpoint

# The Go EPP's buckets start at 0.1 ms, but a scheduling cycle takes tens of microseconds, and a
# plugin call one or two: there are more buckets below, and the Go EPP's are among them.
SCHEDULING = (
    *(0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    0.1,
)
_PLUGIN_CALL = (0.000001, 0.000002, 0.000005, *SCHEDULING)

# The Go EPP's buckets; time in the queue counts toward the first one.
_REQUEST_PROCESSING = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5),
    *(5.0, 10.0),
)
_RESPONSE_PROCESSING = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
    *(2.5, 5.0),
)


class Metrics:
    """All metrics of one EPP, on a registry of its own."""

    def __init__(
        self,
        *,
        max_page_bytes: int = DEFAULT_PAGE_BYTES,
        has_former_names: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Declare all metrics.

        Args:
            max_page_bytes: Page size up to which series with labels from clients are added.
            has_former_names: Whether to export metrics under the Go EPP's former names, too
                (:mod:`.deprecated_metrics`).
            clock: Monotonic seconds.
        """
        self._clock = clock
        self.registry = MetricsRegistry(has_former_names=has_former_names)
        self.names = KnownNames(clock)
        """Trust in label values."""
        self.budget = PageBudget(lambda: self.registry.page_bytes, max_page_bytes, clock=clock)
        """The budget of the page."""
        make = self._make = Maker(self.registry)
        self.requests = Requests(make, self.budget, self.names)
        self.for_request = self.requests.dispatched
        """Returns the bound children for a request that is sent to an endpoint."""
        self.for_refusal = self.requests.refused
        """Returns the bound children for a request that ends with an error of this EPP."""
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
        self.decisions = DecisionMetrics(make)
        """Counts sampled decisions by what decided them."""
        plugin_labels = ("extension_point", "plugin_type", "plugin_name")
        self.plugin_duration = make.histogram(
            "plugin_duration_seconds",
            "Time of one plugin call, by extension point (Filter, Scorer, Picker, …).",
            plugin_labels,
            _PLUGIN_CALL,
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
            "Requests for which a shadow profile would have picked another endpoint, or none.",
            ("profile",),
        )
        self._rewrites = Rewrites(make, self.budget, self.names)
        self.model_rewritten = self._rewrites.rewritten
        """Counts a request whose model was replaced: rewrite, model, target."""
        self.scrapes = ScrapeMetrics(make)
        """Observes the scrapes of model servers."""
        self.limits_exceeded = make.counter(
            "request_limit_exceeded_total",
            "Requests that met a limit of this EPP: body-bytes, body-time, compression-ratio,"
            " costly-bodies, envoy-buffer, header-bytes, held-bytes, held-bytes-evicted,"
            " json-depth, json-values, stream-idle, stream-time or streams.",
            ("limit",),
        )
        self._hedges = make.counter(
            "request_hedges_total",
            "Streamed requests that the gateway sent to a further endpoint, too, because their"
            " response was late; result is won if that endpoint responded first, or lost.",
            ("result",),
        )
        self._forced = make.counter(
            "forced_requests_total",
            "Requests with a header that forces their endpoint; result is routed, denied (the"
            " header is invalid) or no-endpoint (the pool does not have it).",
            ("result",),
        )
        self.internal_faults = make.counter(
            "internal_faults_total", "Exceptions that became a 500: faults of this EPP.", ()
        ).labels()
        self._watch_budget()

    def hedged(self, has_won: bool) -> None:
        """Count a hedge.

        Args:
            has_won: Whether a further endpoint responded first.
        """
        self._hedges.labels("won" if has_won else "lost").inc()

    def forced(self, result: str) -> None:
        """Count a request with a header that forces its endpoint, by ``result``."""
        self._forced.labels(result).inc()

    def watch_pool(
        self,
        name: str,
        snapshot: Callable[[], Sequence[Endpoint]],
        *,
        staleness_seconds: float = inf,
        outliers: OutlierDetector | None = None,
    ) -> None:
        """Export the gauges of the pool ``name``, read from ``snapshot`` at each scrape.

        Gauges of the whole pool leave out endpoints whose page is older than ``staleness_seconds``,
        and those that ``outliers`` has ejected.
        """
        self.registry.register(
            PoolCollector(
                name,
                snapshot,
                staleness_seconds=staleness_seconds,
                outliers=outliers,
                clock=self._clock,
            )
        )

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

"""Metrics of flow control: dispatched requests, queue times, queue sizes.

A request that is dispatched at once costs two observations on children that are bound once per flow
and model (0.35 us). Fairness ids come from clients, so the series of a flow are removed when flow
control drops the flow, and the size of the metrics page limits how many flows and models have
series of their own (:mod:`.label_sets`).
"""

from collections.abc import Callable
from typing import Final, Protocol

from epp.observability.known_names import OTHER
from epp.observability.label_sets import Labels, LabelSet, LabelSets
from epp.observability.metric_children import Counter, Histogram
from epp.observability.metric_families import Maker
from epp.observability.metrics import SCHEDULING, Metrics
from epp.observability.page_budget import SeriesClaim
from epp.scheduling import LLMRequest

# The Go EPP's buckets; queue times start far below the usual latencies.
_WAITS: Final[tuple[float, ...]] = (
    *(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0),
)
MAX_PLACES: Final = 200
"""Session plugins choose their own names and those of amounts; pairs beyond this number are
``other``."""

_DISPATCHED: Final = "Dispatched"
_STILL_WAITS: Final = "NotYetFinalized"
"""The Go EPP's outcome for a request that was just queued."""

_Key = tuple[str, str, str, int]
"""Model, target model, fairness id and priority, in the order of ``Metrics.for_request``."""


class HasPriority(Protocol):
    """A priority band."""

    @property
    def priority(self) -> int: ...


class KnownFlow(Protocol):
    """A flow of flow control."""

    @property
    def fairness_id(self) -> str: ...
    @property
    def band(self) -> HasPriority: ...


class MeasuredRequest(Protocol):
    """A request that is or was queued."""

    @property
    def request(self) -> LLMRequest: ...
    @property
    def size_bytes(self) -> int: ...


class FlowMetrics:
    """Counters and histograms of flow control; a ``FlowObserver``."""

    def __init__(self, metrics: Metrics, pool: str) -> None:
        self._pool = pool
        self._priority_label = metrics.names.priority_label
        make = Maker(metrics.registry)
        flow = ("fairness_id", "priority")
        models = ("model_name", "target_model_name")
        self.total = make.counter(
            "flow_control_requests_total",
            "Requests by how flow control was done with them: Dispatched, RejectedCapacity,"
            " RejectedNoEndpoints, RejectedOther, EvictedTTL, EvictedNoEndpoints,"
            " EvictedContextCancelled or EvictedOther.",
            ("outcome", "priority", "inference_pool"),
        )
        self.waits = make.histogram(
            "flow_control_request_queue_duration_seconds",
            "Time from being enqueued to the outcome; 0 for a request that did not have to wait.",
            (*flow, "outcome", "inference_pool", *models),
            _WAITS,
        )
        self.enqueueing = make.histogram(
            "flow_control_request_enqueue_duration_seconds",
            "Time to enqueue a request that has to wait; outcome is NotYetFinalized.",
            (*flow, "outcome"),
            SCHEDULING,
        )
        self.queue_size = make.gauge(
            "flow_control_queue_size", "Requests that wait.", (*flow, "inference_pool", *models)
        )
        self.queue_bytes = make.gauge(
            "flow_control_queue_bytes",
            "What the bodies of requests that wait take.",
            (*flow, "inference_pool", *models),
        )
        self._session = make.histogram(
            "flow_control_dispatch_cycle_duration_seconds",
            "Time that a dispatch session was open.",
            (),
            SCHEDULING,
        ).labels()
        self._failures = make.counter(
            "session_plugin_failures_total",
            "Exceptions of session plugins, by extension point (on_session_open, predicate, …).",
            ("plugin", "extension_point"),
        )
        self._of_plugins = metrics.plugin_duration, metrics.plugin_overruns, metrics.plugin_failures
        self._places: set[tuple[str, str]] = set()
        self._timers: dict[tuple[str, str, float], Callable[[float], None]] = {}
        names = metrics.names
        self.sets: LabelSets[_Series] = LabelSets(
            metrics.budget,
            judge=names.request,
            last=lambda labels: (OTHER,) * len(labels),
            make=lambda labels, claim: _Series(self, labels, claim),
            cost=self._gauge_bytes,
        )
        self._flows: LabelSets[_FlowSeries] = LabelSets(
            metrics.budget,
            judge=names.flow,
            last=lambda labels: (OTHER,) * len(labels),
            make=lambda labels, claim: _FlowSeries(self, labels, claim),
            cost=lambda labels: self.enqueueing.cost(*labels, _STILL_WAITS),
        )
        self._bound: dict[_Key, _Series] = {}
        """Flows and models with series of their own, by the names in the requests."""
        self._keys: dict[Labels, _Key] = {}
        """Keys of ``_bound``, by labels."""
        self._by_flow: dict[Labels, set[Labels]] = {}
        """Their labels, by fairness id and priority."""
        # A flow may get series of its own while one of its requests is queued as ``other``, and a
        # request a new target model: subtract from the series to which the request was added.
        self._waiting: dict[MeasuredRequest, _Series] = {}

    def passed(self, request: LLMRequest) -> None:
        """Count a request that was dispatched without queueing."""
        series = self._of(request)
        series.dispatched.inc()
        series.dispatched_after.observe(0.0)

    def rejected(self, request: LLMRequest, outcome: str) -> None:
        """Count a request that was rejected instead of queued."""
        self._of(request).ended(outcome, 0.0)

    def enqueued(self, queued: MeasuredRequest, seconds: float) -> None:
        """Count ``queued`` as queued; enqueueing took ``seconds``."""
        series = self._of(queued.request)
        self._waiting[queued] = series
        self._flows.bind(series.labels[2:]).enqueueing.observe(seconds)
        series.queue_size.inc()
        series.queue_bytes.add(queued.size_bytes)

    def left(self, queued: MeasuredRequest, outcome: str, seconds: float) -> None:
        """Record that ``queued`` has left the queue after ``seconds``."""
        series = self._waiting.pop(queued)
        series.queue_size.dec()
        series.queue_bytes.add(-queued.size_bytes)
        series.ended(outcome, seconds)

    def flow_removed(self, flow: KnownFlow) -> None:
        """Remove the series of ``flow``, which has no queued requests."""
        key = (flow.fairness_id, str(flow.band.priority))
        for labels in tuple(self._by_flow.get(key, ())):
            self.sets.drop(labels)
        if OTHER not in key:
            self._flows.drop(key)

    def plugin_timer(
        self, plugin: str, extension_point: str, slow_call_seconds: float
    ) -> Callable[[float], None]:
        """Return a callback that observes the durations of a session plugin's calls."""
        key = (plugin, extension_point, slow_call_seconds)
        timer = self._timers.get(key)
        if timer is None:
            durations, overruns, _ = self._of_plugins
            labels = self._labels_of(plugin, extension_point)
            overran = overruns.labels(*labels).inc
            timer = durations.labels(*labels).observer(slow_call_seconds, overran)
            if labels[0] != OTHER:
                self._timers[key] = timer
        return timer

    def plugin_failed(self, plugin: str, extension_point: str) -> None:
        """Count an exception of a session plugin."""
        labels = self._labels_of(plugin, extension_point)
        self._of_plugins[2].labels(*labels).inc()
        self._failures.labels(labels[1], labels[0]).inc()

    def _labels_of(self, plugin: str, extension_point: str) -> tuple[str, str, str]:
        """Return extension point, type and name of a session plugin, whose name is its type."""
        place = (extension_point, plugin)
        if place not in self._places:
            if len(self._places) >= MAX_PLACES:
                return OTHER, OTHER, OTHER
            self._places.add(place)
        return extension_point, plugin, plugin

    def session_ended(self, seconds: float) -> None:
        """Time a dispatch session."""
        self._session.observe(seconds)

    def gauge_labels(self, labels: Labels) -> Labels:
        """Return the values of the gauges' labels."""
        model, target_model, *flow = labels
        return (*flow, self._pool, model, target_model)

    def wait_labels(self, labels: Labels, outcome: str) -> Labels:
        """Return the values of the labels of waiting times."""
        model, target_model, *flow = labels
        return (*flow, outcome, self._pool, model, target_model)

    def total_of(self, labels: Labels, outcome: str) -> Counter:
        """Return the total of an outcome; it is shared by flows and not removed with one."""
        return self.total.labels(outcome, self._priority_label(labels[3]), self._pool)

    def forget(self, labels: Labels) -> None:
        """Look ``labels`` up in the table again at the next request."""
        self._bound.pop(self._keys.pop(labels, None), None)  # type: ignore[arg-type] # None is in no table
        flow = labels[2:]
        of_flow = self._by_flow.get(flow)
        if of_flow is not None:
            of_flow.discard(labels)
            if not of_flow:
                del self._by_flow[flow]

    def _of(self, request: LLMRequest) -> "_Series":
        key = (request.model, request.target_model, request.fairness_id, request.priority)
        return self._bound.get(key) or self._bind(key)

    def _bind(self, key: _Key) -> "_Series":
        model, target_model, fairness_id, priority = key
        labels = (model, target_model, fairness_id, str(priority))
        series = self.sets.bind(labels)
        series.bind_dispatched()
        # `other` belongs to many flows and stays, even if a client names its flow so.
        if series.labels == labels and OTHER not in labels:
            self._bound[key] = series
            self._keys[labels] = key
            self._by_flow.setdefault(labels[2:], set()).add(labels)
        return series

    def _gauge_bytes(self, labels: Labels) -> int:
        values = self.gauge_labels(labels)
        return self.queue_size.cost(*values) + self.queue_bytes.cost(*values)


class _FlowSeries(LabelSet):
    """How long it took to enqueue the requests of one flow."""

    __slots__ = ("_metrics", "enqueueing")

    def __init__(self, metrics: FlowMetrics, labels: Labels, claim: SeriesClaim) -> None:
        super().__init__(labels, claim)
        self._metrics = metrics
        self.enqueueing = metrics.enqueueing.labels(*labels, _STILL_WAITS)

    @property
    def activity(self) -> float:
        return self.enqueueing.total

    def retry(self) -> None:
        """Do nothing: it uses no children of other sets."""

    def remove(self) -> None:
        self._metrics.enqueueing.remove(*self.labels, _STILL_WAITS)


class _Series(LabelSet):
    """The bound children of one flow and model.

    Attributes:
        dispatched: Counts dispatched requests.
        dispatched_after: Their waiting times; those of other series if there is no room.
    """

    __slots__ = ("_metrics", "_outcomes", "_own", "dispatched", "dispatched_after",
                 "queue_bytes", "queue_size")  # fmt: skip

    dispatched: Counter
    dispatched_after: Histogram

    def __init__(self, metrics: FlowMetrics, labels: Labels, claim: SeriesClaim) -> None:
        super().__init__(labels, claim)
        self._metrics = metrics
        self._outcomes: dict[str, tuple[Counter, Histogram]] = {}
        self._own: dict[str, Histogram] = {}
        """Waiting times by outcome, without those borrowed from other series."""
        values = metrics.gauge_labels(labels)
        self.queue_size = metrics.queue_size.labels(*values)
        self.queue_bytes = metrics.queue_bytes.labels(*values)

    def bind_dispatched(self) -> None:
        """Bind ``dispatched`` and ``dispatched_after``."""
        self.dispatched, self.dispatched_after = self.of(_DISPATCHED)

    def ended(self, outcome: str, seconds: float) -> None:
        """Count a request that has left flow control after ``seconds``."""
        total, wait = self.of(outcome)
        total.inc()
        wait.observe(seconds)

    def of(self, outcome: str) -> tuple[Counter, Histogram]:
        """Return the total and the queue times of an outcome."""
        found = self._outcomes.get(outcome)
        if found is None:
            found = self._outcomes[outcome] = (
                self._metrics.total_of(self.labels, outcome),
                self._waits(outcome),
            )
        return found

    @property
    def activity(self) -> float:
        return sum(waits.total for waits in self._own.values())

    @property
    def is_busy(self) -> bool:
        return self.queue_size.value != 0

    def retry(self) -> None:
        for outcome in self._outcomes.keys() - self._own.keys():
            del self._outcomes[outcome]
            if outcome == _DISPATCHED:
                self._metrics.forget(self.labels)

    def remove(self) -> None:
        self._metrics.forget(self.labels)
        values = self._metrics.gauge_labels(self.labels)
        for outcome in self._own:
            self._metrics.waits.remove(*self._metrics.wait_labels(self.labels, outcome))
        self._metrics.queue_size.remove(*values)
        self._metrics.queue_bytes.remove(*values)

    def _waits(self, outcome: str) -> Histogram:
        metrics = self._metrics
        own = metrics.wait_labels(self.labels, outcome)
        instead = metrics.sets.claim(self, lambda _: metrics.waits.cost(*own), is_detail=True)
        if instead is not None:
            return instead.of(outcome)[1]
        waits = self._own[outcome] = metrics.waits.labels(*own)
        return waits

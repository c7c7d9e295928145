"""What flow control does to requests: how many it lets go, how long they wait, what waits.

A request that need not wait costs two observations on children bound once per flow and model
(0.35 us). The series of a flow that flow control has forgotten are removed; its fairness id came
from a client.
"""

from typing import Final, Protocol

from epp.observability.hot_metrics import Counter, Histogram, Maker
from epp.observability.metrics import MAX_NAME_CHARS, MAX_NAMES, OTHER, SCHEDULING, Metrics
from epp.scheduling import LLMRequest

# The reference's; waits start far below the usual latencies.
_WAITS: Final = (
    *(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0),
)
MAX_SERIES: Final = 2000
"""Flows and models multiply: beyond this many pairs all names are ``other``.

A pair has 22 samples, and 20 more for every further outcome its requests have come to: with all
eight for each, 2000 take 17 MB, and a page of 67 MB that takes 3.7 s to write."""

MAX_PLACES: Final = 1000
"""What plugins and the amounts they provide are called is theirs; further pairs are ``other``."""

_DISPATCHED: Final = "Dispatched"
_STILL_WAITS: Final = "NotYetFinalized"
"""The reference's outcome of a request that has just begun to wait."""

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


class WaitingRequest(Protocol):
    """A request that waits, or has waited."""

    @property
    def request(self) -> LLMRequest: ...
    @property
    def size_bytes(self) -> int: ...


class FlowMetrics:
    """Counts and times what flow control tells it; a ``FlowObserver``."""

    def __init__(self, metrics: Metrics, pool: str) -> None:
        self._capped_model = metrics.capped_model
        self._pool = pool
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
            "Exceptions of session plugins; extension_point is on_session_open, predicate, …",
            ("plugin", "extension_point"),
        )
        self._failed: set[tuple[str, str]] = set()
        self._series: dict[_Key, _Series] = {}
        self._by_flow: dict[str, dict[int, list[_Series]]] = {}
        """By fairness id, of which there are at most ``MAX_NAMES``, and priority."""
        # A flow may get a name of its own while a request of it waits as ``other``, and a request
        # another target model: it has to be taken off where it was added.
        self._waiting: dict[WaitingRequest, _Series] = {}

    def passed(self, request: LLMRequest) -> None:
        """Count a request that did not have to wait."""
        series = self._of(request)
        series.dispatched.inc()
        series.dispatched_after.observe(0.0)

    def rejected(self, request: LLMRequest, outcome: str) -> None:
        """Count a request that was turned away instead of waiting."""
        self._of(request).ended(outcome, 0.0)

    def enqueued(self, queued: WaitingRequest, seconds: float) -> None:
        """Take note that ``queued`` waits; to put it there took ``seconds``."""
        series = self._of(queued.request)
        self._waiting[queued] = series
        series.enqueued_in(seconds)
        series.queue_size.inc()
        series.queue_bytes.add(queued.size_bytes)

    def left(self, queued: WaitingRequest, outcome: str, seconds: float) -> None:
        """Take note that ``queued`` waits no more, after ``seconds``."""
        series = self._waiting.pop(queued)
        series.queue_size.dec()
        series.queue_bytes.add(-queued.size_bytes)
        series.ended(outcome, seconds)

    def flow_removed(self, flow: KnownFlow) -> None:
        """Remove the series of ``flow``; nothing of it waits."""
        flows = self._by_flow.get(flow.fairness_id)
        if flows is None:
            return
        for series in flows.pop(flow.band.priority, ()):
            del self._series[series.key]
            series.remove()
        if not flows:
            del self._by_flow[flow.fairness_id]

    def plugin_failed(self, plugin: str, extension_point: str) -> None:
        """Count an exception of a session plugin."""
        place = (plugin, extension_point)
        if place not in self._failed and len(self._failed) >= MAX_PLACES:
            place = (OTHER, OTHER)
        self._failed.add(place)
        self._failures.labels(*place).inc()

    def session_ended(self, seconds: float) -> None:
        """Time a dispatch session."""
        self._session.observe(seconds)

    def _of(self, request: LLMRequest) -> "_Series":
        key = (request.model, request.target_model, request.fairness_id, request.priority)
        return self._series.get(key) or self._bind(*key)

    def _bind(self, model: str, target_model: str, fairness_id: str, priority: int) -> "_Series":
        flow = fairness_id
        if len(flow) > MAX_NAME_CHARS or (flow not in self._by_flow and self._has_all_names):
            flow = OTHER
        key = (self._capped_model(model), self._capped_model(target_model), flow, priority)
        series = self._series.get(key)
        if series is None and len(self._series) >= MAX_SERIES:
            key = (OTHER, OTHER, OTHER, priority)
            series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series(self, self._pool, key)
            # What counts as `other` is of many flows and stays, also if a client calls its own so.
            if key[2] != OTHER:
                self._by_flow.setdefault(key[2], {}).setdefault(priority, []).append(series)
        return series

    @property
    def _has_all_names(self) -> bool:
        return len(self._by_flow) >= MAX_NAMES


class _Series:
    """The bound children of one flow and model."""

    __slots__ = ("_enqueueing", "_labels", "_metrics", "_outcomes", "dispatched",
                 "dispatched_after", "key", "queue_bytes", "queue_size")  # fmt: skip

    def __init__(self, metrics: FlowMetrics, pool: str, key: _Key) -> None:
        model, target_model, fairness_id, priority = self.key = key
        self._metrics = metrics
        self._labels = (fairness_id, str(priority), pool, model, target_model)
        self._outcomes: dict[str, tuple[Counter, Histogram]] = {}
        self._enqueueing: Histogram | None = None
        self.queue_size = metrics.queue_size.labels(*self._labels)
        self.queue_bytes = metrics.queue_bytes.labels(*self._labels)
        self.dispatched, self.dispatched_after = self._of(_DISPATCHED)

    def enqueued_in(self, seconds: float) -> None:
        """Time how long it took to enqueue a request."""
        if self._enqueueing is None:
            labels = (*self._labels[:2], _STILL_WAITS)
            self._enqueueing = self._metrics.enqueueing.labels(*labels)
        self._enqueueing.observe(seconds)

    def ended(self, outcome: str, seconds: float) -> None:
        """Count a request that flow control is done with after ``seconds``."""
        total, wait = self._outcomes.get(outcome) or self._of(outcome)
        total.inc()
        wait.observe(seconds)

    def remove(self) -> None:
        """Take everything off the page but the totals, which are not the flow's alone."""
        fairness_id, priority, *rest = self._labels
        for outcome in self._outcomes:
            self._metrics.waits.remove(fairness_id, priority, outcome, *rest)
        self._metrics.queue_size.remove(*self._labels)
        self._metrics.queue_bytes.remove(*self._labels)
        self._metrics.enqueueing.remove(fairness_id, priority, _STILL_WAITS)

    def _of(self, outcome: str) -> tuple[Counter, Histogram]:
        fairness_id, priority, pool, *models = self._labels
        found = self._outcomes[outcome] = (
            self._metrics.total.labels(outcome, priority, pool),
            self._metrics.waits.labels(fairness_id, priority, outcome, pool, *models),
        )
        return found

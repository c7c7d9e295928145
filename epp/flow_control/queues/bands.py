"""Priority bands, which determine the next request.

* Bands are served from high to low. A band with waiting requests that is blocked by its ceiling
  blocks all bands below it.
* The fairness policy of a band chooses the flow, the ordering policy chooses the request of the
  flow.
* A request that no endpoint can take, or that the fairness policy holds back, is passed over until
  the next session and keeps its place in the order.
* A band below others with waiting requests is guaranteed its floor share of all dispatches,
  regardless of its own ceiling, as long as the saturation is below the highest ceiling.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from time import perf_counter
from typing import Any

from epp.flow_control.flows import FALLBACK, POLICY, Band, Flow, QueuedRequest
from epp.flow_control.plugins import FairnessPolicy, OrderingPolicy
from epp.flow_control.queues.holdings import Holdings
from epp.flow_control.settings import BandSettings
from epp.scheduling import PLUGIN_FAULTS, Guard, LLMRequest, PluginContractError

_AGEING_SECONDS = 0.02
_AGEING_PART = 0.05
"""Keys that change with time are recomputed at most this often, which takes at most this part of
all time."""

_SPARE_ENTRIES = 64
"""Outdated entries that the heap may hold, beyond one per flow. They are removed at the front,
which they never reach while new heads keep sorting before them."""

_MAX_OWED = 2.0
"""Limits the credit of a band that no endpoint could serve for a long time, so that it does not get
the whole pool afterwards."""

_SHARED_FLOOR = 0.5
"""The largest part of all dispatches that is guaranteed to all lower bands together."""


class PolicyBand(Band):
    """A band with its policies; its flows form a heap.

    Args:
        priority: Of its requests.
        settings: Its limits and policies.
        created: Time in seconds.
        cpu_time: Returns the CPU time of the thread, in seconds.
    """

    __slots__ = ("_aged_at", "_ages_for", "_cpu_time", "_heap", "_holdings", "_stamps", "ages",
                 "credit", "held", "settings")  # fmt: skip

    def __init__(
        self,
        priority: int,
        settings: BandSettings,
        created: float,
        *,
        cpu_time: Callable[[], float],
    ) -> None:
        super().__init__(
            priority,
            max_requests=settings.max_requests,
            max_bytes=settings.max_bytes,
            created=created,
        )
        self.settings = settings
        self.ages = settings.fairness.plugin.keys_age
        """Whether the keys of its flows change with time."""
        self.credit = 0.0
        """Dispatches that the band is owed by its floor share."""
        self.held: dict[Flow, str] = {}
        """Flows that are held back until the next session, and why."""
        self._heap: list[tuple[Any, int, Flow]] = []
        self._holdings: dict[type[Holdings], Holdings] = {}
        self._stamps = count(1)
        self._aged_at = created
        self._ages_for = _AGEING_SECONDS
        self._cpu_time = cpu_time

    # --- waiting requests -------------------------------------------------------------------------

    def flow(self, fairness_id: str, now: float) -> Flow:
        """Return the flow of ``fairness_id``; it is created if necessary."""
        flow = self.flows.get(fairness_id)
        if flow is None:
            flow = self.flows[fairness_id] = Flow(fairness_id, self, now)
        return flow

    def add(self, queued: QueuedRequest, now: float, *, is_ready: bool = True) -> None:
        """Enqueue a request in its flow."""
        flow = queued.queue
        queued.is_waiting = True
        self.waiting += 1
        self.size_bytes += queued.size_bytes
        flow.waiting += 1
        flow.size_bytes += queued.size_bytes
        flow.arrivals[queued.sequence] = queued
        flow.served_at = now
        queued.key = self._order_key(queued)
        if flow.waiting == 1:
            self._notify("activated", self.settings.fairness, flow, now)
        if self._holdings:
            for each in self._holdings.values():
                each.add(queued)
        if is_ready:
            self.make_ready(queued, now)

    def make_ready(self, queued: QueuedRequest, now: float) -> None:
        """Put a waiting request into the order of its flow."""
        flow = queued.queue
        had_head = flow.has_head
        if flow.push(queued) or not had_head:
            self.rank(flow, now)

    def remove(self, queued: QueuedRequest, now: float) -> None:
        """Dequeue a request."""
        flow = queued.queue
        was_head = flow.has_head and flow.head is queued
        queued.is_waiting = queued.is_ready = False
        self.waiting -= 1
        self.size_bytes -= queued.size_bytes
        flow.waiting -= 1
        flow.size_bytes -= queued.size_bytes
        del flow.arrivals[queued.sequence]
        flow.compact()
        if not self.waiting:
            self.credit = 0.0
            self._heap.clear()
            self._holdings.clear()
        elif was_head and flow.has_head:
            self.rank(flow, now)

    def dispatched(self, queued: QueuedRequest, now: float) -> None:
        """Note that a request, which left its queue, was sent to an endpoint."""
        flow = queued.queue
        flow.served_at = now
        self._notify("dispatched", self.settings.fairness, flow, queued, now)
        if flow.has_head:
            self.rank(flow, now)

    # --- displacement -----------------------------------------------------------------------------

    def holdings(self, kind: type[Holdings]) -> Holdings:
        """Return the flows, ordered by their use of a limit."""
        found = self._holdings.get(kind)
        if found is None:
            found = self._holdings[kind] = kind(self.flows, self._weight)
        return found

    def _weight(self, flow: Flow) -> float:
        if not flow.weight:
            flow.weight = self._weight_of(flow.fairness_id)
        return flow.weight

    def _weight_of(self, fairness_id: str) -> float:
        guard = self.settings.fairness
        if guard.is_off or type(guard.plugin).weight is FairnessPolicy.weight:
            return 1.0
        began = perf_counter()
        try:
            weight: object = guard.plugin.weight(fairness_id)
            if not isinstance(weight, int | float) or not 0 < weight < inf:
                raise PluginContractError(f"weight() returned {weight!r:.100}, no number above 0")
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
            return 1.0
        guard.passed(perf_counter() - began)
        return float(weight)

    # --- order of flows ---------------------------------------------------------------------------

    def rank(self, flow: Flow, now: float) -> None:
        """Recompute the key of a flow that has a head."""
        if flow not in self.held:
            (key,) = self._flow_keys((flow,), now)
            self._enter(flow, key)

    def refresh(self, now: float) -> None:
        """Begin a session: release held flows, and recompute keys that change with time if due."""
        held, self.held = self.held, {}
        if self.ages and now - self._aged_at >= self._ages_for:
            began = self._cpu_time()
            self._rank_all(now)
            self._aged_at = now
            self._ages_for = max(_AGEING_SECONDS, (self._cpu_time() - began) / _AGEING_PART)
        else:
            for flow in held:
                if flow.has_head:
                    self.rank(flow, now)

    def next_flow(self) -> Flow | None:
        """Return the next flow; None if no request is ready."""
        while self._heap:
            _, stamp, flow = self._heap[0]
            if stamp == flow.stamp and flow.has_head:
                return flow
            try:
                heappop(self._heap)
            except PLUGIN_FAULTS as error:
                self._fall_back(error)
        return None

    def ready(self) -> list[Flow]:
        """Return the flows with ready requests, in no order."""
        return [flow for _, stamp, flow in self._heap if stamp == flow.stamp and flow.has_head]

    def in_order(self) -> list[Flow]:
        """Return the flows with ready requests, the next one first."""
        current = [entry for entry in self._heap if entry[1] == entry[2].stamp]
        try:
            current.sort()
        except PLUGIN_FAULTS as error:
            self._fall_back(error)
            current = sorted(self._heap)
        return [flow for _, _, flow in current if flow.has_head]

    def hold(self, flow: Flow, why: str) -> None:
        """Hold a flow back until the next session."""
        self.held[flow] = why
        flow.stamp = 0

    def refusal(self, request: LLMRequest, now: float) -> str:
        """Return why the fairness policy holds ``request`` back; "" if it does not."""
        guard = self.settings.fairness
        if guard.is_off or type(guard.plugin).refusal is FairnessPolicy.refusal:
            return ""
        began = perf_counter()
        try:
            why: object = guard.plugin.refusal(request, now) or ""
            if not isinstance(why, str):
                raise PluginContractError(f"refusal() returned {why!r:.100}, which is no text")
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
            return ""
        guard.passed(perf_counter() - began)
        return why

    def use(self, settings: BandSettings, now: float) -> None:
        """Apply other limits and policies; all requests are reordered."""
        self.settings = settings
        self.ages = settings.fairness.plugin.keys_age
        self.max_requests, self.max_bytes = settings.max_requests, settings.max_bytes
        self.held = {}
        self._holdings.clear()
        for flow in self.flows.values():
            flow.fairness = None
            flow.weight = 0.0
            ready = list(flow.in_order())
            flow.clear()
            for queued in ready:
                queued.key = self._order_key(queued)
                flow.push(queued)
            if flow.waiting:
                self._notify("activated", settings.fairness, flow, now)
        self._rank_all(now)

    def cannot_compare(self, error: BaseException) -> None:
        self.settings.ordering.failed(error, 0.0)

    def _rank_all(self, now: float) -> None:
        # A tuple, because a policy could modify a list.
        flows = tuple(flow for flow in self.flows.values() if flow.has_head)
        keys = self._flow_keys(flows, now)
        self._heap = []
        for flow, key in zip(flows, keys, strict=True):
            flow.key, flow.stamp = key, next(self._stamps)
            self._heap.append((key, flow.stamp, flow))
        try:
            heapify(self._heap)
        except PLUGIN_FAULTS as error:
            self._fall_back(error)

    def _enter(self, flow: Flow, key: Any) -> None:  # noqa: ANN401 - any comparable type
        flow.key, flow.stamp = key, next(self._stamps)
        try:
            heappush(self._heap, (key, flow.stamp, flow))
            if len(self._heap) > 2 * len(self.flows) + _SPARE_ENTRIES:
                self._heap = [entry for entry in self._heap if entry[1] == entry[2].stamp]
                heapify(self._heap)
        except PLUGIN_FAULTS as error:
            self._fall_back(error)

    def _fall_back(self, error: BaseException) -> None:
        """Order the flows by the arrival of their heads, because their keys cannot be compared."""
        self.settings.fairness.failed(error, 0.0)
        flows = {flow for _, stamp, flow in self._heap if stamp == flow.stamp and flow.has_head}
        self._heap = []
        for flow in sorted(flows, key=lambda flow: flow.head.sequence):
            flow.key, flow.stamp = (FALLBACK, flow.head.sequence), next(self._stamps)
            self._heap.append((flow.key, flow.stamp, flow))

    # --- the policies -----------------------------------------------------------------------------

    def _order_key(self, queued: QueuedRequest) -> Any:  # noqa: ANN401 - any comparable type
        guard: Guard[OrderingPolicy] = self.settings.ordering
        if guard.is_off:
            return (FALLBACK, queued.sequence)
        began = perf_counter()
        try:
            key = guard.plugin.key(queued)
            _refuse_nan(key, "key()")
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
            return (FALLBACK, queued.sequence)
        guard.passed(perf_counter() - began)
        return (POLICY, key)

    def _flow_keys(self, flows: Sequence[Flow], now: float) -> Sequence[Any]:
        guard: Guard[FairnessPolicy] = self.settings.fairness
        if guard.is_off or not flows:
            return [_by_head(flow) for flow in flows]
        began = perf_counter()
        try:
            keys = [(POLICY, key) for key in guard.plugin.keys(flows, now)]
            if len(keys) != len(flows):
                raise PluginContractError(
                    f"keys() returned {len(keys)} keys for {len(flows)} flows"
                )
            for _, key in keys:
                _refuse_nan(key, "keys()")
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
            return [_by_head(flow) for flow in flows]
        guard.passed(perf_counter() - began)
        return keys

    def _notify(self, what: str, guard: Guard[FairnessPolicy], *args: object) -> None:
        if guard.is_off or getattr(type(guard.plugin), what) is getattr(FairnessPolicy, what):
            return
        began = perf_counter()
        try:
            getattr(guard.plugin, what)(*args)
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
        else:
            guard.timed(perf_counter() - began)


class Bands:
    """All bands; ``in_order`` is from high to low."""

    def __init__(self) -> None:
        self._by_priority: dict[int, PolicyBand] = {}
        self.in_order: tuple[PolicyBand, ...] = ()
        self.priorities: tuple[int, ...] = ()
        self.waiting = 0
        """The number of waiting requests in all bands."""
        self.size_bytes = 0

    def __getitem__(self, priority: int) -> PolicyBand:
        return self._by_priority[priority]

    def __contains__(self, priority: int) -> bool:
        return priority in self._by_priority

    def add(self, band: PolicyBand) -> None:
        """Add a band."""
        self._by_priority[band.priority] = band
        self._arrange()

    def remove(self, band: PolicyBand) -> None:
        """Remove a band without waiting requests."""
        del self._by_priority[band.priority]
        self._arrange()

    def next_band(self, saturation: float, ceilings: Sequence[float]) -> PolicyBand | None:
        """Return the band that may dispatch next; None if none may.

        Args:
            saturation: The saturation of the pool.
            ceilings: The ceilings of the bands, from high to low.
        """
        if not ceilings or saturation >= max(ceilings):
            return None
        first: PolicyBand | None = None
        is_blocked = False
        owed: PolicyBand | None = None
        for band, ceiling in zip(self.in_order, ceilings, strict=True):
            if not band.waiting or (first is not None and band.credit < 1):
                continue
            if band.next_flow() is None:
                continue
            if first is None:
                first, is_blocked = band, saturation >= ceiling
            elif owed is None or band.credit > owed.credit:
                owed = band
        return owed or (None if is_blocked else first)

    def first_ready(self) -> PolicyBand | None:
        """Return the highest band with a ready request, blocked or not."""
        for band in self.in_order:
            if band.waiting and band.next_flow() is not None:
                return band
        return None

    def went(self, band: PolicyBand) -> None:
        """Count a dispatch of ``band``, and credit all bands below the highest."""
        if band.credit >= 1:
            band.credit -= 1
        busy = [each for each in self.in_order if each.waiting or each is band]
        below = [each for each in busy[1:] if each.waiting]
        if not below:
            return
        most = _SHARED_FLOOR / len(below)
        for each in below:  # without min(), which took 3 % of all time
            share = each.settings.floor_share
            credit = each.credit + (share if share < most else most)
            each.credit = credit if credit < _MAX_OWED else _MAX_OWED

    def _arrange(self) -> None:
        bands: Iterable[PolicyBand] = self._by_priority.values()
        self.in_order = tuple(sorted(bands, key=lambda band: -band.priority))
        self.priorities = tuple(band.priority for band in self.in_order)


def _by_head(flow: Flow) -> tuple[int, tuple[Any, int]]:
    head = flow.head
    return FALLBACK, (head.key, head.sequence)


def _refuse_nan(key: object, where: str) -> None:
    if key != key:  # noqa: PLR0124 - it is not a number
        raise PluginContractError(f"{where} returned NaN, which is neither less nor more")

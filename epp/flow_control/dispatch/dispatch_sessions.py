"""The sessions of one configuration: its plugins, its actions, and when a session is opened."""

from collections.abc import Mapping
from functools import partial
from time import perf_counter

import structlog

from epp.flow_control.dispatch.dispatch_order import BandedOrder, SingleOrder, reasons_in
from epp.flow_control.dispatch.request_binder import FlowParts, RequestBinder
from epp.flow_control.dispatch.request_policy import RequestPolicy
from epp.flow_control.dispatch.shortage_search import ShortageSearch
from epp.flow_control.flows import QueuedRequest
from epp.flow_control.pressure.eviction import Demand
from epp.flow_control.queues.bands import PolicyBand
from epp.flow_control.sessions import (
    Action,
    Allocate,
    Dispatcher,
    Preempt,
    Reclaim,
    Session,
)
from epp.flow_control.sessions.contracts import PluginFault
from epp.flow_control.settings import FlowSettings
from epp.observability import FaultLog
from epp.scheduling import Endpoint, call_each

log = structlog.get_logger(__name__)

_EVICTING: Mapping[str, type[Reclaim | Preempt]] = {each.name: each for each in (Reclaim, Preempt)}


class DispatchSessions:
    """Runs sessions over the waiting requests, or over a single one that need not wait.

    Raises:
        PluginError: A session plugin cannot be configured.
        RegistrationError: Two session plugins register a function that only one may provide.
    """

    def __init__(self, settings: FlowSettings, parts: FlowParts) -> None:
        self._parts = parts
        self._ledger = parts.ledger
        self._capacity = parts.capacity
        self._evictions = parts.evictions
        self._host = parts.host
        self._evicts = not _EVICTING.keys().isdisjoint(settings.actions)
        """Whether an action evicts."""
        self.has_plugins = bool(settings.plugins)
        """Whether session plugins take part, also in requests that need not wait."""
        self.sees_all = self._evicts or self.has_plugins
        """Whether sessions must know all requests, also those that need not wait."""
        self._listeners = settings.listeners
        self._policy = RequestPolicy(parts)
        self._binder = RequestBinder(parts, keeps_in_flight=self.sees_all)
        self._actions = [self._action(name) for name in settings.actions]
        self._first: PolicyBand | None = None
        """The next band, found before the session opened."""
        self._faults = FaultLog()
        self._known_faults: set[tuple[str, str]] = set()
        self.dispatcher = self._dispatcher(settings)

    def _dispatcher(self, settings: FlowSettings) -> Dispatcher:
        """Return the current dispatcher if its plugins are the same, which keeps their state."""
        known = self._ledger.dispatcher
        if known is not None and known.plugins == settings.plugins:
            return known
        return Dispatcher(
            self._ledger.cluster,
            self._binder,
            plugins=settings.plugins,
            actions=(),
            fault=self._plugin_failed,
            policy=self._policy,
            timer=partial(
                self._host.observer.plugin_timer, slow_call_seconds=settings.slow_call_seconds
            ),
        )

    def _action(self, name: str) -> Action:
        if name == Allocate.name:
            return Allocate(self._banded_order)
        return _EVICTING[name](self._search)

    def _banded_order(self, session: Session) -> BandedOrder:
        first, self._first = self._first, None
        return BandedOrder(session, self._parts, self._binder, self._policy, first)

    def _search(self, session: Session) -> ShortageSearch:
        return ShortageSearch(session, self._parts)

    def take_over(self) -> None:
        """Replace the sessions of the previous configuration."""
        self.dispatcher.rebind(self._binder, self._plugin_failed, self._policy)
        if self.dispatcher is not self._ledger.dispatcher:
            self._ledger.dispatcher = self.dispatcher
            self.dispatcher.replay()  # only new plugins: the others know what is in flight

    # --- sessions ---------------------------------------------------------------------------------

    def run(self, now: float, *, is_news: bool) -> None:
        """Open a session if a request may be dispatched, or evicted for one that waits.

        Args:
            now: Time in seconds.
            is_news: Whether an event occurred since the last session.
        """
        ledger = self._ledger
        began = perf_counter()
        ledger.nodes.follow(self._host.pool())
        for band in ledger.bands.in_order:
            if band.waiting and (band.held or band.ages):
                band.refresh(now)
        ledger.parking.requeue_due(now, is_news=is_news)
        first = self._first = self._capacity.next_band()
        if first is not None or self._may_evict():
            call_each(self._listeners, lambda each: each.session_began(now))
            try:
                self.dispatcher.run(self._actions)
            except Exception as error:  # a bug of ours must not lose the waiting requests
                self._failed("a dispatch session failed; what waits is tried again", error)
                ledger.requeue_all(now)
            finally:
                call_each(self._listeners, lambda each: each.session_ended())
        if not self._evicts:
            self._evict_without_session()
        self._host.observer.session_ended(perf_counter() - began)

    def run_alone(self, queued: QueuedRequest) -> bool:
        """Run a session for one arriving request; return whether it was sent or has failed."""
        ledger = self._ledger
        ledger.nodes.follow(self._host.pool())
        ledger.cluster.add_job(queued)
        order = SingleOrder(queued, self._parts, self._binder, self._policy)
        try:
            explanations = self.dispatcher.run((Allocate(lambda _: order),))
        except Exception as error:
            self._failed("a dispatch session of one request failed; it waits", error)
            is_settled = False
        else:
            is_settled = order.is_settled
            if not is_settled:
                queued.reasons = reasons_in(explanations, queued)
        if not is_settled:
            ledger.cluster.remove_job(queued)
        return is_settled

    def moved(self, queued: QueuedRequest, endpoint: Endpoint) -> None:
        """Note that a request is served by an endpoint other than the chosen one."""
        if queued.node is not None:
            self.dispatcher.move(queued.task, self._ledger.nodes.of(endpoint))

    # --- evictions --------------------------------------------------------------------------------

    def _may_evict(self) -> bool:
        """Return whether a session could evict requests for a blocked band."""
        demand = self._demand() if self._evicts else None
        return demand is not None and self._evictions.choose(demand)[1] > 0

    def _evict_without_session(self) -> None:
        """Evict requests for a blocked band if no action does, so that no plugin takes part."""
        if (demand := self._demand()) is not None:
            victims, count = self._evictions.choose(demand)
            if victims:
                self._evictions.revoke(victims[:count])

    def _demand(self) -> Demand | None:
        return self._capacity.demand() if self._evictions.is_on else None

    # --- faults -----------------------------------------------------------------------------------

    def _failed(self, event: str, error: Exception) -> None:
        """Log a failed session, once per traceback, because it may fail each time."""
        if news := self._faults.traceback_of(error):
            log.error(event, exc_info=news)

    def _plugin_failed(self, plugin: str, point: str, error: PluginFault) -> None:
        self._host.observer.plugin_failed(plugin, point)
        if (plugin, point) not in self._known_faults:
            self._known_faults.add((plugin, point))
            log.error(
                "session plugin failed; further failures there are only counted",
                plugin=plugin,
                extension_point=point,
                exc_info=error,
            )

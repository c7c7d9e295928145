"""The sessions of one configuration: its plugins, its actions, and when one is worth opening."""

from collections.abc import Callable, Sequence
from time import perf_counter

import structlog

from epp.flow_control.dispatch.dispatch_order import line_of
from epp.flow_control.dispatch.dispatching import DispatchAlone, Dispatching, DispatchWaiting
from epp.flow_control.dispatch.eviction_actions import TAKING, TakePlaces
from epp.flow_control.dispatch.request_placement import EndpointNodes, RequestSession
from epp.flow_control.observer import FlowObserver
from epp.flow_control.pressure.capacity import Room
from epp.flow_control.pressure.eviction import Demand, Evictions
from epp.flow_control.queues import QueuedRequest
from epp.flow_control.queues.ledger import Ledger
from epp.flow_control.sessions import Action, Dispatcher, Session
from epp.flow_control.sessions.plugin import PluginFault
from epp.flow_control.settings import FlowSettings
from epp.observability import FaultLog
from epp.scheduling import Endpoint

log = structlog.get_logger()


class Rounds:
    """Runs sessions over what waits, or over one request that need not."""

    def __init__(
        self,
        ledger: Ledger,
        room: Room,
        evictions: Evictions,
        observer: FlowObserver,
        *,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """Wire them; none runs before :meth:`use`.

        Args:
            ledger: Who waits.
            room: Says whether one may go.
            evictions: Say who may be evicted for it.
            observer: Is told of sessions and of plugins that fail.
            clock: Monotonic seconds.
            wake: Has another session opened.
        """
        self._ledger = ledger
        self._room = room
        self._evictions = evictions
        self._observer = observer
        self._wake = wake
        self._dispatching = Dispatching(ledger, room, evictions, observer, clock)
        self._nodes = EndpointNodes(ledger.cluster)
        self._actions: Sequence[Action] = ()
        self._takes = False
        """Whether one of them evicts."""
        self.has_plugins = False
        """Whether session plugins have a say, also in what need not wait."""
        self._faults_told: set[tuple[str, str]] = set()
        self._faults = FaultLog()

    @property
    def sees_all(self) -> bool:
        """Whether sessions are to know of every request, also of those that need not wait."""
        return self._takes or self.has_plugins

    def prepare(self, settings: FlowSettings) -> Dispatcher:
        """Configure the plugins of ``settings``, which :meth:`use` then takes into use.

        Raises:
            PluginError: A session plugin cannot be configured.
            RegistrationError: Two session plugins want to be where only one can.
        """
        before = self._ledger.dispatcher
        if before is not None and before.plugins == settings.plugins:
            return before
        return self._make_dispatcher(settings, self._actions_of(settings))

    def use(self, settings: FlowSettings, dispatcher: Dispatcher) -> None:
        """Go over to other plugins and actions."""
        # The same plugins go on with what they know: they are not told of it a second time.
        if dispatcher is not self._ledger.dispatcher:
            self._ledger.dispatcher = dispatcher
            dispatcher.replay()
        self._actions = self._actions_of(settings)
        self.has_plugins = bool(settings.plugins)
        self._takes = not TAKING.isdisjoint(settings.actions)
        self._dispatching.keeps_all = self.sees_all
        self._faults_told = set()

    def _make_dispatcher(self, settings: FlowSettings, actions: Sequence[Action]) -> Dispatcher:
        return Dispatcher(
            self._ledger.cluster,
            self._dispatching,
            plugins=settings.plugins,
            actions=actions,
            fault=self._plugin_failed,
            session_type=lambda cluster, binder, fault: RequestSession(
                cluster,
                binder,
                fault,
                pool=self._room.pool,
                nodes=self._nodes,
                crowding=self._room.crowding,
            ),
        )

    def _actions_of(self, settings: FlowSettings) -> tuple[Action, ...]:
        return tuple(map(self._action, settings.actions))

    def _action(self, name: str) -> Action:
        if name in TAKING:
            return TakePlaces(name, self._evictions, self._blocked_request)
        return DispatchWaiting(self._dispatching, self._wake)

    # --- sessions -----------------------------------------------------------------------------

    def run(self, now: float, *, is_news: bool) -> None:
        """Open a session over what waits, if anything may go or somebody may be evicted for it.

        Args:
            now: Seconds of the clock.
            is_news: Whether something has happened since the last one.
        """
        ledger = self._ledger
        assert ledger.dispatcher is not None  # noqa: S101 - something waits
        began = perf_counter()
        self._nodes.follow(self._room.pool())
        for band in ledger.bands.in_order:
            if band.waiting and (band.held or band.ages):
                band.refresh(now)
        ledger.parking.leave(now, is_news=is_news)
        first = self._dispatching.first = self._room.next_band()
        if first is not None or self._may_take():
            try:
                ledger.dispatcher.run(self._actions)
            except Exception as error:  # one of ours: those that wait must not be lost with it
                self._failed("a dispatch session failed; what waits is tried again", error)
                ledger.line_up_all(now)
        if not self._takes:
            self._make_room()
        self._observer.session_ended(perf_counter() - began)

    def run_alone(self, queued: QueuedRequest) -> bool:
        """Run a session of one request, which does not wait; return whether that settled it."""
        ledger = self._ledger
        assert ledger.dispatcher is not None  # noqa: S101 - it is on
        self._nodes.follow(self._room.pool())
        ledger.cluster.add_job(queued)
        alone = DispatchAlone(self._dispatching, queued)
        try:
            ledger.dispatcher.run((alone,))
        except Exception as error:
            self._failed("a dispatch session of one request failed; it waits", error)
        if not alone.is_settled:
            ledger.cluster.remove_job(queued)
        return alone.is_settled

    def _failed(self, event: str, error: Exception) -> None:
        """Log a session that failed; what fails again and again does so at every session."""
        if news := self._faults.traceback_of(error):
            log.error(event, exc_info=news)

    def moved(self, queued: QueuedRequest, endpoint: Endpoint) -> None:
        """Take note that another endpoint than the chosen one has served."""
        if queued.node is not None and self._ledger.dispatcher is not None:
            self._ledger.dispatcher.move(queued.task, self._nodes.of(endpoint))

    # --- evictions ----------------------------------------------------------------------------

    def _may_take(self) -> bool:
        """Whether a session is worth opening though nothing may go: it may evict."""
        demand = self._demand() if self._takes else None
        return demand is not None and self._evictions.choose(demand)[1] > 0

    def _make_room(self) -> None:
        """Evict for a blocked band what no session is asked about."""
        if (demand := self._demand()) is not None:
            victims, count = self._evictions.choose(demand)
            if victims:
                self._evictions.revoke(victims[:count])

    def _demand(self) -> Demand | None:
        return self._room.demand() if self._evictions.is_on else None

    def _blocked_request(self, session: Session) -> tuple[Demand, QueuedRequest] | None:
        if self._room.next_band() is not None or (demand := self._demand()) is None:
            return None
        queued = line_of(session).first(self._ledger.bands[demand.priority])
        return None if queued is None else (demand, queued)

    def _plugin_failed(self, plugin: str, point: str, error: PluginFault) -> None:
        self._observer.plugin_failed(plugin, point)
        if (plugin, point) not in self._faults_told:
            self._faults_told.add((plugin, point))
            log.error(
                "session plugin failed; further failures there are only counted",
                plugin=plugin,
                extension_point=point,
                exc_info=error,
            )

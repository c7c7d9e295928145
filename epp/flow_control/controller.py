"""The flow controller: who goes now, who waits, and sessions that say who is next.

A request passes straight through while nothing waits and there is room; otherwise it waits in its
flow. Whatever may make room (a request's end, fresh metrics, an endpoint that comes) wakes the
controller, which opens one session in the next turn of the event loop, however much has happened
until then. While nothing waits, nothing runs.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from time import perf_counter
from typing import NamedTuple, cast

import structlog

from epp.flow_control.bands import Bands, PolicyBand
from epp.flow_control.ceilings import Ceilings
from epp.flow_control.eviction import Demand, Evictions
from epp.flow_control.expiry import Expiry
from epp.flow_control.idle import IdleFlows
from epp.flow_control.lines import ComparedLine, Line, PolicyLine
from epp.flow_control.observer import FlowObserver, NoRevocations, RevocationObserver
from epp.flow_control.outcomes import Outcome
from epp.flow_control.parking import Parking
from epp.flow_control.queues import Candidate, InFlight, QueuedRequest
from epp.flow_control.request_session import EndpointNodes, RequestSession
from epp.flow_control.saturation import FULL, PoolSaturation
from epp.flow_control.sessions import (
    Action,
    Binding,
    Cluster,
    CommitError,
    Dispatcher,
    Eviction,
    Session,
)
from epp.flow_control.sessions.placing import place
from epp.flow_control.settings import FlowSettings
from epp.flow_control.taking import TAKING, TakePlaces
from epp.scheduling import Endpoint, LLMRequest

_MOST_PER_SESSION = 256
"""Dispatches after which a session ends and another one goes on in the next turn of the loop."""
_MOST_REASONS = 8
"""What is kept for each request that fits nowhere."""
_ASK_AGAIN_SECONDS = 0.01
"""A band may be held back though the pool has room; its ceiling may be another one by then."""

log = structlog.get_logger()


class _Full(NamedTuple):
    """Why a band may not go; put into words when somebody asks, for most sessions end with it."""

    saturation: float
    priority: int
    ceiling: float

    def __str__(self) -> str:
        return (
            f"the pool's saturation is {self.saturation:.2f}, priority {self.priority} may go while"
            f" it is below {self.ceiling:.2f}"
        )


class FlowController:
    """Queues in front of one pool; made and used in the event loop."""

    def __init__(
        self,
        *,
        pool: Callable[[], Sequence[Endpoint]],
        clock: Callable[[], float],
        observer: FlowObserver,
        revocations: RevocationObserver | None = None,
    ) -> None:
        """Wire the controller; without :meth:`use` it is off.

        Args:
            pool: Returns the present snapshot of endpoints.
            clock: Monotonic seconds, the event loop's.
            observer: Is told of what happens.
            revocations: Is told of evictions.
        """
        self.is_on = False
        """Whether requests that come are its business; those that wait always are."""
        self.bands = Bands()
        self.evictions = Evictions(
            clock=clock, observer=revocations or NoRevocations(), wake=self.wake
        )
        """Who may lose the place it has."""
        self.now = clock
        self._pool = pool
        self._clock = clock
        self._observer = observer
        self.settings: FlowSettings | None = None
        self._cluster = Cluster()
        self._nodes = EndpointNodes(self._cluster)
        self._dispatcher: Dispatcher | None = None
        self._actions: Sequence[Action] = ()
        self._takes = False
        """Whether one of them evicts."""
        self._blocked_at: tuple[PolicyBand, float] | None = None
        """The band that is blocked, and by which saturation."""
        self._saturation: PoolSaturation | None = None
        self._ceilings: Ceilings | None = None
        self._parking = Parking(self.bands)
        self._expiry = Expiry(clock, self._expired)
        self._idle = IdleFlows(self.bands, self._cluster, clock, observer.flow_removed)
        self._sequence = count(1)
        self._faults_told: set[tuple[str, str]] = set()
        self._is_due = False
        self._is_news = False
        self._is_held_back = False
        self._asking: asyncio.TimerHandle | None = None
        self._blocked: str | _Full = ""
        self._pool_is_empty = False
        self._regime_since = clock()

    # --- configuration ------------------------------------------------------------------------

    @property
    def has_plugins(self) -> bool:
        """Whether session plugins have a say, also in what need not wait."""
        return self._dispatcher is not None and bool(self._dispatcher.plugins)

    @property
    def sees_all(self) -> bool:
        """Whether sessions are to know of every request, also of those that need not wait."""
        return self._takes or self.has_plugins

    @property
    def holds_filtered(self) -> bool:
        """Whether a request for which the filters leave no endpoint waits."""
        return self.settings is not None and self.settings.holds_filtered

    @property
    def dispatcher(self) -> Dispatcher | None:
        """Runs the sessions; None until it is configured."""
        return self._dispatcher

    def use(self, settings: FlowSettings | None) -> None:
        """Go over to another configuration; what waits goes on waiting.

        Args:
            settings: None for a configuration without flow control: what waits is still dispatched,
                by the settings before.

        Raises:
            PluginError: A session plugin cannot be configured; nothing has changed then.
            RegistrationError: Two session plugins want to be where only one can.
        """
        if settings is None:
            self.is_on = False
            self.evictions.use(None)
            return
        before = self._dispatcher
        # The same plugins go on with what they know: they are not told of it a second time.
        if before is None or before.plugins != settings.plugins:
            self._dispatcher = self._make_dispatcher(settings)
            self._dispatcher.replay()
        self.settings = settings
        self.evictions.use(settings.eviction)
        self._actions = tuple(map(self._action, settings.actions))
        self._takes = not TAKING.isdisjoint(settings.actions)
        self._saturation = PoolSaturation(settings.detector)
        self._ceilings = Ceilings(settings.limits, self.bands)
        self._faults_told = set()
        now = self._clock()
        self._parking.leave_all(now)
        for priority in settings.bands:
            self._band(priority, now)
        for band in self.bands.in_order:
            band.use(settings.of(band.priority), now)
        self.is_on = True
        self.wake()

    def _make_dispatcher(self, settings: FlowSettings) -> Dispatcher:
        return Dispatcher(
            self._cluster,
            self,
            plugins=settings.plugins,
            actions=self._actions,
            fault=self._plugin_failed,
            session_type=lambda cluster, binder, fault: RequestSession(
                cluster,
                binder,
                fault,
                pool=self._pool,
                nodes=self._nodes,
                crowding=self._crowding,
            ),
        )

    def _action(self, name: str) -> Action:
        if name in TAKING:
            return TakePlaces(name, self.evictions, self._blocked_request)
        return _Dispatch(self)

    # --- requests -----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self.bands.waiting

    def lets_pass(self, request: LLMRequest) -> bool:
        """Return whether ``request`` need not wait: nothing does, and there is room for it."""
        if self.bands.waiting:
            return False
        pool = self._pool()
        if not pool:
            return False
        now = self._clock()
        band = self._band(request.priority, now)
        assert self._saturation is not None and self._ceilings is not None  # noqa: S101, PT018 - it is on
        saturation = self._saturation.measure(pool)
        if saturation >= self._ceilings.of(band.priority, saturation):
            return False
        return not band.refusal(request, now)

    def passed(self, request: LLMRequest) -> None:
        """Take note that ``request`` has gone to an endpoint without having waited."""
        self._observer.passed(request)

    def submit(
        self, candidate: Candidate, ttl_seconds: float | None = None
    ) -> QueuedRequest | None:
        """Dispatch a request now, let it wait, or turn it away.

        Args:
            candidate: The request; told what became of it, perhaps before this returns.
            ttl_seconds: How long it may wait, if it says so itself.

        Returns:
            What waits; None if it does not.
        """
        settings = self.settings
        assert settings is not None  # noqa: S101 - it is on
        began = perf_counter()
        now = self._clock()
        request = candidate.request
        self._note_pool(now)
        band = self._band(request.priority, now)
        flow = self._idle.flow(band, request.fairness_id, now)
        ttl = band.settings.ttl_seconds
        if ttl_seconds is not None:
            ttl = ttl_seconds if ttl is None else min(ttl, ttl_seconds)
        queued = QueuedRequest(
            candidate,
            flow=flow,
            sequence=next(self._sequence),
            enqueued_at=now,
            ttl_seconds=ttl,
            has_own_ttl=ttl_seconds is not None,
        )
        if self.sees_all and self.lets_pass(request) and self._passes_alone(queued):
            return None
        if why := self._over_limit(band, queued):
            empty = self._pool_is_empty
            outcome = Outcome.REJECTED_NO_ENDPOINTS if empty else Outcome.REJECTED_CAPACITY
            self._forget(queued)
            self._observer.rejected(request, outcome)
            candidate.turn_away(outcome, why, pool_is_empty=empty)
            return None
        queued.expires_at = self._expires_at(queued)
        self.bands.waiting += 1
        self.bands.size_bytes += queued.size_bytes
        band.add(queued, now)
        self._cluster.add_job(queued)
        self._expiry.add(queued)
        self._observer.enqueued(queued, perf_counter() - began)
        self.wake()
        return queued

    def cancel(self, queued: QueuedRequest, outcome: Outcome) -> None:
        """Let a request wait no more that nobody wants any more; nobody is told."""
        if queued.is_waiting:
            self._leave(queued, outcome)
            self.wake()  # those behind it may fit

    def ended(self, queued: QueuedRequest | None, in_flight: InFlight | None = None) -> None:
        """Take note that a request has ended that was sent to an endpoint.

        Args:
            queued: What ``dispatch`` was given; None for one that has passed straight.
            in_flight: What ``evictions`` kept it as; None for one that it did not keep.
        """
        if in_flight is not None:
            self.evictions.ended(in_flight)
        if queued is not None and queued.node is not None:
            queued.queue.running -= 1
            self._forget(queued)
        if self.bands.waiting:
            self.wake()

    def moved(self, queued: QueuedRequest, endpoint: Endpoint) -> None:
        """Take note that another endpoint than the chosen one has served."""
        if queued.node is not None and self._dispatcher is not None:
            self._dispatcher.move(queued.task, self._nodes.of(endpoint))

    # --- events -------------------------------------------------------------------------------

    def wake(self) -> None:
        """Open a session in the next turn of the loop if anything waits."""
        self._is_news = True
        self._open_soon()

    def _open_soon(self) -> None:
        if self.bands.waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """Take note of a change of the pool."""
        self._pool_changed()

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """Take note of a change of the pool."""
        self._pool_changed()

    def _pool_changed(self) -> None:
        if self.bands.waiting:
            now = self._clock()
            self._note_pool(now)
            self._parking.leave_all(now)
            self.wake()

    def _note_pool(self, now: float) -> None:
        """Take note of whether there are endpoints: those that wait begin their time anew."""
        is_empty = not self._pool()
        if is_empty == self._pool_is_empty:
            return
        self._pool_is_empty = is_empty
        self._regime_since = now
        waiting = list(self._everybody())
        for queued in waiting:
            queued.expires_at = self._expires_at(queued)
        self._expiry.replace(waiting)

    def _everybody(self) -> Sequence[QueuedRequest]:
        jobs = self._cluster.jobs.values()
        return [job for job in cast("Sequence[QueuedRequest]", jobs) if job.is_waiting]

    def _expires_at(self, queued: QueuedRequest) -> float | None:
        if queued.has_own_ttl and queued.ttl_seconds is not None:
            return queued.enqueued_at + queued.ttl_seconds
        assert self.settings is not None  # noqa: S101 - something waits
        ttl = queued.ttl_seconds
        if self._pool_is_empty:
            ttl = self.settings.no_endpoint_ttl_seconds
        return None if ttl is None else max(queued.enqueued_at, self._regime_since) + ttl

    def _expired(self, queued: QueuedRequest) -> None:
        now = self._clock()
        empty = self._pool_is_empty
        outcome = Outcome.EVICTED_NO_ENDPOINTS if empty else Outcome.EVICTED_TTL
        waited = now - queued.enqueued_at
        why = f"it has waited for {waited:.3f} s in flow control"
        why += ", and the pool has no endpoint" if empty else ""
        if reasons := self.reasons(queued):
            why += f": {'; '.join(reasons[:3])}"
        self._leave(queued, outcome)
        queued.candidate.turn_away(outcome, why, pool_is_empty=empty)
        self.wake()

    # --- sessions -----------------------------------------------------------------------------

    def _run(self) -> None:
        self._is_due = False
        dispatcher = self._dispatcher
        if not self.bands.waiting or dispatcher is None:
            return
        began = perf_counter()
        now = self._clock()
        self._note_pool(now)
        self._nodes.follow(self._pool())
        for band in self.bands.in_order:
            if band.waiting:
                band.refresh(now)
        self._parking.leave(now, is_news=self._is_news)
        self._is_news = False
        if self._next_band() is not None or self._may_take():
            try:
                dispatcher.run(self._actions)
            except Exception:  # one of ours: those that wait must not be lost with it
                log.exception("a dispatch session failed; what waits is tried again in the next")
                self._line_up_all(now)
        if not self._takes:
            self._make_room()
        self._observer.session_ended(perf_counter() - began)
        later = _ASK_AGAIN_SECONDS if self._is_held_back else self._parking.seconds_short
        if later is not None and self._asking is None:
            loop = asyncio.get_running_loop()
            self._asking = loop.call_later(later, self._ask_again)

    def _ask_again(self) -> None:
        self._asking = None
        self._open_soon()

    def _line_up_all(self, now: float) -> None:
        self._parking.leave_all(now)
        for queued in self._everybody():
            if not queued.is_in_line:
                self.bands[queued.priority].line_up(queued, now)

    def _may_take(self) -> bool:
        """Whether a session is worth opening though nothing may go: it may evict."""
        demand = self._demand() if self._takes else None
        return demand is not None and self.evictions.choose(demand)[1] > 0

    def _make_room(self) -> None:
        """Evict for a blocked band what no session is asked about."""
        if (demand := self._demand()) is not None:
            victims, count = self.evictions.choose(demand)
            if victims:
                self.evictions.revoke(victims[:count])

    def _demand(self) -> Demand | None:
        """Return what evictions would make room for."""
        if not self.evictions.is_on or self._blocked_at is None:
            return None
        assert self._ceilings is not None  # noqa: S101 - it is on
        band, saturation = self._blocked_at
        in_flight = sum(endpoint.load.in_flight for endpoint in self._pool())
        ceiling = self._ceilings.by_priority[band.priority]
        return Demand(band.priority, saturation, ceiling, in_flight)

    def _blocked_request(self, session: Session) -> tuple[Demand, QueuedRequest] | None:
        if self._next_band() is not None or (demand := self._demand()) is None:
            return None
        queued = _line(session).first(self.bands[demand.priority])
        return None if queued is None else (demand, queued)

    def dispatch_waiting(self, session: RequestSession) -> None:
        """Dispatch what there is room for, in order; the action of every session."""
        line = _line(session)
        now = self._clock()
        left = _MOST_PER_SESSION
        while left and (band := self._next_band()) is not None:
            queued = line.first(band)
            if queued is None:  # what is ready has been held back since
                break
            flow = queued.queue
            if why := band.refusal(queued.request, now):
                band.hold(flow, why)
            elif queued.tries and not self._parking.has_time:
                self._park(session, band, queued, now, is_tried=False)
            else:
                left -= self._try(session, band, queued, now)
            line.changed(flow)
        line.close()
        if not left:
            self.wake()

    def _next_band(self) -> PolicyBand | None:
        """Return the band whose turn it is; None if none has, and why."""
        assert self._saturation is not None and self._ceilings is not None  # noqa: S101, PT018 - it is on
        pool = self._pool()
        self._blocked_at = None
        if not pool:
            self._blocked = "the pool has no endpoint"
            self._is_held_back = False
            return None
        saturation = self._saturation.measure(pool)
        ceilings = self._ceilings.all(saturation)
        band = self.bands.next_band(saturation, ceilings)
        self._blocked = ""
        self._is_held_back = False
        if band is None and self.bands.waiting:
            self._blocked = self._why_blocked(saturation, ceilings)
            self._is_held_back = bool(self._blocked) and saturation < FULL
        return band

    def _why_blocked(self, saturation: float, ceilings: Sequence[float]) -> "str | _Full":
        first = self.bands.first_ready()
        if first is None:
            return ""
        self._blocked_at = first, saturation
        ceiling = ceilings[self.bands.in_order.index(first)]
        return _Full(saturation, first.priority, ceiling)

    def _crowding(self, queued: QueuedRequest, endpoints: Sequence[Endpoint]) -> str:
        """Return why ``endpoints``, a part of the pool, cannot take a request; "" if they can."""
        assert self.settings is not None and self._ceilings is not None  # noqa: S101, PT018 - it is on
        saturation = PoolSaturation(self.settings.detector).measure(endpoints)
        ceilings = self._ceilings.by_priority
        is_owed = self.bands[queued.priority].credit >= 1
        ceiling = max(ceilings.values()) if is_owed else ceilings[queued.priority]
        if saturation < ceiling:
            return ""
        return (
            f"the saturation of the {len(endpoints)} endpoints that it may go to is"
            f" {saturation:.2f}, it may go while it is below {ceiling:.2f}"
        )

    def _try(
        self, session: RequestSession, band: PolicyBand, queued: QueuedRequest, now: float
    ) -> int:
        """Dispatch a request if there is a place for it; return whether it waits no more."""
        flow = queued.queue
        flow.take(queued)
        statement = session.statement()
        began = perf_counter()
        if place(session, statement, queued):
            self._leave(queued, Outcome.DISPATCHED)
            self.bands.went(band)
            self._commit(queued, statement.commit)
            band.dispatched(queued, now)  # after the hooks, by which policies count what goes
            return 1
        statement.discard()
        if session.failure is not None:
            self._leave(queued, Outcome.DISPATCHED)
            self._forget(queued)
            queued.candidate.fail(session.failure)
        else:
            self._parking.took(perf_counter() - began)
            self._park(session, band, queued, now, is_tried=True)
        if flow.has_head:
            band.rank(flow, now)
        return int(session.failure is not None)

    def _park(
        self,
        session: RequestSession,
        band: PolicyBand,
        queued: QueuedRequest,
        now: float,
        *,
        is_tried: bool,
    ) -> None:
        flow = queued.queue
        if queued.is_in_line:
            flow.take(queued)
            if flow.has_head:
                band.rank(flow, now)
        queued.reasons = _told(session, queued) or queued.reasons
        queued.tries += is_tried
        self._parking.enter(queued, is_tried=is_tried)

    def _passes_alone(self, queued: QueuedRequest) -> bool:
        """Run a session of one request; return whether that settled it."""
        assert self._dispatcher is not None  # noqa: S101 - it has plugins
        self._nodes.follow(self._pool())
        self._cluster.add_job(queued)
        alone = _Alone(self, queued)
        try:
            self._dispatcher.run((alone,))
        except Exception:
            log.exception("a dispatch session of one request failed; it waits for the next")
        if not alone.is_settled:
            self._cluster.remove_job(queued)
        return alone.is_settled

    def place_alone(self, session: RequestSession, queued: QueuedRequest) -> bool:
        """Dispatch a request that does not wait; return whether it need not."""
        statement = session.statement()
        if place(session, statement, queued):
            self._observer.passed(queued.request)
            self._commit(queued, statement.commit)
            return True
        statement.discard()
        if session.failure is None:
            queued.reasons = _told(session, queued)
            return False
        self._forget(queued)
        self._observer.passed(queued.request)
        queued.candidate.fail(session.failure)
        return True

    def _commit(self, queued: QueuedRequest, commit: Callable[[], None]) -> None:
        flow = queued.queue
        flow.running += 1  # before, for it may end while it is answered
        try:
            commit()
        except CommitError as error:
            flow.running -= 1
            self._forget(queued)
            cause = error.__cause__
            queued.candidate.fail(cause if isinstance(cause, Exception) else error)
        else:
            if queued.node is None:
                return  # it has ended already, while it was answered
            if not self.sees_all:  # nobody asks for what is in flight
                flow.running -= 1
                self._forget(queued)

    def commit(self, evictions: Sequence[Eviction], bindings: Sequence[Binding]) -> None:
        """Evict requests, and send others to their endpoints: what statements commit to.

        Raises:
            ValueError: A request may not be evicted; nothing was done.
        """
        if evictions:
            jobs = [cast("QueuedRequest", each.task.job) for each in evictions]
            victims = self.evictions.of(jobs)
            for queued in jobs:
                queued.queue.running -= 1
                self._forget(queued)
            self.evictions.revoke(victims)
        for binding in bindings:
            queued = cast("QueuedRequest", binding.task.job)
            result, queued.result = queued.result, None
            assert result is not None  # noqa: S101 - a node was chosen by it
            queued.candidate.dispatch(queued, result, binding.attributes)

    # --- the end of a wait --------------------------------------------------------------------

    def _leave(self, queued: QueuedRequest, outcome: Outcome) -> None:
        now = self._clock()
        self.bands[queued.priority].remove(queued, now)
        self.bands.waiting -= 1
        self.bands.size_bytes -= queued.size_bytes
        self._parking.forget(queued)
        self._expiry.forget(self.bands.waiting)
        if not self.bands.waiting:
            self._blocked = ""
        self._observer.left(queued, outcome, now - queued.enqueued_at)
        if outcome is not Outcome.DISPATCHED:
            self._forget(queued)

    def _forget(self, queued: QueuedRequest) -> None:
        """Take a request out of the cluster that neither waits nor is in flight."""
        if self._dispatcher is not None:
            if queued.node is not None:
                self._dispatcher.end(queued.task)
            self._dispatcher.forget(queued)
        if self._cluster.jobs.get(queued.name) is queued:
            self._cluster.remove_job(queued)
        queued.close()
        self._idle.note(queued.queue, self._clock())

    # --- bands and limits ---------------------------------------------------------------------

    def _band(self, priority: int, now: float) -> PolicyBand:
        if priority in self.bands:
            return self.bands[priority]
        assert self.settings is not None  # noqa: S101 - it is on
        band = PolicyBand(priority, self.settings.of(priority), now)
        self._cluster.add_queue(band)
        self.bands.add(band)
        return band

    def _over_limit(self, band: PolicyBand, queued: QueuedRequest) -> str:
        settings, size = self.settings, queued.size_bytes
        assert settings is not None  # noqa: S101 - it is on
        if settings.max_requests and self.bands.waiting >= settings.max_requests:
            return f"{self.bands.waiting} requests wait, which is the most that may"
        if settings.max_bytes and self.bands.size_bytes + size > settings.max_bytes:
            return (
                f"requests of {self.bands.size_bytes} bytes wait, with this one's {size} they"
                f" would be over the limit of {settings.max_bytes}"
            )
        if band.waiting >= band.max_requests:
            return (
                f"{band.waiting} requests of priority {band.priority} wait, which is the most that"
                " may"
            )
        if band.size_bytes + size > band.max_bytes:
            return (
                f"requests of priority {band.priority} and {band.size_bytes} bytes wait, with this"
                f" one's {size} they would be over the limit of {band.max_bytes}"
            )
        return ""

    # --- what may be asked --------------------------------------------------------------------

    @property
    def pool(self) -> Sequence[Endpoint]:
        """The endpoints there are."""
        return self._pool()

    @property
    def saturation_by_stage(self) -> Mapping[str, float]:
        """How full the pool was when that was looked at last."""
        return {} if self._saturation is None else self._saturation.by_stage

    @property
    def ceilings_by_priority(self) -> Mapping[int, float]:
        """Up to which saturation each band could go by then."""
        return {} if self._ceilings is None else self._ceilings.by_priority

    @property
    def blocked(self) -> str:
        """Why the last session could dispatch nothing more; "" if nothing waited."""
        return str(self._blocked)

    @property
    def parked(self) -> Sequence[QueuedRequest]:
        """Requests that fit nowhere for now."""
        return self._parking.requests

    def look(self) -> None:
        """Look how full the pool is now."""
        if self._saturation is not None:
            self._saturation.measure(self._pool())

    def reasons(self, queued: QueuedRequest) -> Sequence[str]:
        """Return why a request waits, as far as the last sessions know."""
        if not queued.is_in_line:
            return queued.reasons
        held = self.bands[queued.priority].held.get(queued.queue)
        if held:
            return (held,)
        return (self.blocked, *queued.not_evicted_for) if self.blocked else ()

    def _plugin_failed(self, plugin: str, point: str, error: Exception) -> None:
        self._observer.plugin_failed(plugin, point)
        if (plugin, point) not in self._faults_told:
            self._faults_told.add((plugin, point))
            log.error(
                "session plugin failed; further failures there are only counted",
                plugin=plugin,
                extension_point=point,
                exc_info=error,
            )


def _told(session: RequestSession, queued: QueuedRequest) -> Sequence[str]:
    """Return why a request has no place; a few reasons, for there may be one per endpoint."""
    reasons = session.explanations.of(queued)
    more = len(reasons) - _MOST_REASONS
    return reasons if more <= 0 else [*reasons[:_MOST_REASONS], f"and {more} more reasons"]


def _line(session: Session) -> Line:
    is_compared = session.queue_orders or session.job_orders
    return ComparedLine(session) if is_compared else PolicyLine()


class _Dispatch(Action):
    """Dispatches what waits."""

    name = "allocate"

    def __init__(self, controller: FlowController) -> None:
        self._controller = controller

    def execute(self, ssn: Session) -> None:
        assert isinstance(ssn, RequestSession)  # noqa: S101 - the controller makes no other
        self._controller.dispatch_waiting(ssn)


class _Alone(Action):
    """Dispatches one request that does not wait yet."""

    name = "allocate"

    def __init__(self, controller: FlowController, queued: QueuedRequest) -> None:
        self._controller = controller
        self._queued = queued
        self.is_settled = False

    def execute(self, ssn: Session) -> None:
        assert isinstance(ssn, RequestSession)  # noqa: S101 - the controller makes no other
        self.is_settled = self._controller.place_alone(ssn, self._queued)

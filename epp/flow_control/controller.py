"""The flow controller: who goes now, who waits, and sessions that say who is next.

A request passes straight through while nothing waits and there is room; otherwise it waits in its
flow. Whatever may make room (a request's end, fresh metrics, an endpoint that comes) wakes the
controller, which opens one session in the next turn of the event loop, however much has happened
until then. While nothing waits, nothing runs.

Its parts: :class:`Room` (may any request go, of which band), :class:`Ledger` (who waits and who is
in flight), :class:`Rounds` (sessions) and, in these, ``Dispatching``.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from time import perf_counter

from epp.data_layer.scrape import ScrapeObserver
from epp.flow_control.dispatch.dispatch_sessions import Rounds
from epp.flow_control.observer import FlowObserver, NoRevocations, RevocationObserver
from epp.flow_control.pressure.capacity import Room
from epp.flow_control.pressure.eviction import Evictions
from epp.flow_control.queues import Candidate, InFlight, Outcome, QueuedRequest
from epp.flow_control.queues.ledger import Ledger
from epp.flow_control.queues.limits import displacement
from epp.flow_control.queues.timeouts import ttl_of
from epp.flow_control.sessions import Dispatcher
from epp.flow_control.settings import FlowSettings
from epp.scheduling import Endpoint, LLMRequest, Plugin

_ASK_AGAIN_SECONDS = 0.01
"""A band may be held back though the pool has room; its ceiling may be another one by then."""


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
        self.evictions = Evictions(
            clock=clock, observer=revocations or NoRevocations(), wake=self.wake
        )
        """Who may lose the place it has."""
        self.now = clock
        self._pool = pool
        self._clock = clock
        self._observer = observer
        self.settings: FlowSettings | None = None
        self._ledger = Ledger(pool=pool, clock=clock, observer=observer, expired=self._expired)
        self.bands = self._ledger.bands
        self.room = Room(pool, self.bands)
        """How full the pool is, and which band that blocks."""
        self._rounds = Rounds(
            self._ledger, self.room, self.evictions, observer, clock=clock, wake=self.wake
        )
        self._sequence = count(1)
        self._is_due = False
        self._is_news = False
        self._asking: asyncio.TimerHandle | None = None

    # --- configuration ------------------------------------------------------------------------

    @property
    def has_plugins(self) -> bool:
        """Whether session plugins have a say, also in what need not wait."""
        return self._rounds.has_plugins

    @property
    def sees_all(self) -> bool:
        """Whether sessions are to know of every request, also of those that need not wait."""
        return self._rounds.sees_all

    @property
    def holds_filtered(self) -> bool:
        """Whether a request for which the filters leave no endpoint waits."""
        return self.settings is not None and self.settings.holds_filtered

    @property
    def dispatcher(self) -> Dispatcher | None:
        """Runs the sessions; None until it is configured."""
        return self._ledger.dispatcher

    def use(self, settings: FlowSettings | None) -> None:
        """Go over to another configuration; what waits goes on waiting.

        Args:
            settings: None for a configuration without flow control: what waits is still dispatched,
                by the settings before.

        Raises:
            PluginError: A session plugin cannot be configured; nothing has changed then.
            RegistrationError: Two session plugins want to be where only one can.
        """
        self.prepare(settings)()

    def prepare(self, settings: FlowSettings | None) -> Callable[[], None]:
        """Do of :meth:`use` what may fail; return what does the rest, to be called in this step."""
        if settings is None:
            return self._turn_off
        dispatcher = self._rounds.prepare(settings)
        return partial(self._go_over, settings, dispatcher)

    def _turn_off(self) -> None:
        self.is_on = False
        self.evictions.use(None)

    def _go_over(self, settings: FlowSettings, dispatcher: Dispatcher) -> None:
        self._rounds.use(settings, dispatcher)
        self.settings = settings
        self.evictions.use(settings.eviction)
        self.room.use(settings)
        self._ledger.use(settings, self._clock())
        self.is_on = True
        self.wake()

    # --- requests -----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self.bands.waiting

    @property
    def parked(self) -> Sequence[QueuedRequest]:
        """Requests that fit nowhere for now."""
        return self._ledger.parking.requests

    def lets_pass(self, request: LLMRequest) -> bool:
        """Return whether ``request`` need not wait: nothing does, and there is room for it."""
        if self.bands.waiting:
            return False
        pool = self._pool()
        if not pool:
            return False
        now = self._clock()
        band = self._ledger.band(request.priority, now)
        return self.room.has_some_for(band, pool) and not band.refusal(request, now)

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
        self._ledger.note_pool(now)
        band = self._ledger.band(request.priority, now)
        queued = QueuedRequest(
            candidate,
            flow=self._ledger.flow(band, request.fairness_id, now),
            sequence=next(self._sequence),
            enqueued_at=now,
            ttl_seconds=ttl_of(band.settings, ttl_seconds),
            has_own_ttl=ttl_seconds is not None,
        )
        if self.sees_all and self.lets_pass(request) and self._rounds.run_alone(queued):
            return None
        why, victims = displacement(settings, self.bands, band, queued)
        if why and not victims:
            self._ledger.forget(queued)
            self._observer.rejected(request, self._rejection)
            self._turn_away(queued, why)
            return None
        for victim in victims:
            self._ledger.leave(victim, self._rejection)
        self._ledger.enter(band, queued, now)
        self._observer.enqueued(queued, perf_counter() - began)
        self.wake()
        for victim in victims:
            self._turn_away(victim, _gave_way(victim, queued, now))
        return queued

    @property
    def _rejection(self) -> Outcome:
        """The outcome of a request that may not wait."""
        is_empty = self._ledger.times.pool_is_empty
        return Outcome.REJECTED_NO_ENDPOINTS if is_empty else Outcome.REJECTED_CAPACITY

    def _turn_away(self, queued: QueuedRequest, why: str) -> None:
        empty = self._ledger.times.pool_is_empty
        queued.candidate.turn_away(self._rejection, why, pool_is_empty=empty)

    def cancel(self, queued: QueuedRequest, outcome: Outcome) -> None:
        """Let a request wait no more that nobody wants any more; nobody is told."""
        if queued.is_waiting:
            self._ledger.leave(queued, outcome)
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
            self._ledger.forget(queued)
        if self.bands.waiting:
            self.wake()

    def moved(self, queued: QueuedRequest, endpoint: Endpoint) -> None:
        """Take note that another endpoint than the chosen one has served."""
        self._rounds.moved(queued, endpoint)

    def reasons(self, queued: QueuedRequest) -> Sequence[str]:
        """Return why a request waits, as far as the last sessions know."""
        if not queued.is_in_line:
            return queued.reasons
        held = self.bands[queued.priority].held.get(queued.queue)
        if held:
            return (held,)
        blocked = self.room.blocked
        return (blocked, *queued.not_evicted_for) if blocked else ()

    def _expired(self, queued: QueuedRequest) -> None:
        empty = self._ledger.times.pool_is_empty
        outcome = Outcome.EVICTED_NO_ENDPOINTS if empty else Outcome.EVICTED_TTL
        waited = self._clock() - queued.enqueued_at
        why = f"it has waited for {waited:.3f} s in flow control"
        if reasons := ["the pool has no endpoint"] if empty else self.reasons(queued):
            why += f": {'; '.join(reasons[:3])}"
        self._ledger.leave(queued, outcome)
        queued.candidate.turn_away(outcome, why, pool_is_empty=empty)
        self.wake()

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
            self._ledger.note_pool(now)
            self._ledger.parking.leave_all(now)
            self.wake()

    def _run(self) -> None:
        self._is_due = False
        if not self.bands.waiting:
            return
        now = self._clock()
        self._ledger.note_pool(now)
        is_news, self._is_news = self._is_news, False
        self._rounds.run(now, is_news=is_news)
        later = self._ledger.parking.seconds_short
        if self.room.is_held_back:
            later = _ASK_AGAIN_SECONDS
        if later is not None and self._asking is None:
            loop = asyncio.get_running_loop()
            self._asking = loop.call_later(later, self._ask_again)

    def _ask_again(self) -> None:
        self._asking = None
        self._open_soon()


class FreshMetrics:
    """Passes on how scrapes go, and wakes flow control after each page."""

    def __init__(self, observer: ScrapeObserver, wake: Callable[[], None]) -> None:
        self._observer = observer
        self._wake = wake

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        """Pass it on, then wake."""
        self._observer.page_scraped(source, endpoint, seconds)
        self._wake()

    def poll_failed(self, source: Plugin, endpoint: Endpoint, kind: str) -> None:
        """Pass it on."""
        self._observer.poll_failed(source, endpoint, kind)

    def extract_failed(
        self, source: Plugin, extractor: Plugin, endpoint: Endpoint, kind: str
    ) -> None:
        """Pass it on."""
        self._observer.extract_failed(source, extractor, endpoint, kind)


def _gave_way(victim: QueuedRequest, queued: QueuedRequest, now: float) -> str:
    """Return why ``victim`` gave way to ``queued``."""
    to = "of a higher priority"
    if queued.priority == victim.priority:
        to = "of a flow that holds less"
    return (
        f"as much waits in flow control as may; after {now - victim.enqueued_at:.3f} s this one"
        f" gave way to a request {to}"
    )

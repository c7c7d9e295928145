"""The flow controller: the state of flow control, and the events that open sessions.

A request is dispatched immediately if no other waits and the pool has capacity; otherwise it waits
in the queue of its flow. Each event that may free capacity (the end of a request, new metrics, a
new endpoint) wakes the controller, which opens one session in the next turn of the event loop,
however many events occur before then. While no request waits, nothing runs.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import thread_time

from epp.data_layer.scrape_observers import NullScrapeObserver
from epp.flow_control.control import FlowControl
from epp.flow_control.flows import Candidate, InFlight, Outcome, QueuedRequest
from epp.flow_control.interfaces import FlowObserver, NoRevocations, RevocationObserver
from epp.flow_control.pressure.eviction import Evictions
from epp.flow_control.settings import FlowSettings
from epp.parsing.plugins import Usage
from epp.scheduling import Endpoint, LLMRequest, Plugin

_RETRY_SECONDS = 0.01
"""Time until a band is retried that was held back although the pool has capacity: its ceiling may
have changed."""


class FlowController:
    """Flow control of one pool, across reloads; created and used in the event loop."""

    def __init__(
        self,
        *,
        pool: Callable[[], Sequence[Endpoint]],
        clock: Callable[[], float],
        observer: FlowObserver,
        revocations: RevocationObserver | None = None,
        why_none_serves: Callable[[], str] = lambda: "",
        cpu_clock: Callable[[], float] = thread_time,
    ) -> None:
        """Create a controller that is off until :meth:`use`.

        Args:
            pool: Returns the current snapshot of the endpoints.
            clock: Returns the time of the event loop, in seconds.
            observer: Receives the events of requests and sessions.
            revocations: Receives the events of evictions.
            why_none_serves: Returns why ``pool`` is empty although there are endpoints; "" if there
                are none.
            cpu_clock: Returns the CPU time of the thread, in seconds. It bounds the CPU time of
                failed attempts; with wall time, an interrupted attempt would cost more.
        """
        self.pool = pool
        self.now = clock
        self.cpu_time = cpu_clock
        self.observer = observer
        self._why_none_serves = why_none_serves
        self.active: FlowControl | None = None
        """The flow control for new requests; None while it is off."""
        self.control: FlowControl | None = None
        """The flow control that dispatches waiting requests: the active one, or the last one."""
        self.evictions = Evictions(self, revocations or NoRevocations())
        """The requests in flight that can be evicted."""
        self._is_due = False
        self._is_news = False
        self._retry: asyncio.TimerHandle | None = None

    # --- configuration ----------------------------------------------------------------------------

    def use(self, settings: FlowSettings | None) -> None:
        """Apply a configuration; waiting requests keep waiting.

        Args:
            settings: None turns flow control off: waiting requests are still dispatched, with the
                previous settings.

        Raises:
            PluginError: A session plugin cannot be configured; nothing has changed.
            RegistrationError: Two session plugins register a function that only one may provide;
                nothing has changed.
        """
        self.prepare(settings)()

    def prepare(self, settings: FlowSettings | None) -> Callable[[], None]:
        """Do the part of :meth:`use` that may fail; return a callback for the rest."""
        if settings is None:
            return self._turn_off
        ledger = None if self.control is None else self.control.ledger
        return partial(self._activate, FlowControl(settings, self, self.evictions, ledger))

    def _turn_off(self) -> None:
        self.active = None
        self.evictions.use(None)

    def _activate(self, control: FlowControl) -> None:
        control.take_over()
        self.active = self.control = control
        self.wake()

    @property
    def shown(self) -> FlowControl | None:
        """The flow control to show to operators; None while it is off and no request waits."""
        return self.control if self.active is not None or self.waiting else None

    @property
    def holds_filtered(self) -> bool:
        """Whether a request waits if the filters leave no endpoint for it."""
        return self.control is not None and self.control.settings.holds_filtered

    # --- requests ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return 0 if self.control is None else self.control.ledger.bands.waiting

    def lets_pass(self, request: LLMRequest) -> bool:
        """Return whether ``request`` need not be submitted: none waits, and there is capacity."""
        control = self.active
        return control is not None and not control.sees_all and control.lets_pass(request)

    def submit(self, candidate: Candidate, ttl_seconds: float | None) -> QueuedRequest | None:
        """Dispatch, enqueue or refuse a request while flow control is on.

        Args:
            candidate: The request; its outcome may be reported to it before this returns.
            ttl_seconds: The request's own TTL; None if it has none.

        Returns:
            The waiting request; None if it does not wait.
        """
        assert self.active is not None  # noqa: S101 - see above
        return self.active.submit(candidate, ttl_seconds)

    def passed(self, request: LLMRequest) -> None:
        """Note that ``request`` was sent to an endpoint without waiting."""
        self.observer.passed(request)

    def cancel(self, queued: QueuedRequest, outcome: Outcome) -> None:
        """Remove a request from its queue without a response: its client is gone."""
        if queued.is_waiting and self.control is not None:
            self.control.ledger.leave(queued, outcome)
            self.wake()  # the next request may fit

    def ended(
        self,
        queued: QueuedRequest | None,
        in_flight: InFlight | None = None,
        cause: str = "",
        usage: Usage | None = None,
    ) -> None:
        """Note the end of a request that was sent to an endpoint.

        Args:
            queued: The argument of ``Candidate.dispatch``; None if it was sent without waiting.
            in_flight: The result of ``evictions.keep``.
            cause: How it ended; used only if another worker owns the queues.
            usage: The tokens of its response, used likewise; None if unknown.
        """
        del cause, usage  # only for a queue owner in another worker
        if in_flight is not None:
            self.evictions.ended(in_flight)
        if (control := self.control) is None:
            return
        if queued is not None and queued.node is not None:
            queued.queue.running -= 1
            control.ledger.forget(queued)
        if control.ledger.bands.waiting:
            self.wake()

    def moved(self, queued: QueuedRequest, endpoint: Endpoint) -> None:
        """Note that a request is served by an endpoint other than the chosen one."""
        if self.control is not None:
            self.control.sessions.moved(queued, endpoint)

    def expired(self, queued: QueuedRequest) -> None:
        """End a request that has waited too long."""
        if (control := self.control) is None:
            return
        empty = control.ledger.timeouts.pool_is_empty
        outcome = Outcome.EVICTED_NO_ENDPOINTS if empty else Outcome.EVICTED_TTL
        waited = self.now() - queued.enqueued_at
        why = f"it has waited for {waited:.3f} s in flow control"
        if reasons := [self.why_empty()] if empty else control.reasons(queued):
            why += f": {'; '.join(reasons[:3])}"
        control.ledger.leave(queued, outcome)
        queued.candidate.turn_away(outcome, why, pool_is_empty=empty)
        self.wake()

    def why_empty(self) -> str:
        """Return why the pool is empty."""
        return self._why_none_serves() or "the pool has no endpoint"

    # --- events -----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Open a session in the next turn of the event loop if any request waits."""
        self._is_news = True
        self._open_soon()

    def _open_soon(self) -> None:
        if not self._is_due and self.waiting:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """Note a change of the pool."""
        self.pool_changed()

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """Note a change of the pool."""
        self.pool_changed()

    def pool_changed(self) -> None:
        """Note a change of the endpoints that take requests."""
        if self.control is not None and self.waiting:
            now = self.now()
            self.control.ledger.note_pool(now)
            self.control.ledger.parking.requeue_all(now)
            self.wake()

    def _run(self) -> None:
        self._is_due = False
        control = self.control
        if control is None or not control.ledger.bands.waiting:
            return
        now = self.now()
        control.ledger.note_pool(now)
        is_news, self._is_news = self._is_news, False
        control.sessions.run(now, is_news=is_news)
        seconds = control.ledger.parking.seconds_short
        if control.capacity.is_held_back:
            seconds = _RETRY_SECONDS
        if seconds is not None and self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(seconds, self._run_again)

    def _run_again(self) -> None:
        self._retry = None
        self._open_soon()


class WakeOnPage(NullScrapeObserver):
    """Wakes flow control after each page, because capacity may be free."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def page_scraped(self, source: Plugin, endpoint: Endpoint, seconds: float) -> None:
        self._wake()

"""How sessions dispatch: one request after the other, each to where the scheduler says."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import cast

from epp.flow_control.dispatch.dispatch_order import line_of
from epp.flow_control.dispatch.request_placement import RequestSession
from epp.flow_control.observer import FlowObserver
from epp.flow_control.pressure.capacity import Room
from epp.flow_control.pressure.eviction import Evictions
from epp.flow_control.queues import Outcome, QueuedRequest
from epp.flow_control.queues.bands import PolicyBand
from epp.flow_control.queues.ledger import Ledger
from epp.flow_control.sessions import Action, Binder, Binding, CommitError, Eviction, Session
from epp.flow_control.sessions.placing import place

_MOST_PER_SESSION = 64
"""Dispatches after which a session ends and another one goes on in the next turn of the loop: it
holds up everything else for 5 ms with ten endpoints and the default profile, as 256 did for 20."""
_MOST_REASONS = 8
"""What is kept for each request that fits nowhere."""


class Dispatching(Binder):
    """Places requests, and carries out what statements commit to."""

    def __init__(
        self,
        ledger: Ledger,
        room: Room,
        evictions: Evictions,
        observer: FlowObserver,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._bands = ledger.bands
        self._parking = ledger.parking
        self._room = room
        self._evictions = evictions
        self._observer = observer
        self._clock = clock
        self.keeps_all = False
        """Whether sessions are to know of what is in flight."""
        self.first: PolicyBand | None = None
        """The band that is known to be next as a session opens; a third of all time went into
        asking for it twice."""

    # --- what waits ---------------------------------------------------------------------------

    def dispatch_waiting(self, session: RequestSession) -> bool:
        """Dispatch what there is room for, in order; return whether the session ends too early."""
        line = line_of(session)
        now = self._clock()
        left = _MOST_PER_SESSION
        band, self.first = self.first or self._room.next_band(), None
        while band is not None:
            queued = line.first(band)
            if queued is None:  # what is ready has been held back since
                break
            flow = queued.queue
            if why := band.refusal(queued.request, now):
                band.hold(flow, why)
            elif queued.tries and not self._parking.has_time:
                self._park(session, band, queued, now, is_tried=False)
            else:
                try:
                    left -= self._try(session, band, queued, now)
                except Exception as error:  # it ends the request, and not the session
                    left -= 1
                    self._give_up(session, queued, error)
            line.changed(flow)
            band = self._room.next_band() if left else None
        line.close()
        return not left

    def _try(
        self, session: RequestSession, band: PolicyBand, queued: QueuedRequest, now: float
    ) -> int:
        """Dispatch a request if there is a place for it; return whether it waits no more."""
        flow = queued.queue
        flow.take(queued)
        statement = session.statement()
        began = perf_counter()
        if place(session, statement, queued):
            self._ledger.leave(queued, Outcome.DISPATCHED)
            self._bands.went(band)
            self._commit(queued, statement.commit)
            band.dispatched(queued, now)  # after the hooks, by which policies count what goes
            return 1
        statement.discard()
        if session.failure is not None:
            self._ledger.leave(queued, Outcome.DISPATCHED)
            self._ledger.forget(queued)
            queued.candidate.fail(session.failure)
        else:
            self._parking.took(perf_counter() - began)
            self._park(session, band, queued, now, is_tried=True)
        if flow.has_head:
            band.rank(flow, now)
        return int(session.failure is not None)

    def _give_up(self, session: RequestSession, queued: QueuedRequest, error: Exception) -> None:
        """End a request that could not even be tried; the others go on."""
        session.discard_open()
        flow = queued.queue
        if queued.is_waiting:
            self._ledger.leave(queued, Outcome.DISPATCHED)
            self._ledger.forget(queued)
        queued.candidate.fail(error)
        if flow.has_head and isinstance(flow.band, PolicyBand):
            flow.band.rank(flow, self._clock())

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

    # --- what need not wait -------------------------------------------------------------------

    def dispatch_alone(self, session: RequestSession, queued: QueuedRequest) -> bool:
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
        self._ledger.forget(queued)
        self._observer.passed(queued.request)
        queued.candidate.fail(session.failure)
        return True

    # --- statements ---------------------------------------------------------------------------

    def _commit(self, queued: QueuedRequest, commit: Callable[[], None]) -> None:
        flow = queued.queue
        flow.running += 1  # before, for it may end while it is answered
        try:
            commit()
        except CommitError as error:
            flow.running -= 1
            self._ledger.forget(queued)
            cause = error.__cause__
            queued.candidate.fail(cause if isinstance(cause, Exception) else error)
        else:
            if queued.node is None:
                return  # it has ended already, while it was answered
            if not self.keeps_all:  # nobody asks for what is in flight
                flow.running -= 1
                self._ledger.forget(queued)

    def commit(self, evictions: Sequence[Eviction], bindings: Sequence[Binding]) -> None:
        """Evict requests, and send others to their endpoints: what statements commit to.

        Raises:
            ValueError: A request may not be evicted; nothing was done.
        """
        if evictions:
            jobs = [cast("QueuedRequest", each.task.job) for each in evictions]
            victims = self._evictions.of(jobs)
            for queued in jobs:
                queued.queue.running -= 1
                self._ledger.forget(queued)
            self._evictions.revoke(victims)
        for binding in bindings:
            queued = cast("QueuedRequest", binding.task.job)
            result, queued.result = queued.result, None
            assert result is not None  # noqa: S101 - a node was chosen by it
            queued.candidate.dispatch(queued, result, binding.attributes)


class DispatchWaiting(Action):
    """Dispatches what waits; one that ends too early has another session opened."""

    name = "allocate"

    def __init__(self, dispatching: Dispatching, wake: Callable[[], None]) -> None:
        self._dispatching = dispatching
        self._wake = wake

    def execute(self, ssn: Session) -> None:
        assert isinstance(ssn, RequestSession)  # noqa: S101 - flow control makes no other
        if self._dispatching.dispatch_waiting(ssn):
            self._wake()


class DispatchAlone(Action):
    """Dispatches one request that does not wait yet."""

    name = "allocate"

    def __init__(self, dispatching: Dispatching, queued: QueuedRequest) -> None:
        self._dispatching = dispatching
        self._queued = queued
        self.is_settled = False

    def execute(self, ssn: Session) -> None:
        assert isinstance(ssn, RequestSession)  # noqa: S101 - flow control makes no other
        self.is_settled = self._dispatching.dispatch_alone(ssn, self._queued)


def _told(session: RequestSession, queued: QueuedRequest) -> Sequence[str]:
    """Return why a request has no place; a few reasons, for there may be one per endpoint."""
    reasons = session.explanations.of(queued)
    more = len(reasons) - _MOST_REASONS
    return reasons if more <= 0 else [*reasons[:_MOST_REASONS], f"and {more} more reasons"]

"""Flow control as one configuration defines it."""

from collections.abc import Sequence
from time import perf_counter
from typing import Final

from epp.flow_control.dispatch.dispatch_sessions import DispatchSessions
from epp.flow_control.dispatch.request_binder import FlowParts
from epp.flow_control.flows import Candidate, Outcome, QueuedRequest
from epp.flow_control.interfaces import FlowHost
from epp.flow_control.pressure.capacity import Capacity
from epp.flow_control.pressure.eviction import Evictions
from epp.flow_control.queues.ledger import Ledger
from epp.flow_control.queues.limits import displacement
from epp.flow_control.queues.timeouts import ttl_of
from epp.flow_control.settings import FlowSettings
from epp.observability import DebugLine
from epp.scheduling import LLMRequest

_enqueued: Final = DebugLine("request queued", logger=__name__)


class FlowControl:
    """The settings, the policies and the session plugins of one configuration.

    It is immutable: a reload creates another one, which takes over the ledger with all requests
    that wait or are in flight.
    """

    def __init__(
        self, settings: FlowSettings, host: FlowHost, evictions: Evictions, ledger: Ledger | None
    ) -> None:
        """Configure the session plugins; nothing else changes before :meth:`take_over`.

        Args:
            settings: The settings.
            host: The controller.
            evictions: The requests that can be evicted.
            ledger: The requests of the previous configuration; None for none.

        Raises:
            PluginError: A session plugin cannot be configured.
            RegistrationError: Two session plugins register a function that only one may provide.
        """
        self.settings: Final = settings
        self.ledger: Final = ledger or Ledger(host, settings)
        self.capacity: Final = Capacity(settings, host, self.ledger.bands)
        parts = FlowParts(host, self.ledger, self.capacity, evictions)
        self.sessions: Final = DispatchSessions(settings, parts)
        self.sees_all: Final = self.sessions.sees_all
        """Whether :meth:`submit` must receive every request, even those that need not wait."""
        self._host: Final = host
        self._evictions: Final = evictions

    def take_over(self) -> None:
        """Replace the previous configuration; waiting requests are reordered."""
        self.sessions.take_over()
        self._evictions.use(self.settings.eviction)
        self.ledger.use(self.settings, self._host.now())

    def lets_pass(self, request: LLMRequest) -> bool:
        """Return whether ``request`` need not wait: none waits, and there is capacity for it."""
        ledger = self.ledger
        if ledger.bands.waiting:
            return False
        pool = self._host.pool()
        if not pool:
            return False
        now = self._host.now()
        band = ledger.band(request.priority, now)
        return self.capacity.is_left_for(band, pool) and not band.refusal(request, now)

    def submit(
        self, candidate: Candidate, ttl_seconds: float | None = None
    ) -> QueuedRequest | None:
        """Dispatch, enqueue or refuse a request.

        Args:
            candidate: The request; its outcome may be reported to it before this returns.
            ttl_seconds: The request's own TTL; None if it has none.

        Returns:
            The waiting request; None if it does not wait.
        """
        queued = self.made(candidate, ttl_seconds)
        return queued if self.enter(queued) else None

    def made(
        self, candidate: Candidate, ttl_seconds: float | None, *, enqueued_at: float | None = None
    ) -> QueuedRequest:
        """Create a request that belongs to a flow but has not entered its queue.

        Args:
            candidate: See :meth:`submit`.
            ttl_seconds: See :meth:`submit`.
            enqueued_at: When it began to wait, in seconds of the event loop's clock; None for now.
        """
        ledger, now = self.ledger, self._host.now()
        request = candidate.request
        ledger.note_pool(now)
        band = ledger.band(request.priority, now)
        return QueuedRequest(
            candidate,
            flow=ledger.flow(band, request.fairness_id, now),
            sequence=next(ledger.sequence),
            enqueued_at=now if enqueued_at is None else enqueued_at,
            ttl_seconds=ttl_of(band.settings, ttl_seconds),
            has_own_ttl=ttl_seconds is not None,
        )

    def enter(self, queued: QueuedRequest) -> bool:
        """Dispatch, enqueue or refuse a request from :meth:`made`; return whether it waits."""
        began = perf_counter()
        ledger, now, candidate = self.ledger, self._host.now(), queued.candidate
        request, band = queued.request, ledger.bands[queued.priority]
        if self.sees_all and self.lets_pass(request) and self.sessions.run_alone(queued):
            return False
        is_empty = ledger.timeouts.pool_is_empty
        refused = Outcome.REJECTED_NO_ENDPOINTS if is_empty else Outcome.REJECTED_CAPACITY
        why, victims = displacement(self.settings, ledger.bands, band, queued)
        if why and not victims:
            ledger.forget(queued)
            self._host.observer.rejected(request, refused)
            candidate.turn_away(refused, why, pool_is_empty=is_empty)
            return False
        for victim in victims:
            ledger.leave(victim, refused)
        ledger.enter(band, queued, now)
        self._host.observer.enqueued(queued, perf_counter() - began)
        if _enqueued.enabled:
            _enqueued.write(_facts, queued, self.capacity.blocked)
        self._host.wake()
        for victim in victims:
            why = _why_displaced(victim, queued, now)
            victim.candidate.turn_away(refused, why, pool_is_empty=is_empty)
        return True

    def put_back(self, queued: QueuedRequest, seconds: float, *, is_tried: bool) -> None:
        """Park a request from :meth:`made` that was dispatched but for which no endpoint was found.

        It returns to its old place; limits do not apply, because it was within them.

        Args:
            queued: The request, with the reasons.
            seconds: CPU time of the attempt, charged to the retry budget.
            is_tried: Whether no event has occurred since that attempt.
        """
        ledger, now = self.ledger, self._host.now()
        ledger.enter(ledger.bands[queued.priority], queued, now, is_ready=False)
        ledger.parking.took(seconds)
        ledger.parking.enter(queued, is_tried=is_tried)
        self._host.observer.enqueued(queued, 0.0)

    def reasons(self, queued: QueuedRequest) -> Sequence[str]:
        """Return why a request waits, according to the last sessions."""
        if not queued.is_ready:
            return queued.reasons
        held = self.ledger.bands[queued.priority].held.get(queued.queue)
        if held:
            return (held,)
        blocked = self.capacity.blocked
        return (blocked, *queued.not_evicted_for) if blocked else ()


def _facts(queued: QueuedRequest, why: str) -> dict[str, object]:
    return {
        "request_id": queued.request.request_id,
        "fairness_id": queued.request.fairness_id,
        "priority": queued.priority,
        "ttl_seconds": queued.ttl_seconds,
        "why": why,
    }


def _why_displaced(victim: QueuedRequest, queued: QueuedRequest, now: float) -> str:
    """Return why ``victim`` was displaced by ``queued``."""
    of = "of a higher priority"
    if queued.priority == victim.priority:
        of = "of a flow that uses less of it"
    return (
        f"a limit on waiting requests was reached; after {now - victim.enqueued_at:.3f} s this"
        f" request was displaced by one {of}"
    )

"""The requests that ``allocate`` tries in a live session: the queued ones, or a single one."""

from collections.abc import Sequence
from typing import Final

from epp.flow_control.dispatch.band_heads import heads_of
from epp.flow_control.dispatch.request_binder import FlowParts, RequestBinder
from epp.flow_control.dispatch.request_policy import RequestPolicy
from epp.flow_control.flows import Flow, Outcome, QueuedRequest
from epp.flow_control.queues.bands import PolicyBand
from epp.flow_control.sessions import DispatchOrder, Explanations, Job, Session, Statement
from epp.observability import DebugLine

_MAX_PER_SESSION = 64
"""Dispatches per session; the next session continues in the next turn of the event loop. With ten
endpoints and the default profile, 64 block the loop for 5 ms, 256 for 20 ms."""
_MAX_REASONS = 8
"""Reasons kept for each request that no endpoint can take."""

_parked: Final = DebugLine("request parked", logger=__name__)


class BandedOrder(DispatchOrder):
    """The heads of the priority bands, while the pool has capacity for their bands."""

    def __init__(
        self,
        session: Session,
        parts: FlowParts,
        binder: RequestBinder,
        policy: RequestPolicy,
        first: PolicyBand | None,
    ) -> None:
        """Begin with the band that is next.

        Args:
            session: The session.
            parts: The parts of flow control.
            binder: Sends requests.
            policy: The policy of the session.
            first: The next band, if known; finding it twice took a third of all time.
        """
        self._session = session
        self._binder = binder
        self._policy = policy
        self._ledger = parts.ledger
        self._parking = parts.ledger.parking
        self._capacity = parts.capacity
        self._host = parts.host
        self._heads = heads_of(session)
        self._now = parts.host.now()
        self._left = _MAX_PER_SESSION
        self._band = first or parts.capacity.next_band()
        """The band of the request that is being tried, or of the next one."""
        self._tried: QueuedRequest | None = None
        """The request that is being tried."""
        self._began = 0.0
        """CPU time when that attempt began."""

    def next_job(self) -> QueuedRequest | None:
        if (tried := self._tried) is not None:
            self._tried = None
            self._next_band(tried.queue)
        while (band := self._band) is not None:
            queued = self._heads.first(band)
            if queued is None:  # the fairness policy holds back all flows that were ready
                return None
            flow = queued.queue
            if why := band.refusal(queued.request, self._now):
                band.hold(flow, why)
            elif queued.tries and not self._parking.has_time:
                flow.take(queued)
                self._park(queued, is_tried=False)
            else:
                flow.take(queued)
                self._tried = queued
                self._began = self._host.cpu_time()
                return queued
            self._next_band(flow)
        return None

    def _next_band(self, changed: Flow) -> None:
        self._heads.changed(changed)
        self._band = self._capacity.next_band() if self._left else None

    def dispatch(self, job: Job, statement: Statement) -> None:
        queued, band = self._tried, self._band
        assert queued is job and band is not None  # noqa: S101, PT018 - it is being tried
        self._left -= 1
        self._ledger.leave(queued, Outcome.DISPATCHED)
        self._ledger.bands.went(band)
        self._binder.send(queued, statement)
        band.dispatched(queued, self._now)  # after the hooks, from which policies count requests

    def skip(self, job: Job) -> None:
        assert isinstance(job, QueuedRequest)  # noqa: S101 - it is being tried
        if (failure := self._policy.pop_failure()) is not None:
            self._end(job, failure)
        else:
            self._parking.took(self._host.cpu_time() - self._began)
            self._park(job, is_tried=True)

    def fail(self, job: Job, error: Exception) -> None:
        """End the request; the session goes on."""
        self._session.discard_open()
        assert isinstance(job, QueuedRequest)  # noqa: S101 - it is being tried
        self._end(job, error)

    def _end(self, queued: QueuedRequest, error: Exception) -> None:
        self._left -= 1
        if queued.is_waiting:
            self._ledger.leave(queued, Outcome.DISPATCHED)
            self._ledger.forget(queued)
        queued.candidate.fail(error)
        self._rank(queued.queue)

    def _park(self, queued: QueuedRequest, *, is_tried: bool) -> None:
        queued.reasons = reasons_in(self._session.explanations, queued) or queued.reasons
        queued.tries += is_tried
        if _parked.enabled and is_tried:
            _parked.write(_facts, queued)
        self._parking.enter(queued, is_tried=is_tried)
        self._rank(queued.queue)

    def _rank(self, flow: Flow) -> None:
        if flow.has_head:
            self._ledger.bands[flow.band.priority].rank(flow, self._now)

    def close(self) -> None:
        self._heads.close()
        if not self._left:
            self._host.wake()


class SingleOrder(DispatchOrder):
    """One arriving request that need not wait, for plugins that see all requests.

    Afterwards it :attr:`is_settled` if it was sent or has failed; otherwise it has to wait.
    """

    def __init__(
        self,
        queued: QueuedRequest,
        parts: FlowParts,
        binder: RequestBinder,
        policy: RequestPolicy,
    ) -> None:
        self._queued = queued
        self._parts = parts
        self._binder = binder
        self._policy = policy
        self._is_tried = False
        self.is_settled = False

    def next_job(self) -> QueuedRequest | None:
        is_tried, self._is_tried = self._is_tried, True
        return None if is_tried else self._queued

    def dispatch(self, job: Job, statement: Statement) -> None:
        self.is_settled = True
        self._parts.host.observer.passed(self._queued.request)
        self._binder.send(self._queued, statement)

    def skip(self, job: Job) -> None:
        queued = self._queued
        if (failure := self._policy.pop_failure()) is None:
            return
        self.is_settled = True
        self._parts.ledger.forget(queued)
        self._parts.host.observer.passed(queued.request)
        queued.candidate.fail(failure)

    def fail(self, job: Job, error: Exception) -> None:
        raise error

    def close(self) -> None:
        """Do nothing: the order is not part of a reference cycle."""


def reasons_in(explanations: Explanations, queued: QueuedRequest) -> Sequence[str]:
    """Return why no endpoint can take a request; only the first few reasons are kept."""
    reasons = explanations.of(queued)
    more = len(reasons) - _MAX_REASONS
    return reasons if more <= 0 else [*reasons[:_MAX_REASONS], f"and {more} more reasons"]


def _facts(queued: QueuedRequest) -> dict[str, object]:
    return {
        "request_id": queued.request.request_id,
        "priority": queued.priority,
        "tries": queued.tries,
        "reasons": list(queued.reasons),
    }

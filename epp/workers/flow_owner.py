"""The worker that owns the queues: requests of the others wait in them like its own.

A request of another worker is a :class:`~epp.flow_control.Candidate` whose dispatch is a grant: the
other worker then chooses the endpoint, and reports. Until then the request counts as in flight
here, so that the same capacity is not granted twice. If that worker finds no endpoint, the request
is parked in its old place. When a worker ends, its requests are dropped.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import structlog

from epp.flow_control import FlowControl, FlowObserver, Outcome, QueuedRequest
from epp.request_control.plugins import EndCause
from epp.scheduling import Endpoint
from epp.workers.flow_accounts import FlowAccounts, Grant
from epp.workers.flow_messages import GRANTED, REFUSED, WAITS, Asked, Declined, FlowReport
from epp.workers.links import Links
from epp.workers.remote_request import RemoteRequest, least_loaded

_log = structlog.get_logger(__name__)


class OwnerHost(Protocol):
    """The part of the flow controller that the owner uses."""

    active: FlowControl | None
    control: FlowControl | None
    events: int
    """Number of events that may have freed capacity."""

    @property
    def is_owner(self) -> bool:
        """Whether this worker owns the queues."""

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""

    def now(self) -> float:
        """Return the time of the event loop, in seconds."""

    def pool(self) -> Sequence[Endpoint]:
        """Return the current snapshot of the endpoints."""

    def wake(self) -> None:
        """Open a session after an event."""

    def continue_soon(self) -> None:
        """Open a session without an event."""

    def cancel(self, queued: QueuedRequest, outcome: Outcome) -> None:
        """Remove a request from its queue."""


class FlowOwner:
    """The requests of all other workers, while this one owns the queues.

    Args:
        host: The flow controller.
        links: The connections to the other workers.
        accounts: Counts granted requests.
        observer: Receives the events of requests.
    """

    def __init__(
        self, host: OwnerHost, links: Links, accounts: FlowAccounts, observer: FlowObserver
    ) -> None:
        self._host = host
        self._links = links
        self._accounts = accounts
        self._observer = observer
        self._requests: dict[int, dict[int, RemoteRequest]] = {}
        """Requests that wait or were granted, by worker and number."""
        self._sent: dict[int, dict[int, Grant]] = {}
        """Requests that were sent and have not ended, if policies count them."""
        self._reporting: set[int] = set()
        """Workers that know that requests wait."""

    @property
    def granted(self) -> int:
        """Number of granted requests that have not been reported yet."""
        return sum(each.is_granted for known in self._requests.values() for each in known.values())

    # --- messages ---------------------------------------------------------------------------------

    def asked(self, worker: int, asked: Asked) -> None:
        """Accept a request of another worker; one that is already known is ignored."""
        known = self._requests.setdefault(worker, {})
        if not self._host.is_owner or asked.number in known:
            return
        remote = known[asked.number] = RemoteRequest(self, worker, asked)
        control = self._host.active
        if control is None:  # a reload has turned flow control off here, or not on yet
            self.grant(remote, None, has_waited=False)
        elif control.lets_pass(remote.request):
            self.grant(remote, least_loaded(self._host.pool()), has_waited=False)
        else:
            remote.queued = control.made(remote, asked.ttl_seconds, enqueued_at=asked.enqueued_at)
            control.enter(remote.queued)

    def cancelled(self, worker: int, message: tuple[int, Outcome]) -> None:
        """Forget a request whose client is gone."""
        number, outcome = message
        remote = self._requests.get(worker, {}).pop(number, None)
        if remote is not None:
            self._drop(remote, Outcome(outcome))
            self._host.wake()

    def reported(self, worker: int, name: str, report: FlowReport) -> None:
        """Process another worker's report on granted requests.

        Args:
            worker: Number of the worker.
            name: Its name among replicas.
            report: The report.
        """
        self._accounts.receive(name, report.loads)
        known = self._requests.get(worker, {})
        for number in report.settled:
            remote = known.pop(number, None)
            if remote is not None and remote.is_granted:
                self._sent_by(remote)
        for ended in report.ended:
            grant = self._sent.get(worker, {}).pop(ended.number, None)
            if grant is not None:
                self._accounts.finish(grant, EndCause(ended.cause), ended.usage)
        for declined in report.declined:
            remote = known.get(declined.number)
            if remote is not None and remote.is_granted:
                self._put_back(remote, declined)
        if not self._host.waiting and worker in self._reporting:
            self._reporting.discard(worker)
            self._links.send(worker, WAITS, False)
        if report.has_news:
            self._host.wake()
        else:
            self._host.continue_soon()

    def lost(self, worker: int) -> None:
        """Forget all requests of a worker; if it still runs, it asks again."""
        self._reporting.discard(worker)
        for remote in self._requests.pop(worker, {}).values():
            self._drop(remote, Outcome.EVICTED_OTHER)
        for grant in self._sent.pop(worker, {}).values():
            self._accounts.finish(grant, EndCause.ERROR)
        self._host.wake()

    def plugins_changed(self) -> None:
        """Forget sent requests if no policy counts them any more: their ends are not reported."""
        if not self._accounts.has_policies:
            self._sent.clear()

    def has_waiting(self, others: Iterable[int]) -> None:
        """Tell other workers to report each event, because a request waits."""
        for worker in others:
            if worker not in self._reporting and self._links.send(worker, WAITS, True):
                self._reporting.add(worker)

    # --- replies ----------------------------------------------------------------------------------

    def grant(self, remote: RemoteRequest, endpoint: Endpoint | None, *, has_waited: bool) -> None:
        """Allow a worker to send its request.

        Args:
            remote: The request.
            endpoint: The endpoint where it counts until its worker reports; None for none.
            has_waited: Whether it was in a queue.
        """
        now = remote.granted_at = self._host.now()
        remote.is_granted = True
        remote.granted_after = self._host.events
        if endpoint is not None:
            remote.grant = Grant(remote.request, endpoint)
            self._accounts.begin(remote.grant, now)
        queued = remote.queued if has_waited else None
        reasons = None if queued is None else tuple(queued.reasons)
        self._links.send(remote.worker, GRANTED, (remote.number, reasons))

    def refuse(
        self, remote: RemoteRequest, outcome: Outcome, why: str, *, pool_is_empty: bool
    ) -> None:
        """End a request."""
        self._requests.get(remote.worker, {}).pop(remote.number, None)
        message = remote.number, outcome.value, why, pool_is_empty
        self._links.send(remote.worker, REFUSED, message)

    def failed(self, remote: RemoteRequest, error: Exception) -> None:
        """End a request whose grant has failed, which is a bug."""
        _log.error("request of a worker failed", worker=remote.worker, exc_info=error)
        self._end_grant(remote)
        remote.granted_at = self._host.now()
        self._count(remote, Outcome.DISPATCHED)
        why = f"{type(error).__name__}: {error}"
        self.refuse(remote, Outcome.REJECTED_OTHER, why, pool_is_empty=False)

    def _count(self, remote: RemoteRequest, outcome: Outcome) -> None:
        """Count a granted request; only after its report, because it may be declined."""
        if remote.counted is not None:
            waited = remote.granted_at - remote.enqueued_at
            self._observer.left(remote.counted, outcome, waited)
        elif outcome is Outcome.DISPATCHED:
            self._observer.passed(remote.request)

    def _put_back(self, remote: RemoteRequest, declined: Declined) -> None:
        control = self._host.control
        self._end_grant(remote)
        if control is None:  # there has never been a queue here
            why = declined.why
            self.refuse(remote, Outcome.REJECTED_CAPACITY, why, pool_is_empty=False)
            return
        before = remote.queued
        queued = control.made(remote, remote.ttl_seconds, enqueued_at=remote.enqueued_at)
        queued.reasons = (declined.why,)
        queued.tries = 1 if before is None else before.tries + 1
        remote.queued = queued
        is_tried = self._host.events == remote.granted_after
        control.put_back(queued, declined.seconds, is_tried=is_tried)
        self._host.continue_soon()

    def _drop(self, remote: RemoteRequest, outcome: Outcome) -> None:
        if remote.is_granted:
            self._end_grant(remote)
            self._count(remote, outcome)
        elif remote.queued is not None:
            self._host.cancel(remote.queued, outcome)

    def _sent_by(self, remote: RemoteRequest) -> None:
        grant = self._settle(remote)
        if grant is not None and self._accounts.has_policies:
            self._sent.setdefault(remote.worker, {})[remote.number] = grant
        self._count(remote, Outcome.DISPATCHED)

    def _end_grant(self, remote: RemoteRequest) -> None:
        """Undo the grant of a request that was not sent."""
        grant = self._settle(remote)
        if grant is not None:
            self._accounts.finish(grant, EndCause.REFUSED)

    def _settle(self, remote: RemoteRequest) -> Grant | None:
        grant, remote.grant = remote.grant, None
        remote.is_granted = False
        if grant is not None:
            self._accounts.settle(grant, self._host.now())
        return grant

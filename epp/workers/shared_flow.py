"""Flow control of several workers: the one that leads owns the queues, the others ask it.

Every worker has the flow control of the configuration. That of the owner queues the requests of
all, so limits, fair shares and the order apply to the whole pool. When the owner ends, the
supervisor appoints another worker: it queues its own requests that were waiting, and the others ask
it for theirs.
"""

from collections.abc import Callable, Iterable, Sequence

from epp.flow_control import (
    Candidate,
    FlowControl,
    FlowController,
    FlowObserver,
    FlowSettings,
    InFlight,
    Outcome,
    QueuedRequest,
    RevocationObserver,
)
from epp.flow_control.interfaces import NoRevocations
from epp.parsing.plugins import Usage
from epp.scheduling import Endpoint, GuardRails, LLMRequest, Plugin
from epp.workers.flow_accounts import FlowAccounts
from epp.workers.flow_messages import (
    ASKED,
    CANCELLED,
    GRANTED,
    LEADS,
    REFUSED,
    REPORTED,
    WAITS,
    FlowReport,
)
from epp.workers.flow_owner import FlowOwner
from epp.workers.flow_requester import FlowRequester
from epp.workers.leadership import Leadership
from epp.workers.links import Links
from epp.workers.place import Place
from epp.workers.remote_request import CountedOnce
from epp.workers.shared_evictions import SharedEvictions
from epp.workers.suitability import check_flow_control


class SharedFlowController(FlowController):
    """The flow controller of a worker; its other arguments are those of FlowController.

    Args:
        links: The connections to the other workers.
        leadership: Whether this worker owns the queues.
        place: The worker's place.
    """

    def __init__(
        self,
        *,
        links: Links,
        leadership: Leadership,
        place: Place,
        pool: Callable[[], Sequence[Endpoint]],
        clock: Callable[[], float],
        observer: FlowObserver,
        revocations: RevocationObserver | None = None,
        why_none_serves: Callable[[], str] = lambda: "",
    ) -> None:
        super().__init__(
            pool=pool,
            clock=clock,
            observer=CountedOnce(observer, self._began_to_wait),
            why_none_serves=why_none_serves,
        )
        self.events = 0
        """Number of events that may have freed capacity."""
        self._links = links
        self._leadership = leadership
        self._place = place
        self.accounts = FlowAccounts()
        self._owner = FlowOwner(self, links, self.accounts, observer)
        self._requester = FlowRequester(
            self,
            links,
            self.accounts,
            lambda queued: observer.rejected(queued.request, Outcome.REJECTED_CAPACITY),
        )
        self._shared = SharedEvictions(
            self, revocations or NoRevocations(), links, lambda: self._requester.owner
        )
        self.evictions = self._shared
        self._listen()

    def _listen(self) -> None:
        links = self._links
        links.receive(LEADS, lambda sender, _: self._led_by(sender))
        links.receive(ASKED, self._owner.asked)
        links.receive(CANCELLED, self._owner.cancelled)
        links.receive(REPORTED, self._reported)
        links.receive(WAITS, self._owner_waits)
        links.receive(GRANTED, self._requester.granted)
        links.receive(REFUSED, self._requester.refused)
        links.when_connected(self._connected)
        links.when_lost(self._lost)
        self._leadership.when_taken(self._lead)

    def use_plugins(self, plugins: Iterable[Plugin], guards: GuardRails) -> None:
        """Use the plugins of a configuration, some of which count requests in flight."""
        self.accounts.use(plugins, guards)
        self._owner.plugins_changed()

    def prepare(self, settings: FlowSettings | None) -> Callable[[], None]:
        if settings is not None:
            check_flow_control(settings, self._place.count)
        return super().prepare(settings)

    # --- which worker -----------------------------------------------------------------------------

    @property
    def is_owner(self) -> bool:
        """Whether this worker owns the queues."""
        return self._leadership.is_ours

    def _lead(self) -> None:
        """Take over the queues, beginning with the requests that wait here."""
        for queued in self._requester.take_all():
            control = self.active or self.control
            assert control is not None  # noqa: S101 - it has made the request
            queued.sequence = next(control.ledger.sequence)
            control.enter(queued)
        self._links.post(LEADS, None)

    def _led_by(self, worker: int) -> None:
        if not self.is_owner:
            self._requester.led_by(worker)
            self._shared.send_all()

    def _connected(self, worker: int) -> None:
        if self.is_owner:
            self._links.send(worker, LEADS, None)
            if self.waiting:
                self._owner.has_waiting((worker,))
        elif worker == self._requester.owner:
            self._led_by(worker)

    def _lost(self, worker: int) -> None:
        self._shared.lost(worker)
        self.accounts.left(self._place.replica_name(worker))
        if self.is_owner:
            self._owner.lost(worker)
        else:
            self._requester.lost(worker)

    def _reported(self, worker: int, report: FlowReport) -> None:
        self._owner.reported(worker, self._place.replica_name(worker), report)

    def _owner_waits(self, worker: int, waits: bool) -> None:
        if worker == self._requester.owner:
            self._requester.owner_waits = waits
            if waits:
                self._requester.report_news()

    def _began_to_wait(self) -> None:
        place = self._place
        self._owner.has_waiting(each for each in range(place.count) if each != place.index)

    # --- requests ---------------------------------------------------------------------------------

    @property
    def shown(self) -> FlowControl | None:
        return super().shown if self.is_owner else None

    @property
    def waiting(self) -> int:
        return super().waiting + self._requester.waiting

    def lets_pass(self, request: LLMRequest) -> bool:
        return self.is_owner and super().lets_pass(request)

    def submit(self, candidate: Candidate, ttl_seconds: float | None) -> QueuedRequest | None:
        if self.is_owner:
            return super().submit(candidate, ttl_seconds)
        assert self.active is not None  # noqa: S101 - see FlowController
        return self._requester.submit(self.active, candidate, ttl_seconds)

    def cancel(self, queued: QueuedRequest, outcome: Outcome) -> None:
        if not self._requester.cancel(queued, outcome):
            super().cancel(queued, outcome)

    def ended(
        self,
        queued: QueuedRequest | None,
        in_flight: InFlight | None = None,
        cause: str = "",
        usage: Usage | None = None,
    ) -> None:
        super().ended(queued, in_flight)
        if not self.is_owner:
            if queued is not None:
                self._requester.ended(queued, cause, usage)
            self.wake()

    # --- events -----------------------------------------------------------------------------------

    def wake(self) -> None:
        self.events += 1
        if self.is_owner:
            super().wake()
        elif self._requester.owner_waits:
            self._requester.report_news()

    def look(self) -> None:
        """Open a session if requests wait: counts of other workers may have changed."""
        if self.is_owner and self.waiting:
            self.wake()

    def continue_soon(self) -> None:
        """Open a session in the next turn of the event loop, without an event."""
        self._open_soon()

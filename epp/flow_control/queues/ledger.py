"""Who waits and who is in flight, kept alike in bands, in the cluster of sessions and in timers."""

from collections.abc import Callable, Sequence
from typing import Final, cast

from epp.flow_control.observer import FlowObserver
from epp.flow_control.queues import Flow, Outcome, QueuedRequest
from epp.flow_control.queues.bands import Bands, PolicyBand
from epp.flow_control.queues.idle_flows import IdleFlows
from epp.flow_control.queues.parking import Parking
from epp.flow_control.queues.timeouts import WaitingTimes
from epp.flow_control.sessions import Cluster, Dispatcher
from epp.flow_control.settings import FlowSettings
from epp.scheduling import Endpoint

MOST_BANDS: Final = 64
"""Every dispatch and every look at the pool visits all bands; 64 of them take 20 us more."""


class Ledger:
    """Everything that flow control knows of requests; each comes, may wait, leaves and ends."""

    def __init__(
        self,
        *,
        pool: Callable[[], Sequence[Endpoint]],
        clock: Callable[[], float],
        observer: FlowObserver,
        expired: Callable[[QueuedRequest], None],
    ) -> None:
        """Begin with nothing.

        Args:
            pool: Returns the present snapshot of endpoints.
            clock: Monotonic seconds.
            observer: Is told of who waits and of who leaves.
            expired: Called with each request that has waited too long.
        """
        self._clock = clock
        self._observer = observer
        self.bands = Bands()
        self.cluster = Cluster()
        self.parking = Parking(self.bands)
        self.times = WaitingTimes(pool, clock, expired)
        self._idle = IdleFlows(self.bands, self.cluster, clock, observer.flow_removed)
        self.dispatcher: Dispatcher | None = None
        """Is told of what ends; None until it is configured."""
        self._settings: FlowSettings | None = None

    def use(self, settings: FlowSettings, now: float) -> None:
        """Go over to other settings; what waits goes on waiting, and is put in order anew."""
        self._settings = settings
        self.times.use(settings)
        self.parking.leave_all(now)
        for priority in settings.bands:
            if priority not in self.bands:
                self._make_band(priority, now)
        for band in self.bands.in_order:
            band.use(settings.of(band.priority), now)

    @property
    def waiting(self) -> Sequence[QueuedRequest]:
        """All that wait, in the order in which they came."""
        jobs = self.cluster.jobs.values()
        return [job for job in cast("Sequence[QueuedRequest]", jobs) if job.is_waiting]

    def band(self, priority: int, now: float) -> PolicyBand:
        """Return the band of ``priority``, which is made if there is none.

        When there are :data:`MOST_BANDS`, none of which can be removed, return the next lower band.
        """
        bands = self.bands
        if priority in bands:
            return bands[priority]
        if len(bands.in_order) >= MOST_BANDS and not self._remove_band():
            lower = (band for band in bands.in_order if band.priority < priority)
            return next(lower, bands.in_order[-1])
        return self._make_band(priority, now)

    def _make_band(self, priority: int, now: float) -> PolicyBand:
        assert self._settings is not None  # noqa: S101 - it is on
        band = PolicyBand(priority, self._settings.of(priority), now)
        self.cluster.add_queue(band)
        self.bands.add(band)
        return band

    def _remove_band(self) -> bool:
        """Remove a band without flows, if there is one; return whether there was."""
        assert self._settings is not None  # noqa: S101 - it is on
        for band in reversed(self.bands.in_order):
            if not band.flows and band.priority not in self._settings.bands:
                self.bands.remove(band)
                self.cluster.remove_queue(band)
                return True
        return False

    def flow(self, band: PolicyBand, fairness_id: str, now: float) -> Flow:
        """Return the flow of a request that comes."""
        return self._idle.flow(band, fairness_id, now)

    def enter(self, band: PolicyBand, queued: QueuedRequest, now: float) -> None:
        """Let a request wait."""
        self.bands.waiting += 1
        self.bands.size_bytes += queued.size_bytes
        band.add(queued, now)
        self.cluster.add_job(queued)
        self.times.add(queued)

    def leave(self, queued: QueuedRequest, outcome: Outcome) -> None:
        """Let a request wait no more; unless it is dispatched it is forgotten."""
        now = self._clock()
        self.bands[queued.priority].remove(queued, now)
        self.bands.waiting -= 1
        self.bands.size_bytes -= queued.size_bytes
        self.parking.forget(queued)
        self.times.forget(self.bands.waiting)
        self._observer.left(queued, outcome, now - queued.enqueued_at)
        if outcome is not Outcome.DISPATCHED:
            self.forget(queued)

    def forget(self, queued: QueuedRequest) -> None:
        """Let go of a request that neither waits nor is in flight."""
        if self.dispatcher is not None:
            if queued.node is not None:
                self.dispatcher.end(queued.task)
            self.dispatcher.forget(queued)
        if self.cluster.jobs.get(queued.name) is queued:
            self.cluster.remove_job(queued)
        queued.close()
        self._idle.note(queued.queue, self._clock())

    def note_pool(self, now: float) -> None:
        """Take note of whether there are endpoints: those that wait begin their time anew."""
        if self.times.pool_has_changed(now):
            self.times.begin_anew(self.waiting)

    def line_up_all(self, now: float) -> None:
        """Let all that wait be tried again, whatever has become of their places in the line."""
        self.parking.leave_all(now)
        for queued in self.waiting:
            if not queued.is_in_line:
                self.bands[queued.priority].line_up(queued, now)

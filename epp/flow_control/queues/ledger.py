"""All requests that wait or are in flight, kept consistent in queues, cluster and timers."""

from collections.abc import Sequence
from itertools import count
from typing import Final, cast

from epp.flow_control.flows import Flow, Outcome, QueuedRequest
from epp.flow_control.interfaces import FlowHost
from epp.flow_control.queues.bands import Bands, PolicyBand
from epp.flow_control.queues.endpoint_nodes import EndpointNodes
from epp.flow_control.queues.idle_flows import IdleFlows
from epp.flow_control.queues.parking import Parking
from epp.flow_control.queues.timeouts import WaitingTimes
from epp.flow_control.sessions import Cluster, Dispatcher
from epp.flow_control.settings import FlowSettings

MAX_BANDS: Final = 64
"""Each dispatch and each measurement of the pool visits all bands; 64 of them take 20 us more."""


class Ledger:
    """The state of flow control; it survives reloads.

    A request enters, may leave its queue, and is forgotten when it has ended.

    Args:
        host: The controller.
        settings: The first settings.
    """

    def __init__(self, host: FlowHost, settings: FlowSettings) -> None:
        self._host = host
        self._settings = settings
        self.sequence = count(1)
        """Numbers the requests in the order of their arrival."""
        self.bands = Bands()
        self.cluster = Cluster()
        self.nodes = EndpointNodes(self.cluster)
        self.parking = Parking(self.bands)
        self.timeouts = WaitingTimes(host, settings)
        self._idle = IdleFlows(self.bands, self.cluster, host)
        self.dispatcher: Dispatcher | None = None
        """Keeps the accounts of session plugins; None before the first configuration."""

    def use(self, settings: FlowSettings, now: float) -> None:
        """Apply other settings to the queues; waiting requests stay and are reordered."""
        self._settings = settings
        self.timeouts.use(settings)
        self.parking.requeue_all(now)
        for priority in settings.bands:
            if priority not in self.bands:
                self._make_band(priority, now)
        for band in self.bands.in_order:
            band.use(settings.of(band.priority), now)

    @property
    def waiting(self) -> Sequence[QueuedRequest]:
        """All waiting requests, in the order of their arrival."""
        jobs = self.cluster.jobs.values()
        return [job for job in cast("Sequence[QueuedRequest]", jobs) if job.is_waiting]

    def band(self, priority: int, now: float) -> PolicyBand:
        """Return the band of ``priority``; it is created if necessary.

        If there are :data:`MAX_BANDS`, none of which can be removed, return the next lower band.
        """
        bands = self.bands
        if priority in bands:
            return bands[priority]
        if len(bands.in_order) >= MAX_BANDS and not self._remove_band():
            lower = (band for band in bands.in_order if band.priority < priority)
            return next(lower, bands.in_order[-1])
        return self._make_band(priority, now)

    def _make_band(self, priority: int, now: float) -> PolicyBand:
        settings = self._settings.of(priority)
        band = PolicyBand(priority, settings, now, cpu_time=self._host.cpu_time)
        self.cluster.add_queue(band)
        self.bands.add(band)
        return band

    def _remove_band(self) -> bool:
        """Remove a band without flows; return whether there was one."""
        for band in reversed(self.bands.in_order):
            if not band.flows and band.priority not in self._settings.bands:
                self.bands.remove(band)
                self.cluster.remove_queue(band)
                return True
        return False

    def flow(self, band: PolicyBand, fairness_id: str, now: float) -> Flow:
        """Return the flow of an arriving request."""
        return self._idle.flow(band, fairness_id, now)

    def enter(
        self, band: PolicyBand, queued: QueuedRequest, now: float, *, is_ready: bool = True
    ) -> None:
        """Enqueue a request; the caller parks it if it is not ready."""
        self.bands.waiting += 1
        self.bands.size_bytes += queued.size_bytes
        band.add(queued, now, is_ready=is_ready)
        self.cluster.add_job(queued)
        self.timeouts.add(queued)

    def leave(self, queued: QueuedRequest, outcome: Outcome) -> None:
        """Dequeue a request; unless it is dispatched, forget it."""
        now = self._host.now()
        self.bands[queued.priority].remove(queued, now)
        self.bands.waiting -= 1
        self.bands.size_bytes -= queued.size_bytes
        self.parking.forget(queued)
        self.timeouts.compact(self.bands.waiting)
        self._host.observer.left(queued, outcome, now - queued.enqueued_at)
        if outcome is not Outcome.DISPATCHED:
            self.forget(queued)

    def forget(self, queued: QueuedRequest) -> None:
        """Drop a request that neither waits nor is in flight."""
        if self.dispatcher is not None:
            if queued.node is not None:
                self.dispatcher.end(queued.task)
            self.dispatcher.forget(queued)
        if self.cluster.jobs.get(queued.name) is queued:
            self.cluster.remove_job(queued)
        queued.close()
        self._idle.note(queued.queue, self._host.now())

    def note_pool(self, now: float) -> None:
        """Restart the timeouts of waiting requests if the pool became empty, or no longer is."""
        if self.timeouts.pool_has_changed(now):
            self.timeouts.restart(self.waiting)

    def requeue_all(self, now: float) -> None:
        """Put all waiting requests back into the order of their bands."""
        self.parking.requeue_all(now)
        for queued in self.waiting:
            if not queued.is_ready:
                self.bands[queued.priority].make_ready(queued, now)

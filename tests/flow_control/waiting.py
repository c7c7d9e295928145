"""A band whose requests are dispatched one by one in the order of its policies."""

from collections.abc import Mapping
from itertools import count

from flow_control.candidates import NotingCandidate

from epp.flow_control.flows import Band, Flow, QueuedRequest
from epp.flow_control.plugins import FairnessPolicy, OrderingPolicy
from epp.testing import make_request

FOREVER = None


class Line:
    """A dispatcher of one band, without endpoints and with unlimited capacity."""

    def __init__(self, ordering: OrderingPolicy, fairness: FairnessPolicy) -> None:
        self.ordering = ordering
        self.fairness = fairness
        self.band = Band(0, max_requests=10**6, max_bytes=10**9, created=0.0)
        self._sequence = count(1)

    def flow(self, fairness_id: str) -> Flow:
        """Return a flow; create it if needed."""
        known = self.band.flows.get(fairness_id)
        if known is None:
            known = self.band.flows[fairness_id] = Flow(fairness_id, self.band, 0.0)
        return known

    def enqueue(
        self,
        fairness_id: str,
        at: float = 0.0,
        *,
        request_id: str = "",
        ttl_seconds: float | None = FOREVER,
        received_at: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> QueuedRequest:
        """Enqueue a request at ``at``."""
        flow = self.flow(fairness_id)
        request = make_request(request_id or fairness_id, headers=headers)
        request.fairness_id = fairness_id
        queued = QueuedRequest(
            NotingCandidate(request, at if received_at is None else received_at),
            flow=flow,
            sequence=next(self._sequence),
            enqueued_at=at,
            ttl_seconds=ttl_seconds,
        )
        queued.key = self.ordering.key(queued)
        queued.is_waiting = True
        was_idle = not flow.has_head
        flow.push(queued)
        if was_idle:
            self.fairness.activated(flow, at)
        return queued

    def active(self) -> list[Flow]:
        """Return the flows with waiting requests."""
        return [flow for flow in self.band.flows.values() if flow.has_head]

    def dispatch(self, now: float = 0.0) -> QueuedRequest:
        """Dispatch the next request."""
        flows = self.active()
        keys = self.fairness.keys(flows, now)
        flow = flows[keys.index(min(keys))]
        queued = flow.head
        flow.take(queued)
        queued.is_waiting = False
        self.fairness.dispatched(flow, queued, now)
        return queued

    def dispatch_all(self, now: float = 0.0) -> list[str]:
        """Dispatch all requests; return their ids in order."""
        ids = []
        while self.active():
            ids.append(self.dispatch(now).request.request_id)
        return ids

"""Queues with requests, for tests of their views."""

from collections.abc import Mapping, Sequence

from flow_control.candidates import NotingCandidate

from epp.flow_control.flows import Band, Flow, QueuedRequest
from epp.flow_control.plugins import Share
from epp.scheduling import LLMRequest

NOW = 100.0


class Waiting:
    """Bands of requests; flows are in the order of their first request."""

    def __init__(self) -> None:
        self.bands: list[Band] = []
        self.saturation: dict[str, float] = {}
        self.ceilings: dict[int, float] = {}
        self.blocked = ""
        self.parked: list[QueuedRequest] = []
        self.why: dict[str, Sequence[str]] = {}
        """By the id of the request."""
        self.shares_by_flow: dict[str, Mapping[str, Share]] = {}
        self._requests = 0

    def band(self, priority: int) -> Band:
        """Add a band; call from high to low."""
        band = Band(priority, max_requests=5000, max_bytes=1_000_000_000, created=0.0)
        self.bands.append(band)
        return band

    def wait(
        self,
        band: Band,
        flow_id: str,
        request_id: str,
        *,
        waited: float = 1.0,
        ttl: float | None = None,
        parked: bool = False,
        model: str = "llama",
        size: int = 10,
    ) -> QueuedRequest:
        """Add a waiting request."""
        flow = band.flows.get(flow_id)
        if flow is None:
            flow = band.flows[flow_id] = Flow(flow_id, band, created=0.0)
        self._requests += 1
        request = LLMRequest(
            request_id,
            model,
            headers={"authorization": "Bearer secret"},
            prompt=b'"a secret prompt"',
            body_bytes=size,
            priority=band.priority,
            fairness_id=flow_id,
        )
        queued = QueuedRequest(
            NotingCandidate(request, NOW - waited),
            flow=flow,
            sequence=self._requests,
            enqueued_at=NOW - waited,
            ttl_seconds=ttl,
        )
        queued.key = queued.enqueued_at
        queued.expires_at = None if ttl is None else queued.enqueued_at + ttl
        queued.is_waiting = True
        for each in (flow, band):
            each.waiting += 1
            each.size_bytes += size
        if parked:
            queued.tries = 1
            self.parked.append(queued)
        else:
            flow.push(queued)
        return queued

    def flows(self, band: Band) -> Sequence[Flow]:
        """Return the flows in the order of arrival."""
        return list(band.flows.values())

    def reasons(self, queued: QueuedRequest) -> Sequence[str]:
        """Return the value set by the test."""
        return self.why.get(queued.request.request_id, ())

    def shares(self, flow: Flow) -> Mapping[str, Share]:
        """Return the value set by the test."""
        return self.shares_by_flow.get(flow.fairness_id, {})

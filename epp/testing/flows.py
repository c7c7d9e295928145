"""Builders for the tests of flow-control policies."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epp.scheduling import CycleState, Endpoint, LLMRequest, SchedulingResult

if TYPE_CHECKING:  # epp.testing by itself imports only the standard library and epp.scheduling
    from epp.flow_control import Outcome, QueuedRequest
    from epp.flow_control.flows import Flow

_GOES_NOWHERE = "a request of make_flow() cannot leave the queue"


class _Kept:
    """A request that never leaves the queue."""

    def __init__(self, request: LLMRequest, received_at: float) -> None:
        self.request = request
        self.received_at = received_at
        self.held_bytes = request.body_bytes

    def state(self) -> CycleState:
        return CycleState()

    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        raise AssertionError(_GOES_NOWHERE)

    def dispatch(
        self, queued: "QueuedRequest", result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        raise AssertionError(_GOES_NOWHERE)

    def fail(self, error: Exception) -> None:
        raise AssertionError(_GOES_NOWHERE) from error

    def turn_away(self, outcome: "Outcome", why: str, *, pool_is_empty: bool) -> None:
        raise AssertionError(_GOES_NOWHERE)


def make_flow(
    fairness_id: str = "default-flow",
    requests: Sequence[LLMRequest] = (),
    *,
    enqueued_at: float = 0.0,
    ttl_seconds: float | None = 60.0,
) -> "Flow":
    """Return a flow with a priority band of its own and ``requests`` in its queue.

    Args:
        fairness_id: Name of the flow.
        requests: Queued requests; the first is ``head``, ``in_order()`` yields all.
        enqueued_at: Time in seconds at which they were enqueued.
        ttl_seconds: Maximum time in the queue; None for no limit.
    """
    from epp.flow_control.flows import Band, Flow, QueuedRequest  # noqa: PLC0415 - as above

    priority = requests[0].priority if requests else 0
    band = Band(priority, max_requests=5000, max_bytes=10**9, created=enqueued_at)
    flow = band.flows[fairness_id] = Flow(fairness_id, band, enqueued_at)
    for sequence, request in enumerate(requests, 1):
        request.fairness_id = fairness_id
        queued = QueuedRequest(
            _Kept(request, enqueued_at),
            flow=flow,
            sequence=sequence,
            enqueued_at=enqueued_at,
            ttl_seconds=ttl_seconds,
        )
        queued.key = sequence
        queued.is_waiting = True
        flow.waiting += 1
        flow.size_bytes += queued.size_bytes
        band.waiting += 1
        band.size_bytes += queued.size_bytes
        flow.arrivals[queued.sequence] = queued
        flow.push(queued)
    return flow

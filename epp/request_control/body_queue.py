"""Requests with small bodies are decided at once; all others take turns.

The time to decide a request grows with its body, and nothing else runs on the event loop meanwhile.
So each turn of the loop has a budget for bodies that are not small. A request that fits is decided
at once; the others wait in one of three lanes:

* Short bodies: the lane decides as many in a turn as fit. When it is full, they are decided at
  once.
* Ordinary bodies: the lane decides one in each turn.
* Long and compressed bodies: the lane decodes in a thread, a slice per turn (the libraries release
  the GIL), counts each slice on the request's memory account before the next one, decides one
  request per turn, and rests after each turn for as long as it took. Such bodies never take more
  than half of the loop.

All lanes serve the sources of requests in turn, by the CPU time that each has used
(:mod:`.fair_queue`). The lanes of ordinary and of long bodies refuse requests that cannot be
decided in time.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from epp.parsing import Decoding
from epp.request_control.body_lanes import (
    MAX_WAITING,
    REST_ABOVE_SECONDS,
    BodyLanes,
    Lane,
    ShortLane,
)
from epp.request_control.body_work import SHORT_BODY_BYTES
from epp.request_control.director import Director
from epp.request_control.errors import CostlyBodiesError, RequestError
from epp.request_control.memory import (
    UNCOUNTED,
    RequestMemory,
    source_of,
)
from epp.request_control.pending import PendingDecision
from epp.request_control.plugins import EndCause
from epp.request_control.routed_request import RoutedRequest
from epp.request_control.waiting_request import ReceivedRequest, WaitingRequest
from epp.tracing import RequestTrace

SMALL_BODY_BYTES: Final = 4 << 10
"""A request with a body up to this is decided at once, unless the body is compressed."""
LONG_BODY_BYTES: Final = 1 << 20
"""A longer body is decided in a turn of its own, never in the one in which it arrived."""


class BodyQueue:
    """Passes requests to the director of a pool; used in the event loop.

    Args:
        director: Decides the requests.
        lanes: Where requests wait, shared with the queues of other pools.
    """

    def __init__(self, director: Director, lanes: BodyLanes) -> None:
        self._director = director
        self._lanes = lanes

    def handle(
        self,
        *,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes | memoryview,
        received_at: float,
        subset: Sequence[str] | None = None,
        memory: RequestMemory = UNCOUNTED,
        trace: RequestTrace | None = None,
    ) -> RoutedRequest | PendingDecision:
        """Decide a request at once, or when its turn comes; see :meth:`Director.handle`.

        Raises:
            RequestError: The error to answer with.
        """
        if trace is not None:
            trace.pool = self._director.traced_as
        # Spelled out, because nearly every request takes this path: a partial would cost 0.3 us.
        if len(body) <= SMALL_BODY_BYTES and "content-encoding" not in headers:
            return self._director.handle(
                request_id=request_id,
                headers=headers,
                body=body,
                received_at=received_at,
                subset=subset,
                memory=memory,
                trace=trace,
            )
        lanes = self._lanes
        work = lanes.work
        request = ReceivedRequest(
            self._director, request_id, headers, body, received_at, subset, memory, trace
        )
        if len(body) <= SHORT_BODY_BYTES and "content-encoding" not in headers:
            if lanes.short.is_bypassed:
                return work.decide(request)
            request.body = bytes(body)
            return self._wait(request, lanes.short)
        if "content-encoding" in headers:
            work.begin_decoding(request)
        if request.decoding is None and isinstance(body, memoryview):
            request.copying = Decoding.copy_of(body)
        if request.unfinished or request.body_bytes > LONG_BODY_BYTES:
            return self._wait(request, lanes.long)
        if not lanes.ordinary.is_idle or not work.fits(request):
            return self._wait(request, lanes.ordinary)
        try:
            return work.decide(request)
        finally:
            if work.turn.spent_seconds > REST_ABOVE_SECONDS:
                lanes.ordinary.start(rest_seconds=work.turn.spent_seconds)

    def ended_early(
        self,
        why: RequestError | EndCause,
        *,
        request_id: str,
        headers: Mapping[str, str],
        received_at: float,
    ) -> None:
        """Record a request that ended early; see :meth:`Director.ended_early`."""
        self._director.ended_early(
            why, request_id=request_id, headers=headers, received_at=received_at
        )

    def priority_of(self, headers: Mapping[str, str]) -> int:
        """Return the priority of a request with these headers."""
        return self._director.priority_of(headers)

    def _wait(self, request: ReceivedRequest, lane: Lane | ShortLane) -> PendingDecision:
        source = source_of(request.headers, self._lanes.source_headers)
        waiting = WaitingRequest(request, self._lanes.clock(), partial(lane.queue.remove, source))
        displaced = lane.queue.push(source, waiting)
        if displaced is waiting:
            raise self._displaced(request)
        if displaced is not None:
            displaced.end(self._displaced(displaced.request))
        lane.start()
        return waiting

    def _displaced(self, request: ReceivedRequest) -> RequestError:
        why = f"{MAX_WAITING} requests with long or compressed bodies wait already"
        return self._lanes.work.refuse(request, CostlyBodiesError(why))

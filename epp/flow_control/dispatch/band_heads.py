"""Finds the next request of a band, by its policies or by the orders of session plugins."""

from functools import cmp_to_key
from heapq import heapify, heappop, heapreplace
from typing import Protocol

from epp.flow_control.flows import Flow, QueuedRequest
from epp.flow_control.queues.bands import PolicyBand
from epp.flow_control.sessions import Session


class BandHeads(Protocol):
    """Finds the next request of each band during one session."""

    def first(self, band: PolicyBand) -> QueuedRequest | None:
        """Return the next request of ``band``; None if none is ready."""

    def changed(self, flow: Flow) -> None:
        """Note that the first request of ``flow`` or the flow's requests in flight have changed."""

    def close(self) -> None:
        """Release all references; the session is over."""


class PolicyHeads:
    """The order by the bands' own policies, which is kept between sessions."""

    def first(self, band: PolicyBand) -> QueuedRequest | None:
        flow = band.next_flow()
        return None if flow is None else flow.head

    def changed(self, flow: Flow) -> None:
        """Do nothing: a band ranks its flows itself."""

    def close(self) -> None:
        """Do nothing: there are no references."""


class ComparedHeads:
    """The order by session plugins; the policies break ties.

    The order may differ in each session, so each session sorts the bands that it visits.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._heaps: dict[PolicyBand, list[_Entry]] = {}
        self._requests: dict[Flow, list[QueuedRequest]] = {}

    def first(self, band: PolicyBand) -> QueuedRequest | None:
        heap = self._heaps.get(band)
        if heap is None:
            heap = self._heaps[band] = [_Entry(self, flow) for flow in band.ready()]
            heapify(heap)
        while heap:
            entry = heap[0]
            if entry.flow in band.held or self.head(entry.flow) is None:
                heappop(heap)
            elif entry.is_stale:
                entry.is_stale = False
                heapreplace(heap, entry)
            else:
                return self.head(entry.flow)
        return None

    def changed(self, flow: Flow) -> None:
        band = flow.band
        heap = self._heaps.get(band) if isinstance(band, PolicyBand) else None
        if heap and heap[0].flow is flow:
            heap[0].is_stale = True

    def close(self) -> None:
        self._heaps.clear()  # the entries refer to this object
        self._requests.clear()

    def head(self, flow: Flow) -> QueuedRequest | None:
        """Return the next request of ``flow``; None if none is ready."""
        if not self._session.job_orders:
            return flow.head if flow.has_head else None
        requests = self._requests.get(flow)
        if requests is None:
            in_order = sorted(flow.in_order(), key=cmp_to_key(self._session.compare_jobs))
            requests = self._requests[flow] = in_order[::-1]
        while requests and not requests[-1].is_ready:
            requests.pop()
        return requests[-1] if requests else None

    def is_before(self, left: Flow, right: Flow) -> bool:
        """Return whether ``left`` precedes ``right``; a flow without a ready request is last."""
        left_head, right_head = self.head(left), self.head(right)
        if left_head is None or right_head is None:
            return right_head is None and left_head is not None
        return self._session.compare_queues(left, right, left_head, right_head) < 0


class _Entry:
    """A flow in a heap."""

    __slots__ = ("_heads", "flow", "is_stale")

    def __init__(self, heads: ComparedHeads, flow: Flow) -> None:
        self._heads = heads
        self.flow = flow
        self.is_stale = False

    def __lt__(self, other: "_Entry") -> bool:
        return self._heads.is_before(self.flow, other.flow)


def heads_of(session: Session) -> BandHeads:
    """Return the order that applies in ``session``."""
    is_compared = session.queue_orders or session.job_orders
    return ComparedHeads(session) if is_compared else PolicyHeads()
